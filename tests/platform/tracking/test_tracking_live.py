"""A trial's run is there as soon as it begins, and its epochs while it trains; each of them once, whoever is killed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from nbsr_platform.tracking import recorder as recording
from nbsr_platform.tracking.names import epoch_figures, trial_figures, trial_parameters
from nbsr_platform.tracking.recorder import Recorder
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial
from processes import NAPS, document, place, running, wait_for
from records import Killed, children, histories, interrupt
from toys import ToyStudy, flat_trial

STUDY = ToyStudy()


def test_a_trial_under_way_shows_what_it_is_and_how_far(tracker: Tracker) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial(epochs=5)
    run_id = tracker.begin(parent, trial)
    (run,) = children(tracker, parent)
    assert (run.info.run_id, run.info.status, run.data.tags["nbsr.status"]) == (run_id, "RUNNING", "running")
    assert run.data.params == trial_parameters(trial, None)
    for epochs in (result.epochs[:2], result.epochs[1:3]):  # the second again: its worker was lost
        assert tracker.begin(parent, trial, epochs) == run_id
    logged = {(name, step): value for name, points in histories(tracker, run_id).items() for step, value in points}
    assert logged == epoch_figures(result.epochs[:3])


def test_begun_and_recorded_costs_no_reads(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial(epochs=4)
    made = interrupt(tracker, monkeypatch, 1000)
    for name in ("get_run", "search_runs", "get_metric_history", "get_experiment_by_name"):
        monkeypatch.setattr(tracker.client, name, lambda *_, **__: pytest.fail("not needed"))
    tracker.begin(parent, trial, result.epochs[:2])
    tracker.record(parent, trial, result, None, with_artifacts=False)
    assert made == ["create_run", "log_batch", "log_text", "log_batch", "set_terminated"]


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_a_live_recording_killed_anywhere_is_finished_by_the_next(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    trial, result = flat_trial(epochs=6, figures=3)
    if status == "failed":
        result = replace(result, status="failed", error="ValueError: no")

    def record(tracker: Tracker, parent: str, epochs: Sequence[dict[str, float]]) -> str:
        for epoch in epochs:
            tracker.begin(parent, trial, [epoch])
        return tracker.record(parent, trial, result, None, with_artifacts=False)

    for moment in range(100):
        first = Tracker(uri, tmp_path / "artifacts")
        parent = first.study_run(STUDY, f"study{moment}")
        interrupt(first, monkeypatch, moment)
        try:
            record(first, parent, result.epochs)
        except Killed:
            finished = False
        else:
            finished = True
        monkeypatch.undo()
        second = Tracker(uri, tmp_path / "artifacts")
        assert second.study_run(STUDY, f"study{moment}") == parent
        # It trains again from the start, and an epoch never takes as long twice.
        slower = [{**epoch, "seconds": epoch.get("seconds", 0.0) + 1} for epoch in result.epochs]
        run_id = record(second, parent, slower)
        (run,) = children(second, parent)
        assert (run.info.run_id, run.info.status) == (run_id, "FAILED" if status == "failed" else "FINISHED")
        logged = sorted((name, step) for name, points in histories(second, run_id).items() for step, _ in points)
        assert logged == sorted(trial_figures(result))
        assert run.data.params == trial_parameters(trial, result)
        assert run.data.tags["nbsr.status"] == status
        if finished:
            assert moment >= 14
            return
    pytest.fail("never finished")


def test_what_nobody_goes_on_with_is_closed_and_opened_again(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial(epochs=3)
    run_id = tracker.begin(parent, trial, result.epochs[:1])
    tracker.leave(parent)
    assert tracker.client.get_run(run_id).info.status == "KILLED"
    later = Tracker(uri, tmp_path / "artifacts")
    assert later.begin(parent, trial, result.epochs[:2]) == run_id
    assert later.client.get_run(run_id).info.status == "RUNNING"
    assert later.record(parent, trial, result, None, with_artifacts=False) == run_id
    later.leave(parent)
    assert later.client.get_run(run_id).info.status == "FINISHED"


class Journal:
    """What a recorder had written, in order."""

    def __init__(self, *, away: bool = False) -> None:
        self.written: list[Any] = []
        self.away = away
        self.waits = threading.Event()

    def begin(self, trial: Trial, epochs: Sequence[dict[str, float]]) -> None:
        self.written.append(("begin", trial.seed, len(epochs)))
        if self.away:
            raise ConnectionError

    def record(self, trial: Trial, result: TrialResult) -> None:
        self.waits.wait(10)
        self.written.append(("record", trial.seed))

    def leave(self) -> None:
        self.written.append("leave")


def test_news_are_gathered_and_a_result_says_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "GATHERING", 0.05)
    journal, (trial, result) = Journal(), flat_trial(epochs=3)
    others = [replace(trial, seed=seed) for seed in (1, 2)]
    with Recorder() as recorder, closing(recorder.news_of(journal)) as news:
        news.ended(trial, result)  # keeps the store busy
        time.sleep(0.2)
        for other in others:
            news.started(other)
            for epoch in result.epochs:
                news.progressed(other, epoch)
        news.ended(others[0], result)
        journal.waits.set()
        wait_for(lambda: ("begin", 2, 3) in journal.written, 10)
    assert journal.written == [("record", trial.seed), ("record", 1), ("begin", 2, 3), "leave"]


def test_news_that_cannot_be_written_are_no_reason_to_complain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "GATHERING", 0.05)
    journal, (trial, result) = Journal(away=True), flat_trial(epochs=3)
    journal.waits.set()
    with Recorder() as recorder, closing(recorder.news_of(journal)) as news:
        news.started(trial)
        wait_for(lambda: journal.written, 10)
        news.progressed(trial, result.epochs[0])
        time.sleep(0.2)
        news.ended(trial, result)
    assert news.errors == []
    assert journal.written == [("begin", trial.seed, 0), ("record", trial.seed), "leave"]


@pytest.mark.slow
def test_a_study_killed_while_its_trials_show_has_every_epoch_once(tmp_path: Path) -> None:
    folder = place(tmp_path / "live", NAPS.replace("seeds: 3", "seeds: 1"))
    uri = f"sqlite:///{folder}/.nbsr/mlflow.db"

    def shown() -> list[Any]:
        client = MlflowClient(uri)
        names = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(names, "tags.`nbsr.status` = 'running'")
        return [run for run in runs if "train/loss" in run.data.metrics]

    with running(folder, "naps.yaml", "--local") as driver:
        wait_for(lambda: (folder / ".nbsr" / "mlflow.db").exists())
        (under_way,) = wait_for(shown)
        driver.send_signal(signal.SIGKILL)
    assert under_way.info.status == "RUNNING"
    result = document(folder, "naps.yaml", "--local")
    client = MlflowClient(uri)
    again = client.get_run(under_way.info.run_id)
    assert again.info.status == "FINISHED"
    steps = [point.step for point in client.get_metric_history(again.info.run_id, "train/loss")]
    assert sorted(steps) == list(range(20)), result
