"""What can be compared of two studies or trials, and how: seed by seed, side by side, or not at all.

Data decides: with the same fingerprint and the same seed two models were tested on the same rows. Without a seed in
common their means stand beside each other, without a test; on other data a difference means nothing, and there is none.
Models that were not treated alike after training (other options of `evaluation` by which something is fitted or chosen)
stand beside each other without a verdict, and the reason is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbsr_core.errors import InputError
from nbsr_core.metrics import LEAST_SEEDS, Interval
from nbsr_core.metrics.intervals import figure_interval
from nbsr_platform.base.plain_json import finite
from nbsr_platform.report.differences import Asked, Difference, Line, compared, higher_is_better, in_words
from nbsr_platform.report.groups import UNUSABLE
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import short

HOW = {
    "paired": "mean difference over common seeds with its 95% interval, and where answers to single samples were kept "
    "the interval over seeds and samples; p is the larger one of a paired t-test over seeds and of a bootstrap over "
    "both, corrected for the number of comparisons (Holm)",
    "few": f"fewer than {LEAST_SEEDS} seeds in common: plain differences, no test",
    "unpaired": "no seed in common, so not the same test rows: plain differences of the means, no test",
}


@dataclass(frozen=True)
class Beside:
    """One figure of two models beside each other.

    Attributes:
        model, against: names of the second study's line and of the first one's.
        value, other: their means over all seeds that each has.
        gap: the difference over common seeds; None if there is no seed in common.
    """

    model: str
    against: str
    figure: str
    value: Interval
    other: Interval
    gap: Difference | None

    @property
    def how(self) -> str:
        """`paired`, `few` or `unpaired`, see `HOW`."""
        if self.gap is None:
            return "unpaired"
        return "paired" if self.gap.seeds >= LEAST_SEEDS else "few"

    @property
    def plain(self) -> Difference:
        """The difference: of common seeds if there are any, otherwise of the means, without interval and test."""
        if self.gap is not None:
            return self.gap
        mean = Interval(self.value.estimate - self.other.estimate, float("nan"), float("nan"))
        return Difference(self.model, self.against, self.figure, 0, mean, None)

    @property
    def verdict(self) -> str:
        """Better or worse only where a test says so."""
        return self.plain.verdict

    def cells(self) -> list[str]:
        """The line of a table, as `HEADS` names its columns."""
        gap = self.plain
        values = [short(each, self.figure) for each in (self.value, self.other)]
        names = [self.model, self.against, in_words(self.figure)]
        return [*names, *values, gap.text, gap.text_resampled, gap.text_p, gap.rests_on, self.verdict]

    def to_json(self) -> dict[str, Any]:
        gap = self.plain
        bounds, drawn = gap.interval, gap.resampled
        return {
            "model": self.model,
            "against": self.against,
            "figure": self.figure,
            "value": self.value.estimate,
            "other": self.other.estimate,
            "difference": bounds.estimate,
            "low": finite(bounds.low),
            "high": finite(bounds.high),
            "p": gap.p,
            "seeds": gap.seeds,
            "over_samples": None
            if drawn is None
            else {"samples": drawn.samples, "low": drawn.interval.low, "high": drawn.interval.high, "p": drawn.p},
            "corrected_p": gap.corrected,
            "how": self.how,
            "verdict": self.verdict,
            "reason": gap.reason,
        }


@dataclass(frozen=True)
class Pair:
    """Two studies (or trials) on the same data."""

    first: StudyResults
    second: StudyResults
    beside: Sequence[Beside]

    @property
    def title(self) -> str:
        return f"{describe(self.second)} against {describe(self.first)}"

    @property
    def how(self) -> list[str]:
        """How the differences were made, each way once, and why some have no verdict."""
        ways = [words for way, words in HOW.items() if any(line.how == way for line in self.beside)]
        unlike = dict.fromkeys(line.gap.unlike for line in self.beside if line.gap is not None and line.gap.unlike)
        return ways + [f"no verdict between models that were not treated alike: {words}" for words in unlike]

    def to_json(self) -> dict[str, Any]:
        return {
            "first": describe(self.first),
            "second": describe(self.second),
            "data_fingerprint": fingerprint(self.first),
            "figures": [line.to_json() for line in self.beside],
        }


HEADS = (
    *("model", "against", "figure", "value", "other", "difference", "over seeds and samples", "corrected p"),
    *("rests on", "verdict"),
)


def compare(first: Sequence[StudyResults], second: Sequence[StudyResults]) -> list[Pair]:
    """Each study of the second with those of the first that are on the same data; an `InputError` if there is none.

    All comparisons are one family: the more of them, the more a difference must be sure of.
    """
    known = [
        (one, other)
        for other in second
        for one in first
        if one.study.domain == other.study.domain and fingerprint(one) == fingerprint(other)
    ]
    asked = [_asked(one, other) for one, other in known]
    gaps = iter(compared([question for questions in asked for question in questions]))
    pairs = [
        Pair(one, other, [_beside(question, next(gaps)) for question in questions])
        for (one, other), questions in zip(known, asked, strict=True)
        if questions
    ]
    if not pairs:
        raise InputError(_refusal(first[0], second[0]))
    return pairs


def describe(study_results: StudyResults) -> str:
    """A study by its name; of a single trial, which one it is."""
    if len(study_results.finished) == 1:
        (trial, _) = study_results.finished[0]
        return f"{study_results.study.name}: {trial.name}"
    return study_results.study.name


def fingerprint(study_results: StudyResults) -> str:
    """That of the data of its trials."""
    found = sorted({trial.data_fingerprint for trial, _ in study_results.finished})
    return ", ".join(found) or "none"


def _asked(first: StudyResults, second: StudyResults) -> list[Asked]:
    """What is compared of two studies: figures that lines of the second and their counterparts in the first have."""
    names = list(dict.fromkeys([*second.headline, *first.headline]))
    return [
        Asked(line, base, name)
        for line in _ranked(second.lines)
        for base in _counterparts(line, _ranked(first.lines))
        for name in names
        if line.by_seed(name) and base.by_seed(name)
    ]


def _ranked(lines: Sequence[Line]) -> list[Line]:
    """Those of models that somebody could use."""
    return [line for line in lines if line.family != UNUSABLE]


def _beside(asked: Asked, gap: Difference | None) -> Beside:
    means = [figure_interval(asked.figure, list(line.by_seed(asked.figure).values())) for line, _ in asked.sides]
    return Beside(asked.line.name, asked.other.name, asked.figure, means[0], means[1], gap)


def _counterparts(line: Line, bases: Sequence[Line]) -> list[Line]:
    """Whom a line is set against: its namesake; otherwise the same use of its family; otherwise all."""
    for same in (
        [base for base in bases if base.name == line.name],
        [base for base in bases if (base.family, base.config) == (line.family, line.config)],
    ):
        if same:
            return same
    return list(bases)


def _refusal(first: StudyResults, second: StudyResults) -> str:
    """Why nothing can be compared, with what differs."""
    names = f"{describe(second)} and {describe(first)}"
    hint = "`nbsr report` shows several studies on one page without comparing them"
    if first.study.domain != second.study.domain:
        return f"{names} are of different domains, {second.study.domain!r} and {first.study.domain!r}; {hint}"
    if fingerprint(first) != fingerprint(second):
        mine, theirs = (_options(study_results) for study_results in (first, second))
        differing = [
            f"data.{name}: {theirs.get(name)!r} and {mine.get(name)!r}"
            for name in dict.fromkeys([*mine, *theirs])
            if mine.get(name) != theirs.get(name)
        ]
        what = "; ".join(differing) or "the same options, but the files changed in between"
        return f"{names} are not on the same data ({what}): a difference between them would mean nothing; {hint}"
    judged = [name for name in first.headline if higher_is_better(name) is not None]
    return f"{names} have no figure in common ({', '.join(judged) or 'none'} of the first); {hint}"


def _options(study_results: StudyResults) -> Mapping[str, Any]:
    return study_results.finished[0][0].data if study_results.finished else {}
