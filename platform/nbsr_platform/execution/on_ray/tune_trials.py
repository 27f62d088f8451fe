"""The trials of one study under the numbers that Ray Tune gives them, from which Tune's reports are understood."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from nbsr_platform.execution.coordinator import Coordinator
from nbsr_platform.execution.on_ray.watch import LAST_MOMENTS, check_ray
from nbsr_platform.execution.worker import RESULT
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial


class TuneTrials:
    """Passes on to a coordinator what Tune hears of the workers.

    Attributes:
        over: gets an entry when all trials have ended, or nobody runs them any more.
        under_way: Tune's numbers of the trials that were handed out and have not ended.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.over: SimpleQueue[None] = SimpleQueue()
        self.under_way: set[str] = set()
        self._is_exhausted = False
        self._trials: dict[str, Trial] = {}
        self._epochs: dict[str, list[dict[str, float]]] = {}
        self._results: dict[str, TrialResult] = {}
        self._pruned: set[str] = set()

    def next(self, trial_id: str) -> Trial | None:
        """The next trial to run, from now on known by that number; None if there are no more."""
        trial = None if self._is_exhausted else self.coordinator.next()
        if trial is None:
            self._is_exhausted = True  # Tune asks many times a second
        else:
            self._trials[trial_id] = trial
            self.under_way.add(trial_id)
        return trial

    def started(self, trial_id: str) -> None:
        """Once more where a lost worker's trial starts again."""
        if trial_id not in self._epochs:
            self.coordinator.started(self._trials[trial_id])
        self._epochs[trial_id] = []

    def wants_to_prune(self, trial_id: str, report: dict[str, Any]) -> bool:
        """Of every report but the last, before `reported`."""
        trial, news = self._trials[trial_id], report.get("epochs", [])
        last = self.coordinator.progressed(trial, news, has_ended=bool(report.get("done")))
        self._epochs.setdefault(trial_id, []).extend(news if last is None else news[: news.index(last) + 1])
        if last is not None:
            self._pruned.add(trial_id)
        return last is not None

    def reported(self, trial_id: str, report: dict[str, Any]) -> None:
        """Take the result out of the last report: Tune keeps reports for as long as it runs.

        The last report is not shown to `wants_to_prune`, so its epochs are passed on here.
        """
        if RESULT in report:
            self._results[trial_id] = report.pop(RESULT)
            self.coordinator.progressed(self._trials[trial_id], report.get("epochs", []), has_ended=True)

    def completed(self, trial_id: str) -> Trial:
        """A trial has come to its end, or was pruned."""
        trial = self._trials[trial_id]
        result = self._results.pop(trial_id, None)
        if result is None:
            epochs = self._epochs.get(trial_id, [])
            seconds = sum(epoch.get("seconds", 0.0) for epoch in epochs)
            if trial_id in self._pruned:
                result = TrialResult(trial.key, "pruned", seconds, epochs)
            else:
                result = TrialResult(trial.key, "failed", seconds, epochs, error="the worker ended without a result")
        self.coordinator.ended(trial, result, before_blame=check_ray)
        self.under_way.discard(trial_id)
        return trial

    def lost(self, trial_id: str, attempts: int, check_wanted: Callable[[], None]) -> Trial:
        """A trial's workers were lost more often than allowed."""
        trial = self._trials[trial_id]
        why = f"the worker was lost and {attempts} attempts failed (out of memory, or killed?)"

        def before_blame() -> None:
            check_ray(LAST_MOMENTS)
            check_wanted()

        self.coordinator.ended(trial, TrialResult(trial.key, "failed", 0.0, error=why), before_blame)
        self.under_way.discard(trial_id)
        return trial
