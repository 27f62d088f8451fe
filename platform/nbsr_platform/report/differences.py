"""How far apart are two models, and can we tell? Paired over common seeds and test samples, corrected for their number.

Trials of one seed share their data, so models are compared seed by seed: the spread between seeds, which both models
have in common, does not count against either. Two questions are asked of a difference: would other trainings show it
(a paired t-test over seeds), and would other test samples (a bootstrap over seeds and samples, where a trial kept its
answers). It counts only where both say so, after Holm's correction for all comparisons that are made together: of
twenty comparisons between equals one would pass without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from nbsr_core.evaluation import samples
from nbsr_core.evaluation.abstention import MAX_DOUBT
from nbsr_core.evaluation.samples import KeptAnswers
from nbsr_core.metrics import LEAST_SEEDS, Interval, seed_interval
from nbsr_core.metrics.names import FAST, last_part, parse, stored_name
from nbsr_platform.report.groups import Group
from nbsr_platform.report.resampling import Resampled, judged, means_of, over_drawn_seeds, resamples_for

# Last part of a figure's name: whether more of it is better. What is not here is shown, but nobody wins by it.
HIGHER = {
    **dict.fromkeys(("accuracy", "accuracy_answered", "auroc", "success", "exited", "routing_agreement"), True),
    **dict.fromkeys(("ece", "adaptive_ece", "nll", "brier", "perplexity", "fpr95", "error_answered"), False),
    **dict.fromkeys(("aurc", "augrc", "set_size"), False),
    "coverage": True,
    **dict.fromkeys(("mean_depth", "mean_cost", "mean_macs", "cost", "error"), False),
}
# How early a walk ends, and how many are answered, is a price, not a merit: it is read beside accuracy, never alone.
PRICES = {"mean_depth", "mean_cost", "mean_macs", "exited", "cost", "coverage"}
# Figures that are means over samples, or follow from one: what of a sample is averaged, and what is made of the mean.
OF_SAMPLES: dict[str, tuple[Literal["right", "nll"], Callable[[np.ndarray], np.ndarray]]] = {
    "accuracy": ("right", np.asarray),
    "nll": ("nll", np.asarray),
    "perplexity": ("nll", np.exp),
}
INITIALS = {"ece", "nll", "auroc", "aurc", "augrc", "fpr95"}
CHANCE = 0.05
"""Differences whose corrected p-value is smaller are called better or worse."""

# Options of `evaluation` by which a model is fitted, or its thresholds are chosen, after training.
FITTED = ("calibrate", "max_vacuity")
FITTED_FOR_EXITS = ("eta", "max_accuracy_loss", "max_nll_loss")
# How well unknown samples are told from known ones by a model's own doubt.
OF_DOUBT = {"auroc", "fpr95"}
DISTANCE = ("directions", "normalise", "power")
# Of those who are answered, and by which threshold a line chooses them.
OF_THE_ANSWERED = {"accuracy_answered", "error_answered"}
WITHHELD_BY = {"max_vacuity": "vacuity", MAX_DOUBT: "confidence"}

Verdict = Literal["better", "worse", "undecided", "equal", "not tested", "not judged"]


def higher_is_better(figure: str) -> bool | None:
    return HIGHER.get(last_part(figure))


def is_merit(figure: str) -> bool:
    """Whether somebody wins by it."""
    return higher_is_better(figure) is not None and last_part(figure) not in PRICES


def in_words(figure: str) -> str:
    """A figure's name as people say it: `noise_draws/ece_raw` -> `noise draws, ECE raw`."""
    words = (part.split("_") for part in figure.split("/"))
    return ", ".join(" ".join(word.upper() if word in INITIALS else word for word in part) for part in words)


@dataclass(frozen=True)
class Line:
    """One line of the comparison with its figures seed by seed."""

    name: str
    config: str
    family: str
    group: Group

    def stored(self, figure: str) -> str:
        """Under which name its trials keep a figure."""
        return stored_name(figure, "fast" if self.config == FAST else "test")

    def by_seed(self, figure: str) -> dict[int, float]:
        found = {trial.seed: result.metrics.get(self.stored(figure)) for trial, result in self.group.members}
        return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}

    def answers(self, figure: str) -> dict[int, KeptAnswers]:
        """What its trials answered to the samples that a figure is measured on, seed by seed, as far as it was kept."""
        where = parse(self.stored(figure))
        return {
            trial.seed: samples.unpack(row)
            for trial, result in self.group.members
            for row in result.tables.get(samples.TABLE, [])
            if (row["set"], row["use"]) == (where.data, where.use)
        }


@dataclass(frozen=True)
class Difference:
    """One line against another in one figure, over the seeds that both have.

    Attributes:
        interval: mean difference (line - other) and its 95% interval over seeds; NaN bounds for one seed or two.
        p: of the paired t-test over seeds; None if there is none (so few seeds, or no difference in any seed).
        resampled: what a bootstrap over seeds and samples says; None if answers to single samples were not kept, or
            the figure is no mean over samples.
        corrected: the larger of both p-values after Holm's correction; None where no verdict is due.
        unlike: in what the two were not treated alike after training; None if they were.
    """

    line: str
    other: str
    figure: str
    seeds: int
    interval: Interval
    p: float | None
    resampled: Resampled | None = None
    corrected: float | None = None
    unlike: str | None = None

    @property
    def is_equal(self) -> bool:
        """Whether the two are the same in every seed."""
        return self.interval.estimate == self.interval.low == self.interval.high == 0

    @property
    def larger_p(self) -> float | None:
        """Of the t-test and of the bootstrap, what is less sure; None where nothing is tested."""
        if self.is_equal:
            return 1.0
        return self.p if self.p is None or self.resampled is None else max(self.p, self.resampled.p)

    @property
    def verdict(self) -> Verdict:
        """Better or worse only where neither seeds nor samples nor the number of comparisons explain the difference."""
        if self.seeds < LEAST_SEEDS:
            return "not tested"
        if not is_merit(self.figure) or self.unlike is not None:
            return "not judged"
        if self.is_equal:
            return "equal"
        if self.corrected is None or self.corrected >= CHANCE:
            return "undecided"
        return "better" if (self.interval.estimate > 0) == higher_is_better(self.figure) else "worse"

    @property
    def reason(self) -> str | None:
        """Why there is no verdict; None where there is one, or none is due to what was found."""
        if self.seeds < LEAST_SEEDS:
            return f"fewer than {LEAST_SEEDS} common seeds"
        if self.unlike is not None:
            return f"not treated alike: {self.unlike}"
        return None if is_merit(self.figure) else "nobody wins by it alone"

    @property
    def rests_on(self) -> str:
        """`5 seeds, 10,000 samples`."""
        if self.seeds == 0:
            return "no common seed"
        said = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        if self.seeds < LEAST_SEEDS:
            return f"{said}: too few for a test"
        return said if self.resampled is None else f"{said}, {self.resampled.samples:,} samples"

    @property
    def text(self) -> str:
        """The difference as a person reads it, with its interval over seeds."""
        estimate = f"{self._signed(self.interval.estimate)}{self._unit[1]}"
        return estimate if math.isnan(self.interval.low) else f"{estimate} (95% {self._bounds(self.interval)})"

    @property
    def text_resampled(self) -> str:
        """The interval over seeds and samples; a dash where there is none."""
        return "–" if self.resampled is None else self._bounds(self.resampled.interval)

    @property
    def text_p(self) -> str:
        """The corrected p-value; a dash where there is none."""
        return "–" if self.corrected is None else f"{self.corrected:.2g}"

    @property
    def reversed(self) -> Difference:
        """The same seen from the other line."""
        turned = None
        if self.resampled is not None:
            turned = replace(self.resampled, interval=_turned(self.resampled.interval))
        interval = _turned(self.interval)
        return replace(self, line=self.other, other=self.line, interval=interval, resampled=turned)

    @property
    def _unit(self) -> tuple[float, str, int]:
        return (100, " points", 2) if self.figure.endswith("accuracy") else (1, "", 4)

    def _signed(self, value: float) -> str:
        scale, _, digits = self._unit
        return f"{round(value * scale, digits) + 0.0:+.{digits}f}".replace("-", "−")

    def _bounds(self, interval: Interval) -> str:
        return f"{self._signed(interval.low)} to {self._signed(interval.high)}"


def _turned(interval: Interval) -> Interval:
    return Interval(-interval.estimate, -interval.high, -interval.low)


class Asked(NamedTuple):
    """Which lines are to be compared, and in which figure.

    Attributes:
        against: the other line's figure, where it is another one (the same at another depth); by default the same.
    """

    line: Line
    other: Line
    figure: str
    against: str | None = None

    @property
    def sides(self) -> tuple[tuple[Line, str], tuple[Line, str]]:
        """Both lines, each with its figure."""
        return (self.line, self.figure), (self.other, self.against or self.figure)


def compared(asked: Sequence[Asked]) -> list[Difference | None]:
    """Differences that are made together, and so corrected for each other; None for lines without a common seed."""
    found = [_over_seeds(one) for one in asked]
    due = {place: gap for place, gap in enumerate(found) if gap is not None and gap.reason is None}
    drawn = _over_samples([asked[place] for place in due], list(due.values()))
    gaps = [replace(gap, resampled=resampled) for gap, resampled in zip(due.values(), drawn, strict=True)]
    corrected = holm([1.0 if gap.larger_p is None else gap.larger_p for gap in gaps])
    for place, gap, p in zip(due, gaps, corrected, strict=True):
        found[place] = replace(gap, corrected=p)
    return found


def difference(line: Line, other: Line, figure: str) -> Difference | None:
    """One comparison alone, for which nothing is corrected."""
    return compared([Asked(line, other, figure)])[0]


def holm(values: Sequence[float]) -> list[float]:
    """P-values of a family, corrected so that a false one falls below a level no more often than the level says.

    Holm (1979): the smallest of m counts m times, the next m - 1 times, and so on, none less than one before it.
    """
    corrected, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=lambda place: values[place])):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = largest
    return corrected


def _over_seeds(asked: Asked) -> Difference | None:
    mine, theirs = (line.by_seed(figure) for line, figure in asked.sides)
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return None
    gaps = [mine[seed] - theirs[seed] for seed in seeds]
    p = _paired_t([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds], gaps)
    unlike = _unlike(asked.line, asked.other, asked.figure)
    return Difference(
        asked.line.name, asked.other.name, asked.figure, len(seeds), seed_interval(gaps), p, unlike=unlike
    )


def _paired_t(mine: Sequence[float], theirs: Sequence[float], gaps: Sequence[float]) -> float | None:
    """The p-value of a paired t-test; 0 for the same difference in every seed, None where there is nothing to test."""
    if len(gaps) < LEAST_SEEDS or not any(gaps):
        return None
    if max(gaps) - min(gaps) <= 1e-12 * max(map(abs, gaps)):
        return 0.0
    from scipy.stats import ttest_rel  # slow to import, and only a report needs it

    return float(ttest_rel(mine, theirs).pvalue)


def _unlike(line: Line, other: Line, figure: str) -> str | None:
    """What was fitted or chosen in another way for the two after training; None if nothing was."""
    if last_part(figure) in OF_THE_ANSWERED:
        rules = [_withheld_by(one) for one in (line, other)]
        if len(set(rules)) > 1:
            return f"answers are withheld by {rules[0]} and by {rules[1]}"
    if last_part(figure) in OF_DOUBT and line.by_seed(f"{figure}_confidence"):  # unknown samples have every detector's
        distances = [_doubts_by(one) for one in (line, other)]
        if distances[0] != distances[1]:
            return f"one doubts by {distances[0]}, the other by {distances[1]}"
    names = FITTED + (FITTED_FOR_EXITS if FAST in (line.config, other.config) else ())
    mine, theirs = (one.group.first[0].evaluation for one in (line, other))
    differing = [name for name in names if mine.get(name) != theirs.get(name)]
    return "; ".join(f"evaluation.{name} is {mine.get(name)!r} and {theirs.get(name)!r}" for name in differing) or None


def _doubts_by(line: Line) -> str:
    """The distance from training data that a line's doubt holds, if any.

    NBSR has it inside its belief (`density`), other models beside them (`evaluation.doubt`). Without it a precision is
    as much as an energy or a confidence is: made of what a model says, and they may be compared.
    """
    trial = line.group.first[0]
    density = trial.options.get("density") or {}
    measured = trial.evaluation.get("mahalanobis") or {}
    if line.family == "nbsr":
        found = density if density.get("enabled") else None
    else:
        found = measured if trial.evaluation.get("doubt") == "mahalanobis" else None
    if found is None:
        return "what it says alone"
    return f"a distance ({', '.join(f'{name} {found.get(name)}' for name in DISTANCE)})"


def _withheld_by(line: Line) -> str:
    """By what a line chooses whom it does not answer."""
    return next((words for name, words in WITHHELD_BY.items() if line.by_seed(name)), "a rule of its own")


def _over_samples(asked: Sequence[Asked], gaps: Sequence[Difference]) -> list[Resampled | None]:
    """What a bootstrap says of each difference; None where it can say nothing."""
    kept: dict[tuple[int, str], dict[int, KeptAnswers]] = {}
    for line, figure in (side for one in asked for side in one.sides if last_part(one.figure) in OF_SAMPLES):
        place = id(line.group), line.stored(figure)
        kept[place] = kept.get(place) or line.answers(figure)
    pairs = [_paired_answers(one, kept) for one in asked]
    columns: dict[tuple[int, str], np.ndarray] = {}
    for one, paired in zip(asked, pairs, strict=True):
        for answers in (side for both in paired for side in both):
            what, _ = OF_SAMPLES[last_part(one.figure)]
            columns[id(answers), what] = getattr(answers, what)
    means = means_of(columns, resamples_for(len(asked)))
    found: list[Resampled | None] = []
    for one, gap, paired in zip(asked, gaps, pairs, strict=True):
        if not paired:
            found.append(None)
            continue
        what, made = OF_SAMPLES[last_part(one.figure)]
        by_seed = [made(means[id(mine), what]) - made(means[id(theirs), what]) for mine, theirs in paired]
        same_samples = len({mine.labels for mine, _ in paired}) == 1
        drawn = over_drawn_seeds(np.stack(by_seed, axis=1), same_samples=same_samples)
        found.append(judged(drawn, gap.interval.estimate, min(len(mine.nll) for mine, _ in paired)))
    return found


def _paired_answers(
    asked: Asked, kept: Mapping[tuple[int, str], Mapping[int, KeptAnswers]]
) -> list[tuple[KeptAnswers, KeptAnswers]]:
    """KeptAnswers of both lines to the same samples, seed by seed; none unless there are some for every common seed."""
    places = [(id(line.group), line.stored(figure)) for line, figure in asked.sides]
    mine, theirs = (kept.get(place, {}) for place in places)
    seeds = set.intersection(*(set(line.by_seed(figure)) for line, figure in asked.sides))
    alike = [
        (mine[seed], theirs[seed])
        for seed in sorted(seeds)
        if seed in mine and seed in theirs and mine[seed].labels == theirs[seed].labels
    ]
    return alike if len(alike) == len(seeds) else []
