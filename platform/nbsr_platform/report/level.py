"""Is one model at least level with another? Differences against what was asked for, in words.

A verdict (`differences`) says whether two models can be told apart. A demand is another question: "not more than 0.1
points less accurate, NLL and ECE not above". A mean may meet it while its interval reaches beyond, and the reverse.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from nbsr_core.metrics.names import last_part
from nbsr_platform.report.differences import Difference, higher_is_better, in_words
from nbsr_platform.report.study_results import StudyResults

MARGINS = {"accuracy": 0.001, "success": 0.001, "nll": 0.0, "perplexity": 0.0, "ece": 0.0}
"""By the last part of a figure's name, how much worse still counts as level."""
COLUMNS = ("model", "beside", "figure", "allowed", "difference", "demand")

Pair = tuple[str, str]
"""Names of two lines: who must be level, and with whom."""


@dataclass(frozen=True)
class Demand:
    """One figure of one pair."""

    gap: Difference

    @property
    def allowed(self) -> float:
        return MARGINS[last_part(self.gap.figure)]

    @property
    def text(self) -> str:
        """Whether the demand is met, by its mean and by its interval over seeds."""
        sign = -1 if higher_is_better(self.gap.figure) else 1
        bounds = [sign * value for value in (self.gap.interval.low, self.gap.interval.high)]
        beyond = sign * self.gap.interval.estimate - self.allowed
        if beyond <= 0:
            return "met" if max(bounds) <= self.allowed else "met by the mean, not by all of the interval"
        missed = f"missed by {self._size(beyond)}"
        return missed if min(bounds) > self.allowed else f"{missed}; the interval reaches the demand"

    def cells(self) -> list[str]:
        """What stands in `COLUMNS`."""
        how = "at most" if self.allowed else "not"
        size = f" {self._size(self.allowed)}" if self.allowed else ""
        worse = "below" if higher_is_better(self.gap.figure) else "above"
        figure = in_words(self.gap.figure)
        return [self.gap.line, self.gap.other, figure, f"{how}{size} {worse}", self.gap.text, self.text]

    def _size(self, value: float) -> str:
        return f"{100 * value:.2g} points" if self.gap.figure.endswith("accuracy") else f"{value:.2g}"


def demands(study_results: StudyResults, pairs: Collection[Pair]) -> list[Demand]:
    """What is asked of these pairs, in all figures that are compared and have a margin."""
    return [
        Demand(gap)
        for gap in study_results.comparisons
        if (gap.line, gap.other) in pairs and last_part(gap.figure) in MARGINS
    ]
