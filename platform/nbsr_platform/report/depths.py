"""Does depth earn its place? What the end of the walk adds to depth 1, and whether it is the hard samples that go on.

Every NBSR trial is judged at each depth and, where its walks may end early, keeps which of them did. So two things can
be said of each model, seed by seed: how far its NLL falls from depth 1 to the last depth and with each step, and how
much more often it is right at depth 1 where it stops there than where it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from statistics import fmean

from nbsr_core.metrics import LEAST_SEEDS, Interval, seed_interval
from nbsr_core.metrics.names import FAST, FigureName, at_depth
from nbsr_platform.report.differences import Asked, Difference, Line, compared, in_words
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import ComparisonRow, short

FIGURES = ("accuracy", "nll", "ece")
COLUMNS = ("model", "depth", *map(in_words, FIGURES))
"""What is shown of every depth."""
LEAST_SAMPLES = 10
"""So many in each seed, on average, must stop and go on before anything is said of who is harder."""


@dataclass(frozen=True)
class Harder:
    """Accuracy at depth 1 of the samples that stop there and of those that go on, means over seeds.

    Attributes:
        gap: of those that go on minus those that stop, and its 95% interval over seeds.
        share: of all samples that go on.
        few: how many samples of a seed, on average, are on the smaller side.
    """

    stop: float
    go_on: float
    gap: Interval
    seeds: int
    share: float
    few: float

    @property
    def text(self) -> str:
        if self.few < LEAST_SAMPLES:
            return f"{self.share:.2%} of the samples go deeper, too uneven a part to tell whether they are harder"
        shares = f"accuracy at depth 1 {self.stop:.1%} of those that exit there, {self.go_on:.1%} of those that go on"
        if self.seeds < LEAST_SEEDS:
            return shares
        told = "are harder" if self.gap.high < 0 else "are not told to be harder"
        low, high = (f"{100 * bound:+.1f}".replace("-", "−") for bound in (self.gap.low, self.gap.high))
        return f"samples that go deeper {told}: {shares} (difference 95% {low} to {high} points)"


@dataclass(frozen=True)
class Deeper:
    """What the last depth of a model adds to its first.

    Attributes:
        gap: NLL at the last depth minus that at depth 1; less is better.
        steps: NLL at each depth from 2 on minus that at the depth before; where there are more than two depths.
        harder: None where the trials did not keep which walks ended early, or all ended alike.
    """

    model: str
    depth: int
    gap: Difference
    steps: Sequence[Difference]
    harder: Harder | None

    @property
    def text(self) -> str:
        """One line: what depth brings, and to whom."""
        bounds = self.gap.interval
        over = f"depth {self.depth} over depth 1: NLL {self.gap.text}"
        if self.gap.seeds < LEAST_SEEDS:
            said = f"{over}, {self.gap.rests_on}"
        elif bounds.high >= 0:
            said = f"depth adds nothing; {over}, {self.gap.rests_on}"
        else:
            decided = "decided" if self.gap.verdict == "better" else "not decided"
            said = f"{over}, {decided} (corrected p = {self.gap.text_p}; {self.gap.rests_on})"
        steps = [f"{step} to {step + 1} {gap.text}" for step, gap in enumerate(self.steps, 1)]
        said += f"; from depth {', '.join(steps)}" if steps else ""
        return f"{self.model}: {said}" + ("." if self.harder is None else f"; {self.harder.text}.")


def deeper(study_results: StudyResults) -> list[Deeper]:
    """What depth brings, for each NBSR model whose walks can take more than one step."""
    depths = {row.name: _depths(row) for row in study_results.rows}
    walkers = [line for line in study_results.lines if line.family == "nbsr" and depths[line.name] > 1]
    gaps = compared([Asked(line, line, "nll", _at(1, "nll")) for line in walkers])
    return [
        Deeper(line.group.name, depths[line.name], gap, _steps(line, depths[line.name]), _harder(line))
        for line, gap in zip(walkers, gaps, strict=True)
        if gap is not None
    ]


def _steps(line: Line, last: int) -> list[Difference]:
    """What each depth adds to the one before; nothing where there are only two, which are first and last."""
    asked = [Asked(line, line, _at(depth, "nll"), _at(depth - 1, "nll")) for depth in range(2, last + 1)]
    return [gap for gap in compared(asked) if gap is not None] if last > 2 else []


def depth_rows(study_results: StudyResults) -> list[list[str]]:
    """`COLUMNS` for each such model and each of its depths."""
    return [
        [row.name, str(depth), *(short(row.metrics.get(_at(depth, name)), name) for name in FIGURES)]
        for row in study_results.rows
        if row.family == "nbsr" and _depths(row) > 1
        for depth in range(1, _depths(row) + 1)
    ]


def _depths(row: ComparisonRow) -> int:
    """At how many depths the model of a line was judged; a line with early exits has none."""
    return next(depth for depth in count() if _at(depth + 1, "nll") not in row.metrics)


def _at(depth: int, figure: str) -> str:
    """The name of a figure of the test split at a depth."""
    return str(FigureName(figure, use=at_depth(depth)))


def _harder(line: Line) -> Harder | None:
    """From answers at depth 1, by whether the walk ended there when it might."""
    fast = Line(line.name, FAST, line.family, line.group).answers("nll")
    shares, counts = [], []
    for seed, answers in line.answers(_at(1, "nll")).items():
        early = fast[seed].early if seed in fast else None
        if early is not None and len(early) == len(answers.right) and 0 < early.sum() < len(early):
            shares.append((float(answers.right[early].mean()), float(answers.right[~early].mean())))
        if early is not None:
            counts.append((int(early.sum()), int((~early).sum())))
    if not shares:
        return None
    stop, go_on = (fmean(share) for share in zip(*shares, strict=True))
    stopped, went_on = (fmean(count) for count in zip(*counts, strict=True))
    gap = seed_interval([late - first for first, late in shares])
    return Harder(stop, go_on, gap, len(shares), went_on / (stopped + went_on), min(stopped, went_on))
