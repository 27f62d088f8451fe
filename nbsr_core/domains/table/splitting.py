"""Which rows are trained on, which validate, which test: by chance, by a column, by groups, or by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbsr_core.domains.table.cells import date_format, day_of, number_of
from nbsr_core.domains.table.options import SplitOptions
from nbsr_core.domains.table.reading import Cells
from nbsr_core.errors import InputError

Rows = NDArray[np.int64]
WORDS = {
    "train": ("train", "training", "fit"),
    "valid": ("valid", "validation", "val", "dev", "development"),
    "test": ("test", "testing", "holdout", "held out"),
}
LEAST_OF_CLASS = 3
"""Rows of a class from which on each split gets one at least; rarer classes are trained on, not tested."""


class Parts(NamedTuple):
    """Row numbers of each split, in rising order."""

    train: Rows
    valid: Rows
    test: Rows


@dataclass(frozen=True)
class Labels:
    """The classes of rows: codes, and what they stand for."""

    codes: NDArray[np.int64]
    names: Sequence[str]


def split_rows(labels: Labels, options: SplitOptions, by: Cells | None, missing: Sequence[str], seed: int) -> Parts:
    """Cut the rows; `by` are the cells of the column that decides, if one does."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, *b"split"]))
    if by is None:
        parts = _stratified(labels, options, generator)
    elif options.by == "column":
        parts = _by_column(labels, options, by, generator)
    elif options.by == "group":
        parts = _by_group(options, by, set(missing), generator)
    else:
        parts = _by_time(options, by, set(missing))
    for name, rows in parts._asdict().items():
        if not len(rows):
            raise InputError(f"split: no row is left for {name} of {len(labels.codes):,}; more rows are needed")
    if len(set(labels.codes[parts.train].tolist())) < 2:
        raise InputError("split: all training rows are of one class; two at least are needed")
    return Parts(*(np.sort(rows) for rows in parts))


def _stratified(labels: Labels, options: SplitOptions, generator: np.random.Generator) -> Parts:
    """Of each class the shares, one row at least; of classes with fewer than three rows all are trained on."""
    train, valid, test = list[Rows](), list[Rows](), list[Rows]()
    for code in range(len(labels.names)):
        rows = generator.permutation(np.flatnonzero(labels.codes == code))
        tested, validated = (_share(len(rows), share) for share in (options.test, options.valid))
        if len(rows) < LEAST_OF_CLASS:
            tested = validated = 0
        test.append(rows[:tested])
        valid.append(rows[tested : tested + validated])
        train.append(rows[tested + validated :])
    return Parts(*map(np.concatenate, (train, valid, test)))


def _share(rows: int, share: float) -> int:
    return min(max(1, round(rows * share)), max(1, (rows - 1) // 2))


def _by_column(labels: Labels, options: SplitOptions, by: Cells, generator: np.random.Generator) -> Parts:
    known = {word: part for part, words in WORDS.items() for word in words}
    says = np.array([known.get(cell.lower(), "") for cell in by.tolist()], dtype=object)
    strange = sorted({cell for cell, part in zip(by.tolist(), says.tolist(), strict=True) if not part})
    if strange:
        raise InputError(f"split.column: {options.column!r} must say train, valid or test, but holds {strange[0]!r}")
    train, valid, test = (np.flatnonzero(says == part) for part in WORDS)
    if not len(train) or not len(test):
        raise InputError(
            f"split.column: {options.column!r} names {len(train):,} rows for training and {len(test):,} for the test; "
            "both need some"
        )
    if not len(valid):  # files in the wild mostly name two parts: validation is cut from training
        shares = SplitOptions(valid=options.valid / 2, test=options.valid / 2)
        own = Labels(labels.codes[train], labels.names)
        rest, first, second = _stratified(own, shares, generator)
        train, valid = train[rest], train[np.concatenate([first, second])]
    return Parts(train, valid, test)


def _by_group(options: SplitOptions, by: Cells, missing: set[str], generator: np.random.Generator) -> Parts:
    """Whole groups in random order: to the test until it has its share, then to validation, the rest to training."""
    members: dict[object, list[int]] = {}
    for row, cell in enumerate(by.tolist()):
        members.setdefault(("row", row) if cell in missing else cell, []).append(row)
    groups = list(members.values())
    if len(groups) < 3:
        raise InputError(f"split.column: {options.column!r} has {len(groups)} groups; three at least are needed")
    order = generator.permutation(len(groups)).tolist()
    parts: list[list[int]] = [[], [], []]
    wanted = (options.test * len(by), options.valid * len(by))
    for left, group in enumerate(order):
        to_come = len(order) - left
        if len(parts[2]) < wanted[0] and (to_come > 2 or not parts[2]):
            parts[2] += groups[group]
        elif len(parts[1]) < wanted[1] and (to_come > 1 or not parts[1]):
            parts[1] += groups[group]
        else:
            parts[0] += groups[group]
    return Parts(*(np.array(part, dtype=np.int64) for part in parts))


def _by_time(options: SplitOptions, by: Cells, missing: set[str]) -> Parts:
    """The earliest rows train, the latest test; rows of the same moment stay together."""
    cells = by.tolist()
    absent = sum(cell in missing for cell in cells)
    pattern = date_format({cell for cell in cells if cell not in missing})
    moments = [number_of(cell) if pattern is None else day_of(cell, pattern) for cell in cells]
    if absent or None in moments:
        strange = next(cell for cell, moment in zip(cells, moments, strict=True) if moment is None)
        raise InputError(
            f"split.column: {options.column!r} must hold a date or a number in every row, but holds {strange!r}"
        )
    times = np.array(moments, dtype=np.float64)
    ranked = np.sort(times)
    first = ranked[round(len(times) * (1 - options.test - options.valid))]
    second = ranked[min(round(len(times) * (1 - options.test)), len(times) - 1)]
    train, test = times < first, times >= second
    return Parts(*(np.flatnonzero(mask) for mask in (train, ~train & ~test, test)))
