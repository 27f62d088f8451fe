"""One visit of a walk as people read it, and its renderings: lines of text, and the row that is stored.

Audit trails, stored walks, explanations and their pictures all show this one type. A reader can add it up: the ledger
has a line per class; the belief before, plus what the expert added, is the belief after; divided by its sum it is the
expected probability; where the model is calibrated, the temperature of that depth makes the calibrated probability of
it. The classes that are not listed share one line, so the columns are complete.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

OFF_CHART = 50.0
"""Nats per class below which an entropy says nothing. A belief that is sharp everywhere has about -log(precision) / 2
nats per class: -14 at a precision of 1e12. What is far lower comes from classes that calibration all but ruled out
(alpha_k near 0 adds -1 / alpha_k), and its size is that of the last crumb of alpha, not of what is known."""

WIDTH = 110
MOST_ALTERNATIVES_STORED, MOST_ALTERNATIVES_IN_TEXT = 12, 4


@dataclass(frozen=True)
class Amount:
    """A named quantity: evidence for a class, or the belief in one."""

    name: str
    value: float


@dataclass(frozen=True)
class Feature:
    """What one input contributed to the belief in the explained class.

    Attributes:
        value: the number that it is to the model; None where it is several.
        state: the value in words, where there are any: `present` or `absent` of a binary feature, else a table's own.
    """

    name: str
    value: float | None
    state: str | None
    attribution: float

    @property
    def reading(self) -> str:
        """The value as a person would say it."""
        if self.value is None:
            return f"= {self.state}"
        return self.state or f"= {self.value:.4g}"


@dataclass(frozen=True)
class Entry:
    """One class (or all that are not listed) in the ledger of a step.

    Attributes:
        before: pseudo-counts before the expert was asked.
        evidence: what it added.
        alpha: their sum, the raw belief after it.
        expected: the share of it in all pseudo-counts, `alpha_k / alpha_0`.
        calibrated: the same after calibration: what the model says. Equal to `expected` without one.
    """

    name: str
    before: float
    evidence: float
    alpha: float
    expected: float
    calibrated: float


@dataclass(frozen=True)
class Visit:
    """The visit to one expert.

    Attributes:
        alternatives: all children of the node before, with their route probabilities.
        evidence: what the expert said most strongly, in pseudo-counts.
        belief: the likeliest classes after it, as the model says them: calibrated if it is.
        ledger: class by class, what was believed before, what was added, the sum, its share, and that calibrated.
        precision: the sum of the belief after it, alpha_0.
        temperature: of the calibration at this depth, None without one.
        belief_shift: KL divergence of the raw belief after from the one before, in nats.
        entropy: of the belief as the model uses it; what an early exit compares with eta.
        measures: belief shift, vacuity and entropy in a line, with a word for what is off the chart.
        consulted: whether the expert is asked when the walk may exit early.
        features: what this expert's evidence for the explained class rests on.
    """

    depth: int
    node: str
    route_probability: float
    alternatives: dict[str, float]
    evidence: tuple[Amount, ...]
    belief: tuple[Amount, ...]
    ledger: tuple[Entry, ...]
    precision: float
    temperature: float | None
    belief_shift: float
    entropy: float
    vacuity: float
    measures: str
    consulted: bool = True
    features: tuple[Feature, ...] = ()

    @property
    def prediction(self) -> str:
        return self.belief[0].name

    @property
    def confidence(self) -> float:
        return self.belief[0].value

    def lines(self) -> Iterator[str]:
        """The visit in an audit trail: node, ledger, measures and prediction."""
        yield f"{self.depth}. {self.node}  (route p={self.route_probability:.2f})"
        yield from self.ledger_lines()
        yield f"     {self.measures}"
        yield f"     prediction    {self.prediction}  ({self.confidence:.1%})"

    def explained_lines(self) -> Iterator[str]:
        """The visit in an explanation: the routes not taken and the features behind the evidence too."""
        yield f"{self.depth}. {self.node}{'' if self.consulted else '   [not asked after the exit]'}"
        others = sorted(((p, name) for name, p in self.alternatives.items() if name != self.node), reverse=True)
        rivals = [f"{name} {p:.3f}" for p, name in others[:MOST_ALTERNATIVES_IN_TEXT]]
        if len(others) > len(rivals):
            rivals.append(f"{len(others) - len(rivals)} more")
        route = f"p = {self.route_probability:.3f}" + (f"; others: {', '.join(rivals)}" if rivals else "")
        yield _field("route", route)
        yield from self.ledger_lines()
        yield _field("in all", self.measures)
        if self.features:
            yield _field("features", ", ".join(f"{f.name} ({f.reading}) {f.attribution:+.3g}" for f in self.features))

    def to_row(self) -> dict[str, Any]:
        """The visit as it is stored with a trial's result; the report draws it from there."""
        likeliest = sorted(self.alternatives.items(), key=lambda item: -item[1])
        return {
            "node": self.node,
            "route_probability": self.route_probability,
            "alternatives": dict(likeliest[:MOST_ALTERNATIVES_STORED]),
            "evidence": {amount.name: amount.value for amount in self.evidence},
            "belief": {amount.name: amount.value for amount in self.belief},
            "ledger": [asdict(entry) for entry in self.ledger],
            "precision": self.precision,
            "temperature": self.temperature,
            "belief_shift": self.belief_shift,
            "entropy": self.entropy,
            "vacuity": self.vacuity,
            "measures": self.measures,
            "prediction": self.prediction,
            "confidence": self.confidence,
        }

    @property
    def ledger_heads(self) -> list[str]:
        """The columns of the ledger: belief, what was added, their sum, its share, and what calibration makes of it."""
        heads = ["before", "+ evidence", "= alpha", f"/ {counts(self.precision)}"]
        return heads if self.temperature is None else [*heads, f"T = {self.temperature:.3g}"]

    def ledger_cells(self, entry: Entry) -> list[str]:
        """The line of one class under those heads."""
        cells = [counts(entry.before), f"+{counts(entry.evidence)}", counts(entry.alpha), f"{entry.expected:.1%}"]
        return cells if self.temperature is None else [*cells, f"{entry.calibrated:.1%}"]

    def ledger_lines(self) -> list[str]:
        """The ledger as lines of text, its columns below each other."""
        rows = [["", *self.ledger_heads], *([entry.name, *self.ledger_cells(entry)] for entry in self.ledger)]
        name, *widths = (max(len(row[place]) for row in rows) for place in range(len(rows[0])))
        return [
            "     "
            + row[0].ljust(name)
            + "".join(cell.rjust(width + 3) for cell, width in zip(row[1:], widths, strict=True))
            for row in rows
        ]


def _field(name: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"     {name:<14}", subsequent_indent=" " * 19)


def counts(value: float) -> str:
    """Pseudo-counts: two decimals while they are small, so that a column can be added up, digits and powers beyond."""
    return f"{value:.2f}" if abs(value) < 1e5 else f"{value:.4g}"


def nats(value: float, num_classes: int) -> str:
    """A differential entropy on a scale that means something, and a word where it is off that scale."""
    each = value / num_classes
    if not math.isfinite(each) or each < -OFF_CHART:
        return f"off the chart (below {signed(-OFF_CHART)} nats per class)"
    return f"{signed(value)} ({signed(each)} nats per class)"


def signed(value: float) -> str:
    """Three digits, with a real minus."""
    return f"{value:.3g}".replace("-", "−")
