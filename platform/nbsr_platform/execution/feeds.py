"""Where a study's trials come from: a list (`GridFeed`), or Optuna (`search.feed.SearchFeed`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

Epoch = dict[str, float]


class Feed(Protocol):
    """Where trials come from."""

    def next(self) -> Trial | None:
        """The next trial to run, or None when there is no more."""

    def done(self, trial: Trial, result: TrialResult) -> TrialResult:
        """Learn the outcome of a trial; returns what it counts as, which may be a failure for reasons of the feed's."""

    def should_prune(self, trial: Trial, epoch: Epoch) -> bool:
        """Whether a trial under way is not worth going on with."""


@dataclass
class GridFeed:
    """A fixed list of trials, first come first served."""

    pending: list[Trial]

    def next(self) -> Trial | None:
        return self.pending.pop(0) if self.pending else None

    def done(self, trial: Trial, result: TrialResult) -> TrialResult:
        """A grid learns nothing from results."""
        return result

    def should_prune(self, trial: Trial, epoch: Epoch) -> bool:
        return False
