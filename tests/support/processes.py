"""Whole studies and servers as processes of their own, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import optuna
from mlflow import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from benchmarks.reliability import napping

GRID = """
name: tiny
domain: medical
data: {train_patients: 400, valid_patients: 300, test_patients: 200, draws: 1}
seeds: 3
training: {epochs: 3}
models:
  nbsr: {hidden: [32], experts: {activation: exp}, objective: {every_depth: 1.0, concept: 0.3}}
  mlp: {hidden: [32]}
"""
SEARCH = """
name: hunt
domain: medical
data: {train_patients: 300, valid_patients: 200, test_patients: 100, draws: 1}
training: {epochs: 3}
models:
  nbsr: {hidden: [16], graph: {shape: uniform}}
search:
  trials: 8
  objectives: {valid/accuracy: maximize, valid/fast/mean_depth: minimize}
  sampler: {name: random, seed: 7}
  pruner: none
  space:
    graph.width: {int: [2, 4]}
    lambda: {float: [1.0e-5, 1.0e-2], log: true}
    eta: frontier
"""
# A domain that stands beside its study file, and naps.
NAPPING = Path(napping.__file__).read_text()
# 90 flowers make 3 batches an epoch: a trial naps for 6 seconds.
NAPS = """
name: naps
domain: napping:Napping
seeds: 3
training: {epochs: 20, batch_size: 30}
models: {nbsr: {}, mlp: {}}
"""
COMMAND = [sys.executable, "-m", "nbsr_platform"]
# The same, but a tracking store that does not answer is given up after some seconds.
IMPATIENT = """
from nbsr_platform.tracking import store
store.PATIENCE = 5.0
from nbsr_platform.cli.app import main
main()
"""


def place(folder: Path, study: str) -> Path:
    """A folder with a study and the module of its domain."""
    folder.mkdir()
    (folder / "napping.py").write_text(NAPPING)
    (folder / "naps.yaml").write_text(study)
    return folder


def nbsr(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """One `nbsr` command, to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
    )


def document(folder: Path, study: str, *more: str) -> dict[str, Any]:
    """What `nbsr run --json` prints of a study that runs without a failure."""
    done = nbsr("run", study, "--json", *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@contextmanager
def under_way(folder: Path, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A command under way. At the end whatever is left of it is killed: it, its Ray, its workers."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as driver:
        try:
            yield driver
        finally:
            if driver.poll() is None:
                for pid in [driver.pid, *descendants(driver.pid)]:
                    kill(pid)


def running(
    folder: Path, study: str, *more: str, impatient: bool = False
) -> AbstractContextManager[subprocess.Popen[str]]:
    """`nbsr run --json` under way, see `under_way`."""
    command = [sys.executable, "-c", IMPATIENT] if impatient else COMMAND
    return under_way(folder, [*command, "run", study, "--json", *more])


def recorded(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Final test figures of every trial recorded under a study's run, by trial key; fails on doubles."""
    client = MlflowClient(result["tracking_uri"])
    parent = client.get_run(result["run_id"])
    experiment, study = parent.info.experiment_id, parent.data.tags["nbsr.study_key"]
    found: dict[str, dict[str, float]] = {}
    children = f"tags.`mlflow.parentRunId` = '{result['run_id']}'"
    for run in client.search_runs([experiment], children, max_results=1000):
        key = run.data.tags["nbsr.trial_key"]
        assert key not in found, f"{key} is recorded twice"
        assert run.info.status == "FINISHED"
        found[key] = {name: value for name, value in run.data.metrics.items() if name.startswith(("test/", "fast/"))}
    parents = client.search_runs([experiment], f"tags.`nbsr.study_key` = '{study}'")
    assert [run.info.run_id for run in parents] == [result["run_id"]], "one run per study"
    return found


def journal(folder: Path) -> optuna.Study:
    """The one search of a home."""
    (path,) = (folder / ".nbsr" / "searches").iterdir()
    storage = JournalStorage(JournalFileBackend(str(path)))
    (summary,) = optuna.get_all_study_summaries(storage)
    return optuna.load_study(study_name=summary.study_name, storage=storage)


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """What the condition gives when it first gives anything."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain"
        time.sleep(0.1)
    return found


def descendants(pid: int, title: str = "") -> list[int]:
    """Processes below this one whose title contains the text (Ray's workers are titled by what they run)."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [(int(row[0]), int(row[1]), row[2]) for line in listing.splitlines() if len(row := line.split(None, 2)) == 3]
    found, parents = [], [pid]
    while parents:
        above = parents.pop()
        below = [(child, args) for child, parent, args in rows if parent == above]
        parents += [child for child, _ in below]
        found += [child for child, args in below if title in args]
    return found


def kill(pid: int) -> bool:
    """Kill without warning; whether there was anybody left."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def closed_port() -> int:
    """A port of loopback on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether somebody listens on this port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def server(folder: Path, port: int) -> Iterator[str]:
    """A real MLflow server on loopback; it and its workers are killed at the end, without warning."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "kept")]
    process = subprocess.Popen(
        command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
