"""Studies whose processes are killed at random moments: nothing is lost, and nothing is done or recorded twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from processes import (
    COMMAND,
    GRID,
    NAPS,
    SEARCH,
    closed_port,
    descendants,
    document,
    journal,
    kill,
    place,
    recorded,
    running,
    server,
    wait_for,
)
from toys import store_uri

# What Tune calls the processes in which trials run.
WORKER = "ray::ResourceTrainable"
NAPPING_SEARCH = """
name: naps
domain: napping:Napping
training: {epochs: 20, batch_size: 30}
models: {nbsr: {}}
search:
  trials: 6
  objectives: {valid/accuracy: maximize, valid/fast/mean_depth: minimize}
  sampler: {name: random, seed: 7}
  pruner: none
  space:
    oracle_dim: {int: [8, 32]}
    training.learning_rate: {float: [1.0e-3, 1.0e-1], log: true}
    eta: frontier
"""


@pytest.fixture(scope="module")
def naps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the grid gives when nobody disturbs it."""
    return document(place(tmp_path_factory.mktemp("calm") / "naps", NAPS), "naps.yaml")


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same trials with the same figures, in the document and in MLflow; nothing lost, nothing twice."""
    assert found["trials"]["total"] == expected["trials"]["total"]
    assert found["trials"]["failed"] == 0
    assert sorted(map(json.dumps, found["table"])) == sorted(map(json.dumps, expected["table"]))
    assert recorded(found) == recorded(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), [("tiny", GRID), ("hunt", SEARCH)])
@pytest.mark.timeout(900)
def test_killed_at_any_moment_the_same_command_goes_on(tmp_path: Path, name: str, text: str) -> None:
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    for folder in (calm, wild):
        folder.mkdir()
        (folder / f"{name}.yaml").write_text(text)
    expected = document(calm, f"{name}.yaml")
    chance = random.Random(3)
    for _ in range(5):
        with subprocess.Popen(
            [*COMMAND, "run", f"{name}.yaml"],
            cwd=wild,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as driver:
            try:
                driver.wait(timeout=chance.uniform(3, 25))
            except subprocess.TimeoutExpired:
                driver.send_signal(signal.SIGKILL)
        time.sleep(2)  # Ray's own processes notice that their driver is gone
    result = document(wild, f"{name}.yaml")
    same(result, expected)
    if name == "hunt":
        assert [trial.state.name for trial in journal(wild).trials] == ["COMPLETE"] * 8
        assert [trial.params for trial in journal(wild).trials] == [trial.params for trial in journal(calm).trials]


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(GRID.replace("epochs: 3", "epochs: 40"))
    with subprocess.Popen(
        [*COMMAND, "run", "tiny.yaml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        trials = tmp_path / ".nbsr" / "trials"
        wait_for(lambda: list(trials.glob("[!.]*")))
        driver.send_signal(signal.SIGINT)
        output, errors = driver.communicate(timeout=300)
    assert driver.returncode == 130, output + errors
    assert "run tiny.yaml" in output
    assert "Traceback" not in output + errors
    kept = len(list(trials.glob("[!.]*")))
    assert document(tmp_path, "tiny.yaml")["trials"]["reused"] >= kept >= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("study", [NAPS, NAPPING_SEARCH], ids=["grid", "search"])
def test_workers_killed_at_random_moments_cost_nothing_but_time(tmp_path: Path, study: str) -> None:
    calm, wild = place(tmp_path / "calm", study), place(tmp_path / "wild", study)
    expected = document(calm, "naps.yaml")
    chance = random.Random(5)
    with running(wild, "naps.yaml", "--set", "resources.retries=9") as driver:
        for _ in range(5):
            wait_for(lambda: descendants(driver.pid, WORKER))
            time.sleep(chance.uniform(0.1, 4))
            kill(chance.choice(wait_for(lambda: descendants(driver.pid, WORKER))))  # between calls it has no such title
        output, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, output + errors
    assert "Traceback" not in errors
    same(json.loads(output), expected)
    if study is NAPPING_SEARCH:
        assert [trial.state.name for trial in journal(wild).trials] == ["COMPLETE"] * 6
        assert [trial.params for trial in journal(wild).trials] == [trial.params for trial in journal(calm).trials]


def runs_in(uri: str) -> int:
    """Trials that a server has recorded in full."""
    client = MlflowClient(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return len(client.search_runs(experiments, "tags.`nbsr.role` = 'trial' and attributes.status = 'FINISHED'"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_and_comes_back_is_waited_for(tmp_path: Path, naps: dict[str, Any]) -> None:
    wild, served, port = place(tmp_path / "wild", NAPS), tmp_path / "served", closed_port()
    store_uri(served)
    with ExitStack() as session:
        with server(served, port) as uri:
            driver = session.enter_context(running(wild, "naps.yaml", "--tracking", uri))
            wait_for(lambda: runs_in(uri), 300)
        time.sleep(8)
        with server(served, port):
            output, errors = driver.communicate(timeout=600)
            assert driver.returncode == 0, output + errors
            assert "Traceback" not in errors
            same(json.loads(output), naps)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_that_stays_away_is_one_clear_error_and_the_same_command_goes_on(
    tmp_path: Path, naps: dict[str, Any]
) -> None:
    wild, served, port = place(tmp_path / "wild", NAPS), tmp_path / "served", closed_port()
    store_uri(served)
    with ExitStack() as session:
        with server(served, port) as uri:
            driver = session.enter_context(running(wild, "naps.yaml", "--tracking", uri, impatient=True))
            wait_for(lambda: runs_in(uri), 300)
        output, errors = driver.communicate(timeout=600)
        assert (driver.returncode, output) == (2, ""), output + errors
    assert f"tracking store {uri}: connection refused" in errors
    assert "the same command" in errors
    assert "Traceback" not in errors
    with server(served, port):
        result = document(wild, "naps.yaml", "--tracking", uri)
        assert result["trials"]["reused"] == 6, "training does not wait for the tracking store"
        same(result, naps)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_team_that_loses_a_worker_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    epochs, batches = 20, 3
    study = NAPS.replace("seeds: 3", "seeds: 1").replace("{nbsr: {}, mlp: {}}", "{mlp: {}}\nresources: {workers: 2}")
    calm, wild = place(tmp_path / "calm", study), place(tmp_path / "wild", study)
    expected = document(calm, "naps.yaml")
    log, chance = wild / "naps.log", random.Random(11)

    def naps() -> list[str]:
        return log.read_text().split() if log.exists() else []

    with running(wild, "naps.yaml") as driver:
        wait_for(lambda: len(naps()) > 2 * 5 * batches, 300)
        time.sleep(chance.uniform(0, 2 * batches * 0.1))
        team = set(naps())
        kill(int(chance.choice(sorted(team))))
        output, errors = driver.communicate(timeout=600)
    assert driver.returncode == 0, output + errors
    assert "Traceback" not in errors
    same(json.loads(output), expected)
    worked = Counter(naps())
    before = (max(worked[pid] for pid in team) - 1) // batches  # epochs that were over when the next one began
    after = max(worked[pid] for pid in worked.keys() - team) // batches
    assert len(team) == len(worked.keys() - team) == 2
    assert after < epochs, "it did not begin anew"
    assert before + after - epochs <= 1, "no more than one epoch was done twice"
