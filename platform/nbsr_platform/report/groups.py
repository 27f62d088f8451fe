"""The trials behind one line of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

Ended = tuple[Trial, TrialResult]
UNUSABLE = "unusable"
"""The family of models that nobody could use (`Domain.unusable`): beside the others, without a rank among them."""


@dataclass(frozen=True)
class Group:
    """The trials of one model (of one proposal, in a search), seed by seed; the name of an unusable one says why."""

    name: str
    family: str
    members: Sequence[Ended]

    @property
    def results(self) -> list[TrialResult]:
        return [result for _, result in self.members]

    @property
    def first(self) -> Ended:
        """The trial of the first seed: where one trial must stand for all, nobody chose it."""
        return self.members[0]
