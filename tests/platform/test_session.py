"""How a study gets its Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from nbsr_platform.session import RayError, ray_session

ROOT = Path(__file__).parents[2]
# In a process of its own: no other test's Ray is there then.
WHO_LISTENS = """
import json, os
import ray
from nbsr_platform.listeners import listeners
from nbsr_platform.session import ray_session

with ray_session(None, cpus=1):
    ray.get(ray.remote(lambda: None).remote())
    ours = [one for one in listeners() if os.getsid(one.pid) == os.getsid(0)]
    print(json.dumps([[one.service, one.address, one.reachable] for one in ours]))
"""


@pytest.mark.parametrize(
    ("address", "says"),
    [
        (None, "Ray does not start here: The current node timed out during startup."),
        ("10.0.0.1:6379", "cannot use the Ray cluster at '10.0.0.1:6379': The current node timed out during startup."),
    ],
)
def test_a_ray_that_does_not_start_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, address: str | None, says: str
) -> None:
    def init(**options: object) -> None:
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RayError) as caught, ray_session(address):
        pass
    assert str(caught.value) == says


STUDY = "name: flowers\ndomain: session_flowers:Flowers\ntraining: {epochs: 1}\nmodels: {nbsr: {}, mlp: {}}\n"
MODULE = "from nbsr_core.domains.iris import Iris\n\nclass Flowers(Iris):\n    name = 'flowers'\n"


def nbsr_run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`nbsr run s.yaml` as people start it: the folder in which they are is not on Python's path."""
    (folder / "s.yaml").write_text(STUDY)
    (folder / "session_flowers.py").write_text(MODULE)
    given = {name: value for name, value in os.environ.items() if not name.startswith(("NBSR_", "RAY_", "MPL", "XDG_"))}
    given |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")]), **environment}
    command = [sys.executable, "-P", "-m", "nbsr_platform.cli", "run", "s.yaml"]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
def test_a_study_runs_though_the_home_folder_cannot_be_written(tmp_path: Path) -> None:
    """/proc/self is such a folder for everybody, root included."""
    done = nbsr_run(tmp_path, HOME="/proc/self")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2/2 trials" in done.stdout
    assert "Matplotlib" not in done.stderr
    assert list((tmp_path / ".nbsr" / "cache").iterdir()), "what would be kept at home is kept in the store"


@pytest.mark.slow
def test_modules_where_nbsr_is_started_hide_none_that_workers_need(tmp_path: Path) -> None:
    for name in ("queue", "json", "logging", "ray", "torch"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('hides what is installed')\n")
    done = nbsr_run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2/2 trials" in done.stdout


WITH_A_TOKEN = """
import os
from pathlib import Path
import ray
from nbsr_platform.session import ray_session

tokens = []
for _ in range(2):
    with ray_session(None, cpus=1):
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
        assert ray.get(ray.remote(lambda: os.environ["RAY_AUTH_MODE"]).remote()) == "token"
    assert not [name for name in os.environ if name.startswith("RAY_AUTH")]
assert tokens[0] != tokens[1]
assert not (Path.home() / ".ray").exists()
"""


@pytest.mark.slow
def test_each_ray_of_our_own_has_a_token_of_its_own_and_leaves_none_behind(tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    command = [sys.executable, "-c", WITH_A_TOKEN]
    environment = {**given, "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_ray_of_our_own_is_heard_by_this_machine_only() -> None:
    command = [sys.executable, "-c", WHO_LISTENS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, start_new_session=True)
    assert done.returncode == 0, done.stderr
    heard = json.loads(done.stdout.splitlines()[-1])
    assert len(heard) >= 5, "its control store, its node, its agents and a worker"
    assert [one for one in heard if one[2]] == []
