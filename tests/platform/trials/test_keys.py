"""Two keys: what is in which, what is in neither, and how results that differ only there are told apart."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.report import StudyResults
from nbsr_platform.study.study import Study, load
from nbsr_platform.trials import environment, keys
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial, grid

from benchmarks.report import made_up_result

SHIPPED = Path(__file__).parents[3] / "studies"


def trial_of(**changes: Any) -> Trial:
    values: dict[str, Any] = {"name": "flowers", "domain": "iris", "training": {"epochs": 2}, "models": {"mlp": {}}}
    (trial,) = grid(Study.from_dict({**values, **changes}), "abc")
    return trial


BOTH = {
    "the data": lambda trial: replace(trial, data_fingerprint="def"),
    "an option of the data": lambda trial: replace(trial, data={"test": 1}),
    "the model": lambda trial: replace(trial, kind="nbsr"),
    "an option of the model": lambda trial: replace(trial, options={**trial.options, "hidden": [3]}),
    "the training": lambda trial: replace(trial, training={**trial.training, "epochs": 3}),
    "the seed": lambda trial: replace(trial, seed=7),
    "the code that trains": lambda trial: replace(trial, code="other"),
    "a file": lambda trial: replace(trial, files={"weights": "abc"}),
    "the environment, on request": lambda trial: replace(trial, rounding={"torch": "1"}),
}
FIGURES = {
    "an evaluation option": lambda trial: replace(trial, evaluation={**trial.evaluation, "eta": -3.0}),
    "the code that judges": lambda trial: replace(trial, judging_code="other"),
}
NEITHER = {
    "the study's name": lambda trial: replace(trial, study="other"),
    "the label": lambda trial: replace(trial, label="other"),
    "who proposed it": lambda trial: replace(trial, proposal=3),
    "where the study is": lambda trial: replace(trial, beside="/elsewhere"),
}


@pytest.mark.parametrize("kind", [*BOTH, *FIGURES, *NEITHER])
def test_each_part_of_a_trial_is_in_the_keys_that_it_determines(kind: str) -> None:
    trial = trial_of()
    other = {**BOTH, **FIGURES, **NEITHER}[kind](trial)
    assert (other.weights_key != trial.weights_key) == (kind in BOTH)
    assert (other.key != trial.key) == (kind not in NEITHER)
    assert trial.key != trial.weights_key


def test_code_that_judges_leaves_the_weights_and_code_that_trains_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_code(trains: str, judges: str) -> Trial:
        monkeypatch.setattr(keys, "library_fingerprints", lambda domains: (trains, judges))
        for cached in (keys.training_code, keys.judging_code):
            cached.cache_clear()
        return trial_of()

    before, judged, trained = with_code("a", "b"), with_code("a", "c"), with_code("d", "b")
    monkeypatch.undo()
    keys.training_code.cache_clear()
    keys.judging_code.cache_clear()
    assert judged.weights_key == before.weights_key
    assert len({before.key, judged.key, trained.key}) == 3
    assert trained.weights_key != before.weights_key
    assert before.key != trial_of().key


def test_another_version_of_a_library_is_in_no_key_unless_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = {"resources": {"same_environment": True}}
    before, before_apart = trial_of(), trial_of(**apart)
    real = environment._versions()
    monkeypatch.setattr(environment, "_versions", lambda: {**real, "torch": "99.0"})
    assert (trial_of().key, trial_of().weights_key) == (before.key, before.weights_key)
    other = trial_of(**apart)
    assert other.key != before_apart.key
    assert other.weights_key != before_apart.weights_key


def test_a_report_tells_apart_what_was_made_or_trained_with_another_version() -> None:
    study = Study.from_dict({"name": "flowers", "domain": "iris", "seeds": 2, "models": {"mlp": {}}})
    trials = grid(study, "abc")

    def notes(*changes: dict[str, Any]) -> str:
        made: list[TrialResult] = []
        for trial, change in zip(trials, changes, strict=True):
            result = made_up_result(trial, random.Random(trial.seed))
            made.append(replace(result, environment={"torch": "2.0", "threads": "1"}, **change))
        return "; ".join(StudyResults(study, list(zip(trials, made, strict=True))).notes)

    assert "different environments" not in notes({}, {})
    told = notes({}, {"trained_in": {"torch": "1.9", "threads": "1"}})
    assert "results were made in different environments" in told
    assert "torch 2.0 and 1.9" in told


def test_code_is_looked_at_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    trial_of()
    monkeypatch.setattr(keys, "library_fingerprints", lambda domains: pytest.fail("looked again"))
    trial_of()


# But for the one with a module of its own, which may stand in one place alone.
MOVABLE = [path for path in sorted(SHIPPED.rglob("*.yaml")) if not list(path.parent.glob("*.py"))]


@pytest.mark.parametrize("path", MOVABLE, ids=lambda path: str(path.relative_to(SHIPPED)))
def test_a_shipped_study_has_the_same_trials_wherever_it_lies(path: Path, tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "studies")
    here, there = (load(place) for place in (path, tmp_path / "studies" / path.relative_to(SHIPPED)))
    for mine, moved in zip(here.studies, there.studies, strict=True):
        if mine.search is None:
            assert [trial.key for trial in grid(moved, "none")] == [trial.key for trial in grid(mine, "none")]
