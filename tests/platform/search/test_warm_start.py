"""Searches that begin where earlier ones ended."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.search.feed import SearchFeed
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial, data_fingerprint

SPACE: dict[str, Any] = {
    "experts.hidden": {"choice": [[], [8]]},
    "graph.shape": {"choice": ["taxonomy", "layered"]},
    "graph.depth": {"int": [1, 3], "when": {"graph.shape": "layered"}},
    "lambda": {"float": [1e-6, 1e-2], "log": True},
    "training.learning_rate": {"float": [1e-4, 1e-2], "log": True},
}
DATA = {"train_patients": 82, "valid_patients": 82, "test_patients": 41, "draws": 0}


def study_of(name: str, space: dict[str, Any] | None = None, epochs: int = 2, **search: Any) -> Study:
    known = {"trials": 9, "objectives": {"valid/accuracy": "maximize", "valid/ece": "minimize"}, "sampler": "random"}
    searched = {**known, "space": SPACE if space is None else space, **search}
    said = {"name": name, "domain": "medical", "data": DATA, "training": {"epochs": epochs}, "models": {"nbsr": {}}}
    return Study.from_dict({**said, "search": searched})


def feed(home: Home, study: Study, url: str | None = None) -> SearchFeed:
    fingerprint = data_fingerprint(study)
    return SearchFeed.open(study, study_key(study, fingerprint), fingerprint, home, url)


def ask(search: SearchFeed) -> Trial:
    trial = search.next()
    assert trial is not None
    return trial


def end(search: SearchFeed, trial: Trial, accuracy: float, ece: float) -> None:
    metrics = {"valid/accuracy": accuracy, "valid/ece": ece}
    result = TrialResult(key=trial.key, status="finished", seconds=1.0, metrics=metrics, trial=asdict(trial))
    search.store.save(result)
    search.done(trial, result)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """With a search whose proposals 1 and 3 are beaten by no other."""
    home = Home(tmp_path)
    earlier = feed(home, study_of("earlier"))
    for accuracy, ece in [(0.5, 0.5), (0.9, 0.2), (0.4, 0.3), (0.8, 0.1)]:
        end(earlier, ask(earlier), accuracy, ece)
    assert earlier.pareto() == [1, 3]
    return home


def chosen(trial: Trial) -> tuple[Any, ...]:
    options, training = trial.options, trial.training
    graph = options["graph"]
    depth = graph["depth"] if graph["shape"] == "layered" else None
    rate, entropy = training["learning_rate"], options["objective"]["entropy"]
    return options["experts"]["hidden"], graph["shape"], depth, entropy, rate


def test_the_best_points_of_an_earlier_search_come_first(home: Home) -> None:
    earlier = feed(home, study_of("earlier"))
    best = [trial for trial, _ in earlier.ended() if trial.proposal in (1, 3)]
    search = feed(home, study_of("later", warm_start=["earlier"], sampler={"name": "random", "seed": 5}))
    assert search.notes == ["warm start from earlier: 2 points to try first"]
    assert search.next() is not None, "the same trials are reused from the store: the next one is new"
    assert [chosen(trial) for trial, _ in search.reused] == [chosen(trial) for trial in best]
    assert [trial.key for trial, _ in search.reused] == [trial.key for trial in best]


def test_they_are_measured_anew_where_the_study_differs(home: Home) -> None:
    earlier = feed(home, study_of("earlier"))
    best = [trial for trial, _ in earlier.ended() if trial.proposal in (1, 3)]
    search = feed(home, study_of("later", epochs=3, warm_start=["earlier"]))
    trials = [ask(search), ask(search)]
    assert [chosen(trial) for trial in trials] == [chosen(trial) for trial in best]
    assert {trial.key for trial in trials}.isdisjoint(trial.key for trial in best)


def test_points_stay_what_they_were_though_the_earlier_search_goes_on(home: Home) -> None:
    study = study_of("later", warm_start=["earlier"], sampler={"name": "random", "seed": 5})
    before = feed(home, study).first_points
    earlier = feed(home, study_of("earlier"))
    end(earlier, ask(earlier), 1.0, 0.0)
    again = feed(home, study)
    assert again.first_points == before
    assert again.notes == [], "it was said when it was done"


def test_what_lies_outside_the_space_is_left_out_with_the_reason(home: Home) -> None:
    narrow = {"training.learning_rate": {"float": [1.0, 2.0]}}
    search = feed(home, study_of("later", narrow, warm_start=["earlier"]))
    (note,) = search.notes
    assert note.startswith("warm start from earlier: 0 points to try first; left out: the space searches ")
    assert "training.learning_rate in {'float': [1.0, 2.0]" in note
    assert search.next() is not None, "the search goes on"


def test_a_name_that_nobody_knows_is_said_and_the_search_goes_on(home: Home) -> None:
    search = feed(home, study_of("later", warm_start=["never"]))
    assert search.notes == [
        f"warm start from never: {home.root} has neither a finished search nor a trial of that name"
    ]
    assert search.next() is not None


def test_a_single_trial_can_be_begun_with(home: Home) -> None:
    earlier = feed(home, study_of("earlier"))
    worst = next(trial for trial, _ in earlier.ended() if trial.proposal == 0)
    search = feed(home, study_of("later", warm_start=[worst.key], try_first=[{"lambda": 1e-3}]))
    assert search.first_points[0] == {"lambda": 1e-3}
    assert search.first_points[1]["training.learning_rate"] == worst.training["learning_rate"]


def test_searches_in_a_database_are_found_too(tmp_path: Path) -> None:
    home, url = Home(tmp_path), f"sqlite:///{tmp_path / 'searches.db'}"
    earlier = feed(home, study_of("earlier"), url)
    end(earlier, ask(earlier), 0.9, 0.1)
    search = feed(home, study_of("later", warm_start=["earlier"], sampler={"name": "random", "seed": 5}), url)
    assert search.notes == ["warm start from earlier: 1 point to try first"]
