"""Searches that obey constraints, and searches that begin where they are told to."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.report.find import of_study
from nbsr_platform.search.feed import SearchFeed
from nbsr_platform.study.problems import StudyError
from nbsr_platform.study.rehearsal import rehearse
from nbsr_platform.study.search_options import excess
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial, data_fingerprint

SEARCH: dict[str, Any] = {
    "trials": 6,
    "objectives": {"valid/accuracy": "maximize"},
    "sampler": {"name": "random", "seed": 7},
    "space": {
        "graph.shape": {"choice": ["taxonomy", "layered"]},
        "graph.depth": {"int": [1, 3], "when": {"graph.shape": "layered"}},
        "training.learning_rate": {"float": [1e-4, 1e-2], "log": True},
    },
}


def study_of(**search: Any) -> Study:
    data = {"train_patients": 82, "valid_patients": 82, "test_patients": 41, "draws": 0}
    known = {"name": "hunt", "domain": "medical", "data": data, "models": {"nbsr": {}}}
    return Study.from_dict({**known, "search": {**SEARCH, **search}})


def feed(home: Home, study: Study) -> SearchFeed:
    fingerprint = data_fingerprint(study)
    return SearchFeed.open(study, study_key(study, fingerprint), fingerprint, home)


def ask(search: SearchFeed) -> Trial:
    trial = search.next()
    assert trial is not None
    return trial


def end(search: SearchFeed, trial: Trial, metrics: dict[str, Any]) -> TrialResult:
    result = TrialResult(key=trial.key, status="finished", seconds=1.0, metrics=metrics, trial=asdict(trial))
    search.store.save(result)
    return search.done(trial, result)


@given(figure=st.floats(-1e6, 1e6), limit=st.floats(-1e6, 1e6))
def test_a_figure_keeps_a_bound_or_goes_beyond_it_by_so_much(figure: float, limit: float) -> None:
    assert (excess(f"<= {limit!r}", figure) <= 0) == (figure <= limit)
    assert (excess(f">={limit!r}", figure) <= 0) == (figure >= limit)
    assert excess(f"<= {limit!r}", figure) == -excess(f">= {limit!r}", figure)


def test_what_goes_beyond_a_constraint_is_no_answer_whatever_its_objectives(tmp_path: Path) -> None:
    search = feed(Home(tmp_path), study_of(constraints={"valid/ece": "<= 0.05", "test/coverage": ">= 0.9"}))
    figures = [(0.99, 0.2, 1.0), (0.98, 0.01, 0.5), (0.7, 0.05, 0.9), (0.6, 0.0, 1.0)]
    for accuracy, ece, coverage in figures:
        end(search, ask(search), {"valid/accuracy": accuracy, "valid/ece": ece, "test/coverage": coverage})
    assert search.pareto() == search.promising() == [2]
    assert [proposal.feasible for proposal in search.proposals()] == [False, False, True, True]
    assert search.optuna_study.trials[0].constraints == pytest.approx({"valid/ece": 0.15, "test/coverage": -0.1})


def test_where_nothing_keeps_the_constraints_there_is_no_answer(tmp_path: Path) -> None:
    search = feed(Home(tmp_path), study_of(constraints={"valid/ece": "<= 0.05"}))
    end(search, ask(search), {"valid/accuracy": 0.9, "valid/ece": 0.2})
    assert search.pareto() == search.promising() == []


def test_a_proposal_without_the_constrained_figure_fails_alone_and_says_so(tmp_path: Path) -> None:
    search = feed(Home(tmp_path), study_of(constraints={"valid/ece": "<= 0.05"}))
    result = end(search, ask(search), {"valid/accuracy": 0.9, "valid/ece": None})
    assert result.status == "failed"
    assert "search.constraints: 'valid/ece' is not among the figures: valid/accuracy" in str(result.error)
    assert search.next() is not None


def test_an_end_that_is_told_again_after_a_kill_changes_nothing(tmp_path: Path) -> None:
    study, metrics = study_of(constraints={"valid/ece": "<= 0.05"}), {"valid/accuracy": 0.9, "valid/ece": 0.2}
    killed = feed(Home(tmp_path), study)
    trial = ask(killed)
    proposal = killed.running[trial.proposal]
    result = TrialResult(key=trial.key, status="finished", seconds=1.0, metrics=dict(metrics), trial={})
    killed._set_constraints(proposal, result)  # and then the driver is gone
    again = feed(Home(tmp_path), study)
    taken_up = ask(again)
    assert (taken_up.proposal, taken_up.key) == (trial.proposal, trial.key)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end(again, taken_up, dict(metrics))
    (told,) = again.optuna_study.trials
    assert told.state.name == "COMPLETE"
    assert told.constraints == pytest.approx({"valid/ece": 0.15})


def test_samplers_learn_where_constraints_are_kept(tmp_path: Path) -> None:
    """The objective rises to the right, and the constraint forbids all but the left quarter of a logarithmic range.

    The best point lies on the bound, so that about half of the proposals around it go beyond.
    """
    shares = {}
    for told in (True, False):
        constraints = {"valid/ece": "<= 0"} if told else {}
        sampler = {"name": "tpe", "seed": 1}
        search = feed(Home(tmp_path / str(told)), study_of(constraints=constraints, trials=40, sampler=sampler))
        beyond = []
        for _ in range(40):
            trial = ask(search)
            rate = float(trial.training["learning_rate"])
            end(search, trial, {"valid/accuracy": rate, "valid/ece": rate - 3e-4})
            beyond.append(rate > 3e-4)
        shares[told] = sum(beyond[10:]) / 30
    assert shares[True] < shares[False] - 0.25, shares


def test_a_search_begins_with_the_points_it_is_told(tmp_path: Path) -> None:
    first = [
        {"graph.shape": "layered", "graph.depth": 3, "training.learning_rate": 0.002},
        {"training.learning_rate": 0.01},
    ]
    search = feed(Home(tmp_path), study_of(try_first=first))
    trials = [ask(search) for _ in range(3)]
    assert trials[0].options["graph"]["shape"] == "layered"
    assert trials[0].options["graph"]["depth"] == 3
    assert [trial.training["learning_rate"] for trial in trials[:2]] == [0.002, 0.01]
    assert trials[2].training["learning_rate"] not in (0.002, 0.01)
    others = feed(Home(tmp_path / "plain"), study_of())
    plain = [ask(others) for _ in range(3)]
    assert trials[2].training == plain[2].training, "what comes after them is proposed as it would have been"


def test_lists_among_choices_can_be_tried_first(tmp_path: Path) -> None:
    space = {"experts.hidden": {"choice": [[], [8], [8, 4]]}}
    search = feed(Home(tmp_path), study_of(space=space, try_first=[{"experts.hidden": [8, 4]}]))
    assert ask(search).options["experts"]["hidden"] == [8, 4]


@pytest.mark.parametrize("name", ["tpe", "gp", "nsga2", "nsga3", "qmc", "random"])
def test_every_sampler_proposes_the_same_after_a_kill(name: str, tmp_path: Path) -> None:
    study = study_of(sampler={"name": name, "seed": 3}, trials=14, constraints={"valid/ece": "<= 0.1"})

    def propose(search: SearchFeed, count: int) -> list[dict[str, Any]]:
        found = []
        for _ in range(count):
            trial = ask(search)
            rate = float(trial.training["learning_rate"])
            end(search, trial, {"valid/accuracy": rate, "valid/ece": 20 * rate})
            found.append({**trial.training, **trial.options["graph"]})
        return found

    whole = propose(feed(Home(tmp_path / "whole"), study), 14)
    parts = propose(feed(Home(tmp_path / "parts"), study), 12) + propose(feed(Home(tmp_path / "parts"), study), 2)
    assert parts == whole


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"constraints": {"valid/ece": "< 0.1"}}, "search.constraints.valid/ece"),
        ({"constraints": {"valid/ece": 0.1}}, "search.constraints.valid/ece"),
        ({"constraints": {"ece": "<= 0.1"}}, "search.constraints"),
        ({"constraints": {"valid/ece": "<= 1.2.3"}}, "a bound in quotes, such as '<= 40' or '>= 0.9'"),
        ({"try_first": {"graph.depth": 2}}, "search.try_first"),
        ({"try_first": [{"graph.deep": 2}]}, "did you mean 'graph.depth'?"),
        ({"try_first": [{"training.learning_rate": 1.0}]}, "a value of its space"),
        ({"try_first": [{"graph.shape": "taxonomy", "graph.depth": 2}]}, "does not count at this point"),
    ],
)
def test_what_cannot_be_meant_is_said_with_its_key(search: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyError) as caught:
        study_of(**search)
    assert said in str(caught.value)


def test_a_constraint_on_an_unknown_figure_is_found_before_anything_runs() -> None:
    with pytest.raises(StudyError) as caught:
        rehearse(study_of(constraints={"valid/eec": "<= 0.1"}))
    assert "search.constraints.valid/eec" in str(caught.value)
    assert "did you mean 'valid/ece'?" in str(caught.value)


def test_a_report_says_how_many_go_beyond(tmp_path: Path) -> None:
    from nbsr_platform.report.verdicts import answer

    home, study = Home(tmp_path), study_of(constraints={"valid/ece": "<= 0.05"}, trials=2)
    search = feed(home, study)
    for ece in (0.2, 0.01):
        end(search, ask(search), {"valid/accuracy": 0.9, "valid/ece": ece})
    said = " ".join(answer(of_study(home, study)))
    assert "with valid/ece <= 0.05 (1 of 2 go beyond)" in said
