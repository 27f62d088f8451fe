"""Studies from file to table, on a real Ray and a real MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from processes import GRID, NAPS, SEARCH, document, journal, nbsr, place, recorded


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
        ("ceiling", "", 3),
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
    _, result = grid
    runs = recorded(result)
    assert len(runs) == 6
    assert all({"test/accuracy", "test/ece", "test/nll"} <= figures.keys() for figures in runs.values())
    client = MlflowClient(result["tracking_uri"])
    parent = client.get_run(result["run_id"])
    assert parent.data.metrics["nbsr/deep/accuracy/mean"] == pytest.approx(
        next(row for row in result["table"] if row["config"] == "deep")["metrics"]["accuracy"]["mean"]
    )


def test_running_again_runs_nothing_and_records_nothing_twice(grid: tuple[Path, dict[str, Any]]) -> None:
    folder, result = grid
    before = recorded(result)
    again = document(folder, "tiny.yaml")
    assert again["trials"] == {"total": 6, "finished": 6, "reused": 6, "failed": 0, "pruned": 0}
    assert again["run_id"] == result["run_id"]
    assert again["table"] == result["table"]
    assert recorded(again) == before


def test_one_more_seed_runs_only_what_is_missing(grid: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = grid
    more = document(folder, "tiny.yaml", "--set", "seeds=4")
    assert more["trials"]["total"] == 8
    assert more["trials"]["reused"] == 6


def test_a_threshold_that_is_no_test_is_told_before_and_after(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(GRID.replace("seeds: 3", "seeds: 1"))
    vacuous = ("--set", "evaluation.eta=-100")
    told = nbsr("validate", "tiny.yaml", *vacuous, cwd=tmp_path)
    assert told.returncode == 0
    assert "prior over 41 classes, -110.3: every sample exits at depth 1" in told.stdout
    done = nbsr("run", "tiny.yaml", *vacuous, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "prior over 41 classes, -110.3: every sample exits at depth 1" in done.stdout
    assert "eta = -100 is no test" in done.stdout


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


def test_a_domain_beside_the_study_file_works_from_any_folder(tmp_path: Path) -> None:
    place(tmp_path / "mine", NAPS)
    short = ("--set", "data.seconds=0", "--set", "seeds=1")
    result = document(tmp_path, "mine/naps.yaml", *short, "--home", "results")
    assert result["trials"]["finished"] == 2, "in Ray's workers too"
    (nbsr_run,) = [
        run.info.run_id
        for run in MlflowClient(result["tracking_uri"]).search_runs(["1"])
        if run.data.tags.get("nbsr.model") == "nbsr"
    ]
    refused = nbsr("explain", nbsr_run, "--home", "results", cwd=tmp_path)
    assert refused.returncode == 2
    assert f"it ran from {tmp_path / 'mine'}: add --code {tmp_path / 'mine'} if you trust" in refused.stderr
    told = nbsr("explain", nbsr_run, "--home", "results", "--code", "mine", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "Mid-Expert" in told.stdout


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


def test_a_search_proposes_exactly_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "hunt.yaml").write_text(SEARCH)
    result = document(tmp_path, "hunt.yaml")
    assert result["trials"]["total"] == 8
    states = [trial.state.name for trial in journal(tmp_path).trials]
    assert states == ["COMPLETE"] * 8
    assert len(recorded(result)) == len({trial.user_attrs["nbsr.trial_key"] for trial in journal(tmp_path).trials})
    again = document(tmp_path, "hunt.yaml")
    assert again["trials"]["reused"] == 8
    assert len(journal(tmp_path).trials) == 8


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
