"""Writing in the background, so that a slow tracking store holds up neither the workers nor the next study.

News of running trials are gathered for a moment and written in one go. They are a courtesy: what could not be written
of them is written with the trial's result, which alone is complained of where it cannot be recorded.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeVar

from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

# Seconds for which news of running trials are gathered: nobody reads faster, and a store has other things to do.
GATHERING = 2.0
# Seconds that are left for the last entries when somebody interrupts the run.
HURRY = 3.0

Answer = TypeVar("Answer")


class Journal(Protocol):
    """Where a study's trials are recorded; everything here may be repeated."""

    def begin(self, trial: Trial, epochs: Sequence[dict[str, float]]) -> None:
        """A trial is under way, and has come so far since the last word of it."""

    def record(self, trial: Trial, result: TrialResult) -> None:
        """A trial has ended."""

    def leave(self) -> None:
        """Nobody goes on with the trials that were begun and have not ended."""


@dataclass
class _Job:
    """Something to do on the recorder's thread; `closes` says that no more news of a study come after it."""

    work: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future)
    closes: bool = False


@dataclass
class _News:
    """What is to be recorded of one trial: epochs, or its result, which holds them all."""

    study: StudyNews
    trial: Trial
    epochs: list[dict[str, float]] = field(default_factory=list)
    result: TrialResult | None = None


class Recorder:
    """One thread that does all the writing of a run, in the order in which it is asked.

    What it does on its thread: the jobs that `do` is given (open the tracking store, begin a study's run there, finish
    it, write its report) and the news of trials that come through `news_of`. Because there is one thread, no job has to
    wait for, or be kept apart from, another one.

    What others may ask of it: `do`, whose future holds the answer; `news_of`, whose methods return at once. Leaving the
    `with` block waits until all is written. Who was interrupted does not wait for long: the next run writes the rest.
    """

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[_News | _Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="recorder")
        self._in_a_hurry = False

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._in_a_hurry = kind is not None and issubclass(kind, KeyboardInterrupt)
        self._todo.put(None)
        self._thread.join(HURRY if self._in_a_hurry else None)

    def do(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Have something done after all that was asked before."""
        job = _Job(work)
        self._todo.put(job)
        return job.answer

    def news_of(self, journal: Journal) -> StudyNews:
        """A door for the news of one study's trials."""
        return StudyNews(journal, self._todo)

    def _work(self) -> None:
        while True:
            gathered, job = self._gather()
            for news in gathered:
                if not self._in_a_hurry:
                    news.study.write(news, is_over=job is None or job.closes)
            if job is None:
                return
            self._do(job)

    def _gather(self) -> tuple[list[_News], _Job | None]:
        """News until the next job, by trial, and that job; None stands for the end.

        Waits for more until a trial ends or some time is over: then the job is to do nothing.
        """
        gathered: dict[tuple[str, int | None], _News] = {}
        until: float | None = None
        while True:
            try:
                wait = None if until is None else max(0.0, until - time.monotonic())
                news = self._todo.get(timeout=wait)
            except queue.Empty:
                return list(gathered.values()), _Job(lambda: None)
            if not isinstance(news, _News):
                return list(gathered.values()), news
            until = time.monotonic() + GATHERING if until is None else until
            known = gathered.setdefault((news.trial.key, news.trial.proposal), news)
            if known is not news:
                known.epochs += news.epochs
                known.result = news.result or known.result
            if news.result is not None:
                until = time.monotonic()  # no longer, but with what else is there

    def _do(self, job: _Job) -> None:
        if self._in_a_hurry and not job.closes:
            job.answer.cancel()
            return
        try:
            job.answer.set_result(job.work())
        except BaseException as error:  # whatever it is, somebody may wait for an answer
            job.answer.set_exception(error)


class StudyNews:
    """Takes the news of one study's trials, from whichever thread has them.

    Attributes:
        errors: what could not be recorded; complete when the study's last job is done.
    """

    def __init__(self, journal: Journal, todo: queue.SimpleQueue[_News | _Job | None]) -> None:
        self.journal, self._todo = journal, todo
        self.errors: list[str] = []
        self._is_away = False

    def started(self, trial: Trial) -> None:
        self._todo.put(_News(self, trial))

    def progressed(self, trial: Trial, epoch: dict[str, float]) -> None:
        self._todo.put(_News(self, trial, [epoch]))

    def ended(self, trial: Trial, result: TrialResult) -> None:
        self._todo.put(_News(self, trial, result=result))

    def close(self) -> None:
        """There are no more: whatever was begun and has not ended is left."""
        self._todo.put(_Job(self._leave, closes=True))

    def write(self, news: _News, *, is_over: bool) -> None:
        """On the recorder's thread."""
        if news.result is None:
            self._write_progress(news, is_over=is_over)
            return
        try:
            self.journal.record(news.trial, news.result)
            self._is_away = False
        except Exception as error:  # results are safe in the store; recording is repeated by the next run
            self.errors.append(f"{news.trial.name}: {''.join(traceback.format_exception_only(error)).strip()}")

    def _write_progress(self, news: _News, *, is_over: bool) -> None:
        if self._is_away or is_over:  # a store that is away was waited for long enough; a run that ends does not wait
            return
        try:
            self.journal.begin(news.trial, news.epochs)
        except Exception:
            self._is_away = True

    def _leave(self) -> None:
        if not self._is_away:
            with contextlib.suppress(Exception):  # the next run finds them open, and goes on with them
                self.journal.leave()
