"""One thread does all the writing of a run, in the order in which it is asked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import pytest
from nbsr_platform.tracking import recorder as recording
from nbsr_platform.tracking.recorder import Recorder
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial
from toys import flat_trial


class Written:
    """What was written, in order, and by which threads."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.threads: set[str] = set()

    def write(self, entry: str) -> str:
        self.entries.append(entry)
        self.threads.add(threading.current_thread().name)
        return entry

    def begin(self, trial: Trial, epochs: Sequence[dict[str, float]]) -> None:
        self.write(f"begin {trial.seed}")

    def record(self, trial: Trial, result: TrialResult) -> None:
        self.write(f"record {trial.seed}")

    def leave(self) -> None:
        self.write("leave")


def test_jobs_and_news_are_written_in_the_order_of_asking() -> None:
    written = Written()
    with Recorder() as recorder:
        opened = recorder.do(lambda: written.write("open"))
        for study in (0, 1):
            with closing(recorder.news_of(written)) as news:
                recorder.do(partial(written.write, f"study {study}"))
                news.ended(*flat_trial(seed=study))
            finished = recorder.do(partial(written.write, f"finish {study}"))
    assert opened.result() == "open"
    assert finished.done()
    assert written.entries == [
        *("open", "study 0", "record 0", "leave", "finish 0"),
        *("study 1", "record 1", "leave", "finish 1"),
    ]
    assert written.threads == {"recorder"}


def test_an_error_is_the_answer_of_its_job_and_stops_nobody() -> None:
    def fail() -> None:
        raise OSError("no disk")

    with Recorder() as recorder:
        failed, after = recorder.do(fail), recorder.do(lambda: 1)
    with pytest.raises(OSError, match="no disk"):
        failed.result()
    assert after.result() == 1


def test_who_is_interrupted_does_not_wait_for_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "HURRY", 0.1)
    written, recorder = Written(), Recorder()
    is_slow, release = threading.Event(), threading.Event()

    def slow() -> None:
        is_slow.set()
        release.wait(60)

    with pytest.raises(KeyboardInterrupt), recorder, closing(recorder.news_of(written)) as news:  # noqa: PT012
        recorder.do(slow)
        is_slow.wait(60)
        news.ended(*flat_trial())
        report = recorder.do(lambda: written.write("report"))
        raise KeyboardInterrupt
    assert not report.done(), "the store still takes its time"
    release.set()
    recorder._thread.join(10)
    assert report.cancelled()
    assert written.entries == ["leave"], "trials that nobody goes on with are closed all the same"
