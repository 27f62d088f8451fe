"""What is done with what is heard of a study's trials: store first, then the feed, then everybody else.

A result is saved first, then told to the search, then recorded in MLflow, and each of these steps is repeated without
harm, so a run that was killed at any moment is finished by starting it again. Who runs the trials, and where, is the
executor's business.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from nbsr_platform.base.credentials import scrubbed
from nbsr_platform.execution.feeds import Epoch, Feed
from nbsr_platform.tracking.recorder import StudyNews
from nbsr_platform.trials.ended_trials import EndedTrials
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import StaleError, Trial


class Watcher(Protocol):
    """Who is shown what happens: progress bars, tests."""

    def started(self, trial: Trial) -> None: ...

    def progressed(self, trial: Trial, epoch: Epoch) -> None: ...

    def ended(self, trial: Trial, result: TrialResult) -> None: ...


class Coordinator:
    """Between a feed and an executor: hands out the trials of one study, and keeps what becomes of them.

    One thread at a time uses it: the main thread, or that of the warm workers while the main thread waits for them.

    Attributes:
        ended_trials: grows as trials end, so that it tells the truth after Ctrl-C too.
        error: what went wrong in the driver itself (a full disk, a lost database); it ends the study. Left to an
            executor it would be the trial's failure, and a good result be tried again until it is given up.
    """

    def __init__(
        self, feed: Feed, study: str, home: Home, news: StudyNews, watcher: Watcher, ended_trials: EndedTrials
    ) -> None:
        self.feed, self.study, self.home = feed, study, home
        self.news, self.watcher, self.ended_trials = news, watcher, ended_trials
        self.store = ResultStore(home.trials)
        self.error: Exception | None = None

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """The first thing that goes wrong in here ends the study."""
        try:
            yield
        except Exception as error:
            self.error = self.error or error

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def next(self) -> Trial | None:
        """The next trial to run; None when there is no more, or the study has to end."""
        trial = None
        if self.error is None:
            with self.guard():
                trial = self.feed.next()
        return trial

    def started(self, trial: Trial) -> None:
        self.watcher.started(trial)
        self.news.started(trial)

    def progressed(self, trial: Trial, epochs: Sequence[Epoch], *, has_ended: bool) -> Epoch | None:
        """Pass on new epochs; returns the one after which the trial is to be pruned, None if it goes on."""
        for epoch in epochs:
            self.watcher.progressed(trial, epoch)
            self.news.progressed(trial, epoch)
            prune = False
            with self.guard():
                prune = not has_ended and self.feed.should_prune(trial, epoch)
            if prune:
                return epoch
        return None

    def ended(self, trial: Trial, result: TrialResult, before_blame: Callable[[], None] = lambda: None) -> None:
        """Keep a result; nothing more is kept once something went wrong in the driver.

        Args:
            trial: what was run.
            result: what became of it.
            before_blame: raises where a failure is not the trial's own.
        """
        if self.error is not None:
            return  # whoever runs the study again goes on from what was kept until then
        with self.guard():
            if result.status == "stale":
                raise StaleError(result.error)
            if result.status == "failed":
                before_blame()
            self._keep(trial, result)

    def _keep(self, trial: Trial, result: TrialResult) -> None:
        from nbsr_platform.trials.checkpoints import Checkpoints  # needs torch, as what was learned does

        if result.status == "finished":
            self.store.save(result)
        elif result.status == "failed":
            result.error = scrubbed(result.error or "")
            self.store.save_weights(result)
        counted = self.feed.done(trial, result)
        if counted.status == "failed":
            log = self.home.log(self.study, trial.key)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"{trial.name}\n{counted.error}\n")
        self.ended_trials.add(trial, counted)
        self.ended_trials.judged_again += result.was_judged_again
        Checkpoints.of(self.home.checkpoints, trial).end(len(result.epochs) if result.status == "finished" else None)
        self.ended_trials.ended_at.append(time.monotonic())
        result.state = None
        self.news.ended(trial, result)
        self.watcher.ended(trial, counted)
