"""A search grows: asked for more, it goes on from what it has, under the same name, in the same run."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.cluster.jobs import submission_key
from nbsr_platform.report import show_as
from nbsr_platform.report.find import of_study
from nbsr_platform.search.feed import SearchFeed
from nbsr_platform.study.study import Study
from nbsr_platform.tracking.names import PARETO
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.trial import data_fingerprint
from processes import SEARCH, document, journal, nbsr, recorded, running, wait_for
from searches import finish
from toys import ToyStudy, flat_trial

STUDY: dict[str, Any] = {
    "name": "hunt",
    "domain": "iris",
    "models": {"mlp": {}, "nbsr": {}},
    "search": {
        "model": "mlp",
        "trials": 4,
        "objectives": {"valid/accuracy": "maximize"},
        "sampler": {"name": "random", "seed": 7},
        "space": {"training.learning_rate": {"float": [1e-4, 1e-2], "log": True}},
    },
}


def study_of(search: dict[str, Any] | None = None, **said: Any) -> Study:
    return Study.from_dict({**STUDY, **said, "search": {**STUDY["search"], **(search or {})}})


def feed(home: Home, study: Study) -> SearchFeed:
    fingerprint = data_fingerprint(study)
    return SearchFeed.open(study, study_key(study, fingerprint), fingerprint, home)


@pytest.mark.parametrize(
    "changed",
    [
        {"search": {"trials": 9}},
        {"search": {"promising": 2}},
        {"seeds": [0, 1, 2]},
        {"question": "What else?"},
        {"models": {"mlp": {}}},
        {"resources": {"concurrency": 1}},
    ],
    ids=lambda changed: str(changed),
)
def test_what_changes_no_proposal_is_the_same_search(changed: dict[str, Any]) -> None:
    assert study_key(study_of(**changed), "abc") == study_key(study_of(), "abc")


@pytest.mark.parametrize(
    "changed",
    [
        {"search": {"sampler": {"name": "random", "seed": 8}}},
        {"search": {"objectives": {"valid/nll": "minimize"}}},
        {"search": {"space": {"training.learning_rate": {"float": [1e-4, 1e-1], "log": True}}}},
        {"search": {"pruner": {"name": "median", "metric": "valid/nll", "direction": "minimize"}}},
        {"seeds": [1]},
        {"name": "chase"},
        {"models": {"mlp": {"oracle_dim": 3}}},
    ],
    ids=lambda changed: str(changed),
)
def test_what_changes_proposals_is_another_search(changed: dict[str, Any]) -> None:
    assert study_key(study_of(**changed), "abc") != study_key(study_of(), "abc")


def test_more_trials_go_on_from_those_that_are_done(tmp_path: Path) -> None:
    few, home = study_of(), Home(tmp_path)
    first = finish(feed(home, few))
    grown = feed(home, study_of({"trials": 7}))
    assert (grown.asked, grown.remaining, len(grown.ended())) == (4, 3, 4)
    more = finish(grown)
    assert first + more == finish(feed(Home(tmp_path / "at once"), study_of({"trials": 7})))


def test_fewer_trials_than_are_done_lose_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    finish(feed(home, study_of({"trials": 7})))
    fewer = feed(home, study_of())
    assert (fewer.asked, fewer.remaining, len(fewer.ended())) == (7, 0, 7)
    assert finish(fewer) == []
    assert len(of_study(home, study_of()).finished) == 7


def test_a_search_that_grew_is_another_submission() -> None:
    """The cluster would say that it was submitted already."""
    assert submission_key(study_of({"trials": 7})) != submission_key(study_of())


def test_a_trial_that_left_the_pareto_set_loses_its_mark(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    parent = tracker.study_run(ToyStudy(), "abc")
    trial, result = flat_trial()
    run_id = tracker.record_member(parent, trial, result, None, with_artifacts=False)
    later = Tracker(uri, tmp_path / "artifacts")
    for _ in range(2):  # a second time, after a kill
        later.unmark_members(parent, except_for={"another"})
        assert later.client.get_run(run_id).data.tags[PARETO] == "false"
    assert later.record_member(parent, trial, result, None, with_artifacts=False) == run_id
    assert later.client.get_run(run_id).data.tags[PARETO] == "true", "and gets it back"


def test_another_study_of_the_same_name_keeps_its_report(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for key in ("a", "b", "b"):
        report = home.report_of("hunt", key)
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(key)
        assert show_as(home.report("hunt"), report).read_text() == key
    assert home.report_of("hunt", "a").read_text() == "a"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_search_killed_while_it_grows_is_the_search_that_was_asked_for_at_once(tmp_path: Path) -> None:
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    for folder in (calm, wild):
        folder.mkdir()
        (folder / "hunt.yaml").write_text(SEARCH)
    expected = document(calm, "hunt.yaml")
    begun = document(wild, "hunt.yaml", "--set", "search.trials=3")
    assert begun["trials"]["total"] == 3
    trials = wild / ".nbsr" / "trials"
    with running(wild, "hunt.yaml") as driver:
        wait_for(lambda: len(list(trials.glob("[!.]*"))) > 3)
        driver.send_signal(signal.SIGKILL)
    time.sleep(2)  # Ray's own processes notice that their driver is gone
    grown = document(wild, "hunt.yaml")
    assert (grown["run_id"], grown["trials"]["total"]) == (begun["run_id"], 8)
    assert recorded(grown) == recorded(expected)
    assert [trial.params for trial in journal(wild).trials] == [trial.params for trial in journal(calm).trials]
    fewer = nbsr("run", "hunt.yaml", "--set", "search.trials=2", cwd=wild)
    assert fewer.returncode == 0, fewer.stderr
    assert "has 8 proposals already, more than search.trials: 2" in fewer.stdout.replace("\n", " ")
