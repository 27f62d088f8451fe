"""What a search makes of its trials' figures: missing ones fail a proposal alone, equal ones are one member."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.report.find import of_study
from nbsr_platform.search.feed import SearchFeed
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial, data_fingerprint
from processes import journal, nbsr

STUDY: dict[str, Any] = {
    "name": "hunt",
    "domain": "iris",
    "models": {"nbsr": {}},
    "search": {
        "trials": 5,
        "objectives": {"valid/accuracy": "maximize", "fast/eta": "minimize"},
        "sampler": {"name": "random", "seed": 7},
        "space": {"training.learning_rate": {"float": [1e-4, 1e-2], "log": True}},
    },
}
# Nobody is ever sure enough to answer, so that there is no accuracy of answers.
UNANSWERED = """
name: hunt
domain: iris
training: {epochs: 1}
evaluation: {max_vacuity: 1.0e-9}
models: {nbsr: {}}
search:
  trials: 4
  objectives: {test/accuracy_answered: maximize}
  sampler: {name: random, seed: 7}
  pruner: none
  space: {oracle_dim: {choice: [8, 16]}}
"""


def study_of(space: dict[str, Any] | None = None, **search: Any) -> Study:
    changed = {**STUDY["search"], **search, **({} if space is None else {"space": space})}
    return Study.from_dict({**STUDY, "search": changed})


def feed(home: Home, study: Study | None = None) -> SearchFeed:
    study = study or study_of()
    fingerprint = data_fingerprint(study)
    return SearchFeed.open(study, study_key(study, fingerprint), fingerprint, home)


def ask(feed: SearchFeed) -> Trial:
    trial = feed.next()
    assert trial is not None
    return trial


def end(feed: SearchFeed, trial: Trial, figures: dict[str, Any]) -> TrialResult:
    """As the driver does it."""
    result = TrialResult(trial.key, "finished", 1.0, metrics=figures, trial=dict(vars(trial)))
    result.trial.pop("key", None)
    feed.store.save(result)
    return feed.done(trial, result)


@pytest.mark.parametrize("missing", [{}, {"fast/eta": math.nan}, {"fast/eta": -math.inf}, {"fast/eta": None}])
def test_a_proposal_without_a_figure_fails_alone_and_the_search_goes_on(
    tmp_path: Path, missing: dict[str, Any]
) -> None:
    home, good = Home(tmp_path), {"valid/accuracy": 0.5, "fast/eta": -3.0}
    first = feed(home)
    assert end(first, ask(first), good).status == "finished"
    without = ask(first)
    counted = end(first, without, {"valid/accuracy": 0.9, **missing})
    reason = "search.objectives: 'fast/eta' is not among the figures: valid/accuracy"
    assert (counted.status, counted.last_words) == ("failed", reason)
    assert first.store.load(without.key).status == "finished", "it was trained, and is kept"
    again = feed(home)
    assert again.remaining == 3
    for _ in range(3):
        end(again, ask(again), good)
    assert again.next() is None
    told = again.optuna_study.trials
    assert [trial.state.name for trial in told] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
    assert told[1].user_attrs["nbsr.error"] == reason
    ended = feed(home).ended()
    assert [again.counted(result).status for _, result in ended].count("failed") == 1
    report = of_study(home, study_of())
    assert report.failed == [(without.name, reason)]
    assert len(report.finished) == 4
    assert report.notes == [f"{without.name} failed: {reason}"]


def test_a_result_without_a_figure_that_was_not_told_before_a_kill_is_told_by_the_next_run(tmp_path: Path) -> None:
    home = Home(tmp_path)
    killed = feed(home)
    trial = ask(killed)
    killed.store.save(TrialResult(trial.key, "finished", 1.0, metrics={"valid/accuracy": 0.5}, trial={}))
    again = feed(home)
    other = ask(again)
    assert other.key != trial.key
    assert [again.counted(result).status for _, result in again.reused] == ["failed"]
    assert again.optuna_study.trials[trial.proposal or 0].state.name == "FAIL"


def test_the_same_point_may_be_proposed_twice_at_once(tmp_path: Path) -> None:
    study = study_of({"oracle_dim": {"choice": [8, 16]}}, objectives={"valid/accuracy": "maximize"})
    search = feed(Home(tmp_path), study)
    under_way = [ask(search) for _ in range(5)]
    assert len({trial.key for trial in under_way}) <= 2
    for trial in under_way:
        end(search, trial, {"valid/accuracy": 0.5})
    assert [trial.state.name for trial in search.optuna_study.trials] == ["COMPLETE"] * 5


def test_of_proposals_that_tie_the_first_is_the_member(tmp_path: Path) -> None:
    search = feed(Home(tmp_path), study_of(trials=6))
    figures = [(0.5, -3.0), (0.9, -1.0), (0.5, -3.0), (0.9, -1.0), (0.4, -1.0), (0.9, -1.0)]
    trials = [ask(search) for _ in figures]
    for trial, (accuracy, eta) in reversed(list(zip(trials, figures, strict=True))):
        end(search, trial, {"valid/accuracy": accuracy, "fast/eta": eta})
    assert search.pareto() == search.promising() == [0, 1]


@pytest.mark.slow
def test_a_search_for_a_figure_that_no_trial_gets_says_which_there_are_every_time(tmp_path: Path) -> None:
    (tmp_path / "hunt.yaml").write_text(UNANSWERED)
    for _ in range(2):
        done = nbsr("run", "hunt.yaml", cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stderr == ""
        assert "and 1 more: search.objectives: 'test/accuracy_answered' is not among the figures: " in done.stdout
        assert "valid/accuracy" in done.stdout
        assert [trial.state.name for trial in journal(tmp_path).trials] == ["FAIL"] * 4
