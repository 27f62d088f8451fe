"""How a study gets its Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from nbsr_platform.execution.on_ray.session import RayError, ray_session

ROOT = Path(__file__).parents[3]
# In a process of its own: no other test's Ray is there then.
WHO_LISTENS = """
import json, os
import ray
from nbsr_platform.base.listeners import listeners
from nbsr_platform.execution.on_ray.session import ray_session

with ray_session(None, cpus=1):
    ray.get(ray.remote(lambda: None).remote())
    ours = [one for one in listeners() if os.getsid(one.pid) == os.getsid(0)]
    print(json.dumps([[one.service, one.address, one.reachable] for one in ours]))
"""

# What another user of the machine would try: to write to the control store, and to enter the folder with the sockets.
INTRUDER = """
import os, sys
os.environ.update(RAY_AUTH_MODE=sys.argv[3], RAY_AUTH_TOKEN="0" * 64)
from ray._raylet import GcsClient
if os.getuid() == 0:
    os.setuid(65534)
try:
    GcsClient(address=sys.argv[1]).internal_kv_put(b"evil", b"x", True, None)
    print("wrote")
except Exception as error:
    print(type(error).__name__)
print(os.access(sys.argv[2], os.X_OK) if os.getuid() == 65534 else "the same user")
"""
WHO_GETS_IN = f"""
import json, os, subprocess, sys
from pathlib import Path
import ray
from nbsr_platform.execution.on_ray.session import ray_session

intruder = {INTRUDER!r}
with ray_session(None, cpus=1):
    node, token = ray._private.worker._global_node, os.environ["RAY_AUTH_TOKEN"]
    ray.get(ray.remote(lambda: None).remote())
    private = Path(node.get_session_dir_path()).parents[1]
    files = [path for path in private.rglob("*") if path.is_file()]
    start = [sys.executable, "-c", intruder, node.gcs_address, str(private)]
    tried = [subprocess.run([*start, mode], capture_output=True, text=True) for mode in ("disabled", "token")]
    print(json.dumps({{
        "mode": oct(private.stat().st_mode & 0o777),
        "files": len(files),
        "with the token": [str(path) for path in files if token.encode() in path.read_bytes()],
        "tried": [one.stdout.split() or one.stderr for one in tried],
    }}))
print(json.dumps([private.exists(), "RAY_AUTH_TOKEN" in os.environ, "RAY_AUTH_MODE" in os.environ]))
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
from nbsr_platform.execution.on_ray.session import ray_session

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


@pytest.mark.slow
def test_a_ray_of_our_own_lets_in_nobody_else_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WHO_GETS_IN]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment["HOME"] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, start_new_session=True, env=environment)
    assert done.returncode == 0, done.stderr
    during, after = map(json.loads, done.stdout.splitlines()[-2:])
    assert during["mode"] == "0o700"
    assert during["files"] > 10
    assert during["with the token"] == []
    for said in during["tried"]:
        assert said[0] == "AuthenticationError", said
        assert said[1] != "True", "others may enter its folder"
    assert after == [False, False, False]
    assert not (tmp_path / ".ray").exists(), "a token that others can read"


def test_who_names_a_token_or_wants_none_gets_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def init(**options: object) -> None:
        seen.append({name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")})
        raise Exception("enough")

    monkeypatch.setattr(ray, "init", init)
    asked: list[dict[str, str]] = [
        {},
        {"RAY_AUTH_MODE": "token"},
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "mine"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/mine"},
    ]
    for settings in asked:
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            monkeypatch.delenv(name, raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RayError, match="enough"), ray_session(None):
            pass
        assert {name: os.environ[name] for name in os.environ if name.startswith("RAY_AUTH")} == settings
    assert [len(one.pop("RAY_AUTH_TOKEN")) for one in seen[:2]] == [64, 64]
    assert seen == [{"RAY_AUTH_MODE": "token"}] * 2 + asked[2:]
