"""What can be compared of two studies or trials, and how: seed by seed, side by side, or not at all.

Data decides: with the same fingerprint and the same seed two models were tested on the same rows. Without a seed in
common their means stand beside each other, without a test; on other data a difference means nothing, and there is none.
Answers to single test rows are not stored, so one seed allows no test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbsr_core.errors import InputError
from nbsr_core.metrics import LEAST_SEEDS, Interval
from nbsr_core.metrics.intervals import figure_interval
from nbsr_platform.base.plain_json import finite
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import short
from nbsr_platform.report.verdicts import Difference, Line, difference, headline, higher_is_better, in_words, lines

HOW = {
    "paired": "mean difference over common seeds, with 95% interval and the p-value of a paired t-test",
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
        return self.plain.verdict if self.how == "paired" else "not tested"

    def cells(self) -> list[str]:
        """The line of a table: names, figure, both values, difference, p, common seeds and verdict."""
        gap = self.plain
        p = "–" if gap.p is None else f"{gap.p:.2g}"
        values = [short(each, self.figure) for each in (self.value, self.other)]
        return [self.model, self.against, in_words(self.figure), *values, gap.text, p, str(gap.seeds), self.verdict]

    def to_json(self) -> dict[str, Any]:
        gap = self.plain
        bounds = gap.interval
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
            "how": self.how,
            "verdict": self.verdict,
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
        """How the differences were made, each way once."""
        return [words for way, words in HOW.items() if any(line.how == way for line in self.beside)]

    def to_json(self) -> dict[str, Any]:
        return {
            "first": describe(self.first),
            "second": describe(self.second),
            "data_fingerprint": fingerprint(self.first),
            "figures": [line.to_json() for line in self.beside],
        }


HEADS = ("model", "against", "figure", "value", "other", "difference", "p", "common seeds", "verdict")


def compare(first: Sequence[StudyResults], second: Sequence[StudyResults]) -> list[Pair]:
    """Each study of the second with those of the first that are on the same data; an `InputError` if there is none."""
    pairs = [
        Pair(one, other, found)
        for other in second
        for one in first
        if one.study.domain == other.study.domain and fingerprint(one) == fingerprint(other)
        for found in [_beside(one, other)]
        if found
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


def _beside(first: StudyResults, second: StudyResults) -> list[Beside]:
    names = list(dict.fromkeys([*headline(second), *headline(first)]))
    found = []
    bases = lines(first)
    for line in lines(second):
        for base in _counterparts(line, bases):
            for name in names:
                mine, theirs = line.by_seed(name), base.by_seed(name)
                if mine and theirs:
                    means = [figure_interval(name, list(values.values())) for values in (mine, theirs)]
                    found.append(Beside(line.name, base.name, name, means[0], means[1], difference(line, base, name)))
    return found


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
    judged = [name for name in headline(first) if higher_is_better(name) is not None]
    return f"{names} have no figure in common ({', '.join(judged) or 'none'} of the first); {hint}"


def _options(study_results: StudyResults) -> Mapping[str, Any]:
    return study_results.finished[0][0].data if study_results.finished else {}
