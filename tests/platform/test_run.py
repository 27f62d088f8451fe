"""Studies from file to table, on a real Ray and a real MLflow."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from mlflow import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

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


def nbsr(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nbsr_platform.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, **environment},
    )


def document(folder: Path, study: str, *more: str) -> dict[str, Any]:
    done = nbsr("run", study, "--json", *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def recorded(folder: Path, run_id: str) -> dict[str, dict[str, float]]:
    """Final test figures of every trial recorded under a study's run, by trial key; fails on doubles."""
    client = MlflowClient(f"sqlite:///{folder / '.nbsr' / 'mlflow.db'}")
    experiment = client.get_run(run_id).info.experiment_id
    found: dict[str, dict[str, float]] = {}
    for run in client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run_id}'", max_results=1000):
        key = run.data.tags["nbsr.trial_key"]
        assert key not in found, f"{key} is recorded twice"
        assert run.info.status == "FINISHED"
        found[key] = {name: value for name, value in run.data.metrics.items() if name.startswith(("test/", "fast/"))}
    return found


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("grid")
    (folder / "tiny.yaml").write_text(GRID)
    return folder, document(folder, "tiny.yaml")


def test_a_study_runs_from_file_to_table(grid: tuple[Path, dict[str, Any]]) -> None:
    _, result = grid
    assert result["study"] == "tiny"
    assert result["trials"] == {"total": 6, "finished": 6, "reused": 0, "failed": 0, "pruned": 0}
    assert {(row["model"], row["config"], row["n"]) for row in result["table"]} == {
        ("nbsr", "deep", 3),
        ("nbsr", "fast", 3),
        ("mlp", "", 3),
    }
    for row in result["table"]:
        figure = row["metrics"]["accuracy"]
        assert row["synthetic"] is True
        assert 0 < figure["mean"] <= 1
        assert figure["low"] < figure["mean"] < figure["high"]
    page = Path(result["report"]).read_text()
    assert "synthetic" in page
    assert "tiny" in page


def test_every_trial_is_recorded_once_with_comparable_figures(grid: tuple[Path, dict[str, Any]]) -> None:
    folder, result = grid
    runs = recorded(folder, result["run_id"])
    assert len(runs) == 6
    assert all({"test/accuracy", "test/ece", "test/nll"} <= figures.keys() for figures in runs.values())
    client = MlflowClient(result["tracking_uri"])
    parent = client.get_run(result["run_id"])
    assert parent.data.metrics["nbsr/deep/accuracy/mean"] == pytest.approx(
        next(row for row in result["table"] if row["config"] == "deep")["metrics"]["accuracy"]["mean"]
    )


def test_running_again_runs_nothing_and_records_nothing_twice(grid: tuple[Path, dict[str, Any]]) -> None:
    folder, result = grid
    before = recorded(folder, result["run_id"])
    again = document(folder, "tiny.yaml")
    assert again["trials"] == {"total": 6, "finished": 6, "reused": 6, "failed": 0, "pruned": 0}
    assert again["run_id"] == result["run_id"]
    assert again["table"] == result["table"]
    assert recorded(folder, again["run_id"]) == before


def test_one_more_seed_runs_only_what_is_missing(grid: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = grid
    more = document(folder, "tiny.yaml", "--set", "seeds=4")
    assert more["trials"]["total"] == 8
    assert more["trials"]["reused"] == 6


def test_a_failing_trial_is_reported_and_the_others_finish(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(GRID.replace("seeds: 3", "seeds: 1"))
    done = nbsr("run", "tiny.yaml", "--set", "models.nbsr.training.learning_rate=1e30", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed nbsr seed 0" in done.stdout
    assert "must be finite" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "mlp" in done.stdout
    logs = list((tmp_path / ".nbsr" / "logs" / "tiny").iterdir())
    assert len(logs) == 1
    assert "Traceback" in logs[0].read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "missing.yaml"), "missing.yaml"),
        (("run", "tiny.yaml", "--set", "models.nbsr.graph.dept=3"), "depth"),
        (("run", "tiny.yaml", "--set", "data.source=kaggle"), "Training.csv"),
        (("run", "tiny.yaml", "--tracking", "http://127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_bad_input_is_one_clear_error(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    (tmp_path / "tiny.yaml").write_text(GRID)
    done = nbsr(*arguments, cwd=tmp_path, NBSR_DATA="")
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def journal(folder: Path) -> optuna.Study:
    (path,) = (folder / ".nbsr" / "searches").iterdir()
    storage = JournalStorage(JournalFileBackend(str(path)))
    (summary,) = optuna.get_all_study_summaries(storage)
    return optuna.load_study(study_name=summary.study_name, storage=storage)


def test_a_search_proposes_exactly_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "hunt.yaml").write_text(SEARCH)
    result = document(tmp_path, "hunt.yaml")
    assert result["trials"]["total"] == 8
    states = [trial.state.name for trial in journal(tmp_path).trials]
    assert states == ["COMPLETE"] * 8
    assert len(recorded(tmp_path, result["run_id"])) == len(
        {trial.user_attrs["nbsr.trial_key"] for trial in journal(tmp_path).trials}
    )
    again = document(tmp_path, "hunt.yaml")
    assert again["trials"]["reused"] == 8
    assert len(journal(tmp_path).trials) == 8


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
            [sys.executable, "-m", "nbsr_platform.cli", "run", f"{name}.yaml"],
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
    assert result["trials"]["total"] == expected["trials"]["total"]
    assert result["trials"]["failed"] == 0
    assert sorted(map(json.dumps, result["table"])) == sorted(map(json.dumps, expected["table"]))
    assert recorded(wild, result["run_id"]) == recorded(calm, expected["run_id"])
    if name == "hunt":
        assert [trial.state.name for trial in journal(wild).trials] == ["COMPLETE"] * 8
        assert [trial.params for trial in journal(wild).trials] == [trial.params for trial in journal(calm).trials]


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(GRID.replace("epochs: 3", "epochs: 40"))
    with subprocess.Popen(
        [sys.executable, "-m", "nbsr_platform.cli", "run", "tiny.yaml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        trials = tmp_path / ".nbsr" / "trials"
        until = time.monotonic() + 120
        while not (trials.exists() and any(not p.name.startswith(".") for p in trials.iterdir())):
            assert time.monotonic() < until
            time.sleep(0.2)
        driver.send_signal(signal.SIGINT)
        output, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130, output + errors
    assert "run tiny.yaml" in output
    assert "Traceback" not in output + errors
    kept = sum(not path.name.startswith(".") for path in trials.iterdir())
    assert document(tmp_path, "tiny.yaml")["trials"]["reused"] >= kept >= 1


@pytest.mark.slow
def test_a_trial_on_two_workers_learns_what_one_worker_learns(tmp_path: Path) -> None:
    text = GRID.replace("seeds: 3", "seeds: 1")
    (tmp_path / "tiny.yaml").write_text(text)
    (tmp_path / "team.yaml").write_text(text.replace("name: tiny", "name: team"))
    alone = document(tmp_path, "tiny.yaml", "--home", "alone")
    team = document(tmp_path, "team.yaml", "--home", "team", "--set", "resources.workers=2")
    assert team["trials"]["finished"] == 2
    by_model = [
        {row["model"] + row["config"]: row["metrics"]["accuracy"]["mean"] for row in result["table"]}
        for result in (alone, team)
    ]
    assert by_model[1]["mlp"] == pytest.approx(by_model[0]["mlp"], abs=0.05)
