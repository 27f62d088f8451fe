"""Every file under `cluster/` is read by what reads it in earnest, or by that one's schema."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kuberay import SCHEMAS, real_schema
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "cluster"


def read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / name).read_text()))


def shell(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = environment.pop("PATH", "/usr/bin:/bin")
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": path, **environment})


def test_rays_own_validator_accepts_the_launchers_file() -> None:
    config = read("aws.yaml")
    validate_config(prepare_config(copy.deepcopy(config)))
    gpu = [kind for kind in config["available_node_types"].values() if kind["resources"].get("GPU")]
    assert [kind["node_config"].get("InstanceMarketOptions", {}).get("MarketType") for kind in gpu] == ["spot", None]
    assert all(kind["min_workers"] == 0 < kind["max_workers"] for kind in gpu)


def test_rays_own_validator_would_have_said_something() -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config({**read("aws.yaml"), "maximal_workers": 3}))


@pytest.mark.parametrize(("name", "kind"), [("kuberay.yaml", "RayCluster"), ("kuberay-job.yaml", "RayJob")])
def test_kuberay_accepts_its_objects(name: str, kind: str) -> None:
    found = read(name)
    jsonschema.validate(found, SCHEMAS[kind])
    if (schema := real_schema(kind)) is not None:
        jsonschema.validate(found, schema)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(headGroupSpecs={}),
        lambda spec: spec["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda spec: spec["autoscalerOptions"].update(upscalingMode="Fast"),
        lambda spec: spec["workerGroupSpecs"][0].pop("groupName"),
        lambda spec: spec["workerGroupSpecs"][0].update(maxReplicas="many"),
    ],
    ids=["unknown key", "number for text", "unknown mode", "no name", "text for number"],
)
def test_the_schema_refuses_what_kuberay_refuses(change: Any) -> None:
    found = read("kuberay.yaml")
    change(found["spec"])
    for schema in (SCHEMAS["RayCluster"], real_schema("RayCluster")):
        if schema is not None:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(found, schema)


@pytest.mark.parametrize("spec", [read("kuberay.yaml")["spec"], read("kuberay-job.yaml")["spec"]["rayClusterSpec"]])
def test_kuberay_asks_for_the_token_and_gives_every_pod_the_same_disks(spec: dict[str, Any]) -> None:
    assert spec["authOptions"]["mode"] == "token"
    pods = [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    for pod in pods:
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {"store", "data"}
        assert {volume["name"] for volume in pod["volumes"]} == {"store", "data"}
        assert container["resources"]["limits"] == container["resources"]["requests"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize("script", ["local.sh", "slurm.sh"])
def test_scripts_are_shell(script: str) -> None:
    done = shell("bash", "-n", str(FOLDER / script))
    assert done.returncode == 0, done.stderr


def test_slurm_would_start_a_head_a_worker_a_node_and_the_study(tmp_path: Path) -> None:
    control = tmp_path / "scontrol"
    control.write_text("#!/bin/sh\necho node1\necho node2\necho node3\n")
    control.chmod(0o755)
    done = shell(
        "bash",
        str(FOLDER / "slurm.sh"),
        "studies/a study.yaml",
        "--set",
        "seeds=2",
        PATH=f"{tmp_path}:/usr/bin:/bin",
        NBSR_DRY_RUN="1",
        NBSR_PYTHON="/opt/python",
        NBSR_HOME=str(tmp_path / "home"),
        SLURM_JOB_NODELIST="node[1-3]",
        SLURM_JOB_ID="4711",
        SLURM_CPUS_PER_TASK="16",
        SLURM_GPUS_ON_NODE="2",
    )
    assert done.returncode == 0, done.stderr
    head, second, third, study = done.stdout.splitlines()
    assert "--nodelist=node1" in head
    assert "--head --port=24711 --dashboard-host=127.0.0.1" in head
    assert "--num-cpus=16 --num-gpus=2" in head
    for node, line in {"node2": second, "node3": third}.items():
        assert f"--nodelist={node}" in line
        assert "--address=node1:24711" in line
    assert r"nbsr_platform.cli run --address node1:24711" in study
    assert r"studies/a\ study.yaml --set seeds=2" in study
    assert not (tmp_path / "home").exists(), "a dry run writes nothing"


def test_slurm_says_what_is_missing() -> None:
    assert "usage" in shell("bash", str(FOLDER / "slurm.sh")).stderr
    assert "allocation" in shell("bash", str(FOLDER / "slurm.sh"), "study.yaml", NBSR_PYTHON="python3").stderr


def test_the_compose_file_is_one() -> None:
    compose = read("compose.yaml")
    services = compose["services"]
    assert set(services) == {"postgres", "artifacts", "mlflow", "head", "worker"}
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} would be open to the network"
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in compose["volumes"]
        for other in service.get("depends_on", []):
            assert other in services
    assert services["head"]["environment"]["RAY_AUTH_MODE"] == "token"
    for name in ("head", "worker", "mlflow"):
        assert not re.search(r"//[^/@\s]*:[^@/\s]*@", yaml.safe_dump(services[name])), "a password in an address"


def test_docker_accepts_the_compose_file(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("docker compose is not installed here")
    done = subprocess.run([docker, "compose", "-f", str(FOLDER / "compose.yaml"), "config"], capture_output=True)
    assert done.returncode == 0, done.stderr


def test_the_container_is_built_from_files_that_are_there() -> None:
    text = (FOLDER / "Containerfile").read_text()
    copied = [source for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for source in line.split()]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
    assert re.search(r"^USER nbsr$", text, re.MULTILINE), "not as root"
