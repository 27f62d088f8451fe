"""From cells to numbers and back: fitted on training rows, stored with the model as plain JSON.

A model sees numbers; a person sees a table. `Encoding` stands between them, in training, in use and in explanations:
it says which encoded features come from which column, and puts encoded values back into the table's own words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from functools import partial
from math import floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbsr_core.domains.table.cells import EPOCH, ISO, NumberStyle, category_of, day_of, number_of
from nbsr_core.domains.table.kinds import ColumnLook
from nbsr_core.domains.table.options import Kind, Scaling
from nbsr_core.domains.table.reading import Cells
from nbsr_core.errors import InputError

Numbers = NDArray[np.float64]
Features = NDArray[np.float32]

OTHER = "(other)"
IS_MISSING = "is missing"
KNOTS = 32
"""Places at which the distribution of a column is remembered."""

FARTHEST = 10.0
"""Deviates are cut here: what is farther away is strange enough."""

LARGEST = 1e150
"""Larger numbers count as this one: their squares would be no numbers."""


@dataclass(frozen=True)
class EncodedColumn:
    """One column of the table as features `start` to `stop` (not included).

    Attributes:
        missing: whether its last feature says that the cell is missing; only where training rows have such cells.
        style: how its numbers are written.
        pattern: how its dates are written.
        knots: values whose place among the training rows is remembered, in rising order.
        deviates: that place; in between, and beyond, it is a straight line.
        fill: what a missing number, date or truth value is taken for, encoded.
        categories: a feature for each; of a boolean, its words for no and yes.
        other: whether a feature stands for all further categories; only where training rows have such.
    """

    name: str
    kind: Kind
    start: int
    stop: int
    missing: bool = False
    style: NumberStyle = "plain"
    pattern: str = ""
    knots: tuple[float, ...] = ()
    deviates: tuple[float, ...] = ()
    fill: float = 0.0
    categories: tuple[str, ...] = ()
    other: bool = False

    @property
    def feature_names(self) -> list[str]:
        own = [self.name]
        if self.kind == "categorical":
            own = [f"{self.name} = {value}" for value in (*self.categories, *([OTHER] if self.other else []))]
        return own + [f"{self.name} {IS_MISSING}"] * self.missing

    @property
    def described(self) -> str:
        """What a cell must hold."""
        if self.kind in ("categorical", "boolean"):
            return f"one of {', '.join(map(repr, self.categories[:6]))}{', ...' if len(self.categories) > 6 else ''}"
        return "a number" if self.kind == "numeric" else "a date"

    def encode(self, cells: Sequence[str], unknown: frozenset[str], say: Callable[[int, str], None]) -> Features:
        """Its features for each row; `say` is told of rows whose cell is strange."""
        found = np.zeros((len(cells), self.stop - self.start), dtype=np.float32)
        known: dict[str, tuple[Features, str]] = {}
        for row, cell in enumerate(cells):
            if cell not in known:
                known[cell] = self._encoded(cell, cell in unknown)
            found[row], word = known[cell]
            if word:
                say(row, word)
        return found

    def _encoded(self, cell: str, is_missing: bool) -> tuple[Features, str]:
        encoded, word = np.zeros(self.stop - self.start, dtype=np.float32), ""
        value = None if is_missing else self.value_of(cell)
        if value is None:
            if self.missing:
                encoded[-1] = 1.0
            if not is_missing:
                word = f"{self.name} is {cell!r}, not {self.described}: taken as missing"
            elif not self.missing:
                word = f"{self.name} is missing, which no training row's was"
        if self.kind != "categorical":
            encoded[0] = self.fill if value is None else value
        elif value is not None:
            if value < len(self.categories) or self.other:
                encoded[int(value)] = 1.0
            if value == len(self.categories) and not (self.other and cell == OTHER):
                word = f"{self.name} is {cell!r}, a category that is rare or unknown" if self.other else ""
                word = word or f"{self.name} is {cell!r}, an unknown category"
        return encoded, word

    def value_of(self, cell: str) -> float | None:
        """A cell as one number: the deviate of a quantity, 0 or 1, or a category's place; None if it cannot be."""
        if self.kind == "categorical":
            category = category_of(cell)
            return float(self.categories.index(category) if category in self.categories else len(self.categories))
        if self.kind == "boolean":
            word = category_of(cell.lower())
            return float(self.categories.index(word)) if word in self.categories else None
        number = number_of(cell, self.style) if self.kind == "numeric" else day_of(cell, self.pattern)
        return None if number is None else deviate(number, self.knots, self.deviates)

    def reading(self, features: Features) -> str:
        """Encoded features in the words of the table."""
        if self.missing and features[-1] == 1:
            return "missing"
        if self.kind == "categorical":
            chosen = np.flatnonzero(features[: len(self.categories)])
            return self.categories[int(chosen[0])] if len(chosen) else OTHER
        if self.kind == "boolean":
            return self.categories[int(features[0] > 0.5)]
        number = deviate(float(features[0]), self.deviates, self.knots, farthest=LARGEST)
        if self.kind == "numeric":
            return f"{round(number, self._decimals):.15g}"
        try:
            day = EPOCH + timedelta(days=round(number, 2))  # features have seven digits
        except OverflowError:
            return f"{number:.4g} days after 1970"
        return day.date().isoformat() if self.pattern == ISO else f"{day:{self.pattern.partition(' ')[0]}}"

    @property
    def _decimals(self) -> int:
        """Digits after the point that survive encoding: some five of those by which cells of this column differ."""
        spread = abs(self.knots[-1] - self.knots[0]) or abs(self.knots[0]) or 1.0
        return 4 - floor(log10(spread))


def deviate(number: float, knots: Sequence[float], deviates: Sequence[float], farthest: float = FARTHEST) -> float:
    """A piecewise linear function through the knots, straight on beyond them, cut at `farthest`."""
    number = min(max(number, -LARGEST), LARGEST)
    low, high = knots[0], knots[-1]
    if low == high:
        return deviates[0]
    if low <= number <= high:
        return float(np.interp(number, knots, deviates))
    slope = (deviates[-1] - deviates[0]) / (high - low)
    beyond = deviates[-1] + slope * (number - high) if number > high else deviates[0] + slope * (number - low)
    return min(max(beyond, -farthest), farthest)


@dataclass(frozen=True)
class Encoding:
    """All columns, side by side.

    Attributes:
        columns: in the order of their features.
        missing: cells that say that nothing is known.
        side: how many of the last features only routers see.
    """

    columns: tuple[EncodedColumn, ...]
    missing: tuple[str, ...]
    side: int = 0

    @property
    def width(self) -> int:
        return self.columns[-1].stop

    @property
    def feature_names(self) -> list[str]:
        return [name for column in self.columns for name in column.feature_names]

    def encode(
        self, cells: Mapping[str, Sequence[str]], unseen: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> tuple[Features, list[str]]:
        """The features of each row, and a word on what is strange about it, "" for most.

        Args:
            cells: of all columns.
            unseen: of some columns, in which rows nobody has looked at the cell: its features are NaN, and nothing is
                said of it.
        """
        rows = len(cells[self.columns[0].name])
        strange: dict[int, list[str]] = {}

        def say(hidden: NDArray[np.bool_], row: int, word: str) -> None:
            if not hidden[row]:
                strange.setdefault(row, []).append(word)

        unknown = frozenset(self.missing)
        features = np.empty((rows, self.width), dtype=np.float32)
        for column in self.columns:
            hidden = (unseen or {}).get(column.name, np.zeros(rows, dtype=bool))
            found = column.encode(cells[column.name], unknown, partial(say, hidden))
            found[hidden] = np.nan
            features[:, column.start : column.stop] = found
        return features, ["; ".join(strange.get(row, ())) for row in range(rows)]

    def readings(self, features: Features) -> list[str]:
        """One row, column by column, in the words of the table."""
        return [column.reading(features[column.start : column.stop]) for column in self.columns]

    def to_json(self) -> dict[str, Any]:
        """Plain values, without what is as by default."""
        columns = []
        for column in self.columns:
            plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(column).items()}
            defaults = {item.name: item.default for item in fields(column)}
            columns.append({key: value for key, value in plain.items() if value != _plain(defaults[key])})
        return {"columns": columns, "missing": list(self.missing), "side": self.side}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Encoding:
        def column(given: Mapping[str, Any]) -> EncodedColumn:
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
            return EncodedColumn(**values)

        columns = tuple(map(column, plain["columns"]))
        return Encoding(columns, tuple(plain["missing"]), plain["side"])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass
class _Builder:
    """Columns one after another."""

    columns: list[EncodedColumn] = field(default_factory=list)

    def add(self, name: str, kind: Kind, **fitted: Any) -> None:
        start = self.columns[-1].stop if self.columns else 0
        column = EncodedColumn(name, kind, start, start, **fitted)
        self.columns.append(
            EncodedColumn(name, kind, start, start + len(column.feature_names), **fitted),
        )


def fit(
    looks: Sequence[ColumnLook],
    cells: Mapping[str, Cells],
    missing: Sequence[str],
    *,
    side: Sequence[str] = (),
    scaling: Scaling = "quantile",
    rare: int = 5,
    most_categories: int = 50,
) -> Encoding:
    """The encoding of these columns, learned from these cells, which must be those of training rows alone."""
    builder, unknown = _Builder(), set(missing)
    ordered = sorted(looks, key=lambda look: look.name in side)  # stable: the others stay in the file's order
    for look in ordered:
        if look.kind is None:
            raise InputError(f"column {look.name!r} is left out and cannot be encoded")
        counts = Counter(cells[look.name].tolist())
        empty = sum(counts.pop(word, 0) for word in unknown)
        if look.kind == "categorical":
            _fit_categories(builder, look, counts, empty > 0, rare, most_categories)
        elif look.kind == "boolean":
            merged = Counter(dict.fromkeys(look.truths, 0))
            for cell, count in counts.items():
                merged[category_of(cell.lower())] += count
            fill = float(merged[look.truths[1]] > merged[look.truths[0]])
            builder.add(look.name, "boolean", missing=empty > 0, fill=fill, categories=look.truths)
        else:
            _fit_quantity(builder, look, look.kind, counts, empty > 0, scaling)
    trailing = sum(c.stop - c.start for c in builder.columns if c.name in side)
    return Encoding(tuple(builder.columns), tuple(missing), trailing)


def _fit_categories(
    builder: _Builder, look: ColumnLook, counts: Mapping[str, int], has_gaps: bool, rare: int, most: int
) -> None:
    merged = Counter[str]()
    for cell, count in counts.items():
        merged[category_of(cell)] += count
    ranked = sorted(merged, key=lambda name: (-merged[name], name))
    kept = [name for name in ranked if merged[name] >= rare][:most]
    builder.add(
        look.name, "categorical", missing=has_gaps, categories=tuple(sorted(kept)), other=len(kept) < len(ranked)
    )


def _fit_quantity(
    builder: _Builder, look: ColumnLook, kind: Kind, counts: Mapping[str, int], has_gaps: bool, scaling: Scaling
) -> None:
    read = (
        (lambda cell: number_of(cell, look.style))
        if look.kind == "numeric"
        else lambda cell: day_of(cell, look.pattern)
    )
    known = {cell: number for cell in counts if (number := read(cell)) is not None}
    has_gaps = has_gaps or len(known) < len(counts)
    merged = Counter[float]()
    for cell, number in known.items():
        merged[min(max(number, -LARGEST), LARGEST)] += counts[cell]
    values = np.array(sorted(merged) or [0.0])
    weights = np.array([merged[value] or 1 for value in values.tolist()], dtype=np.float64)
    knots, deviates = (_quantiles if scaling == "quantile" else _standard)(values, weights)
    middle = float(values[np.searchsorted(weights.cumsum(), weights.sum() / 2)])
    builder.add(
        look.name,
        kind,
        missing=has_gaps,
        style=look.style,
        pattern=look.pattern,
        knots=tuple(knots.tolist()),
        deviates=tuple(deviates.tolist()),
        fill=deviate(middle, knots.tolist(), deviates.tolist()),
    )


def _quantiles(values: Numbers, weights: Numbers) -> tuple[Numbers, Numbers]:
    """Different values in rising order, and the normal deviate of the middle of each one's rank."""
    from scipy.special import ndtri

    middle = (weights.cumsum() - weights / 2) / weights.sum()
    places = np.arange(len(values))
    if len(values) > KNOTS:
        wanted = np.searchsorted(middle, np.linspace(0, 1, KNOTS)).clip(0, len(values) - 1)
        places = np.unique(np.concatenate([[0], wanted, [len(values) - 1]]))
    return values[places], np.asarray(ndtri(middle[places]), dtype=np.float64)


def _standard(values: Numbers, weights: Numbers) -> tuple[Numbers, Numbers]:
    """One deviation below and above the mean; a straight line goes on from there."""
    mean = float(np.average(values, weights=weights))
    spread = float(np.sqrt(np.average(np.square(values - mean), weights=weights)))
    if spread == 0 or mean - spread == mean + spread:
        return np.array([mean]), np.array([0.0])
    return np.array([mean - spread, mean + spread]), np.array([-1.0, 1.0])
