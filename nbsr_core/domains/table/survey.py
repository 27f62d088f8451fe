"""A look at a whole table before anything is trained on it: kinds of columns, classes, and what should be said."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from nbsr_core.domains.table.cells import category_of, number_of
from nbsr_core.domains.table.kinds import ColumnLook, look_at
from nbsr_core.domains.table.options import TableData
from nbsr_core.domains.table.reading import Cells, RawTable, read_table
from nbsr_core.domains.table.splitting import LEAST_OF_CLASS, Labels
from nbsr_core.errors import InputError
from nbsr_core.files import open_file, user_path

MOST_NAMED = 5
CONTINUOUS = 20
"""Different numbers with fractions from which on a target looks like a quantity rather than classes."""

ROWS_PER_VALUE = 3
"""A column that names its row's class by chance has fewer rows than this for each of its values."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What a table holds.

    Attributes:
        table: rows that have a class.
        labels: their classes.
        looks: at all columns that could be features, those that are left out among them.
        roles: what the other columns are for.
        about: what was found out about the file, and what is left out.
        notes: what looks wrong or was mended, a sentence each.
    """

    table: RawTable
    labels: Labels
    looks: Sequence[ColumnLook]
    roles: Mapping[str, str]
    about: str = ""
    notes: Sequence[str] = ()

    @property
    def used(self) -> list[ColumnLook]:
        """The columns that are features."""
        return [look for look in self.looks if look.kind is not None]


def read_once(data: TableData) -> RawTable:
    """The whole file; kept while the file stays as it is, since every seed of a study reads it."""
    path = user_path(str(data.file))
    with open_file(path) as file:
        state = os.fstat(file.fileno())
    return _read(path, state.st_mtime_ns, state.st_size, data.separator, data.encoding)


@lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int, separator: str | None, encoding: str | None) -> RawTable:
    return read_table(path, separator, encoding)


def survey(data: TableData) -> Survey:
    """Read the file and look at all its columns."""
    raw = read_once(data)
    _check_names(data, raw)
    kept = ~np.isin(raw.cells[data.target], data.missing)
    labels = _labels(data, raw.cells[data.target][kept])
    table = raw if kept.all() else replace(raw, cells={name: cells[kept] for name, cells in raw.cells.items()})
    roles = {data.target: "target"} | dict.fromkeys(data.hierarchy, "hierarchy")
    roles |= {data.row_weights: "row_weights"} if data.row_weights else {}
    if data.split.column and data.split.by != "time":
        roles[data.split.column] = "split"
    looks = [
        look_at(name, cells, data.missing, raw.format.separator, data.columns.get(name))
        for name, cells in table.cells.items()
        if name not in roles
    ]
    if not any(look.kind for look in looks):
        raise InputError(
            f"{data.file}: no column is left to learn from; "
            + "; ".join(f"{look.name} is {look.left_out} ({look.words})" for look in looks[:MOST_NAMED])
        )
    found = Survey(table, labels, looks, roles)
    return replace(found, about=_about(data, found), notes=tuple(_notes(data, found, int((~kept).sum()))))


def _check_names(data: TableData, raw: RawTable) -> None:
    asked = {"target": [data.target], "columns": [*data.columns], "hierarchy": [*data.hierarchy], "side": [*data.side]}
    asked |= {"row_weights": [data.row_weights] if data.row_weights else []}
    asked |= {"split.column": [data.split.column] if data.split.column else []}
    for key, names in asked.items():
        for name in names:
            if name in raw.left_out and not (key == "columns" and data.columns[name] == "ignore"):
                raise InputError(f"{key}: {data.file}: column {name!r} cannot be used: {raw.left_out[name]}")
            if name not in raw.cells and name not in raw.left_out:
                raise InputError(
                    f"{key}: {data.file} ({raw.format}) has no column {name!r}; it has {listed(raw.names, 12)}"
                )


def listed(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _labels(data: TableData, cells: Cells) -> Labels:
    counts = Counter(map(category_of, cells.tolist()))
    if not counts:
        raise InputError(f"target: column {data.target!r} of {data.file} is empty; it must hold the class of each row")
    numbers = {name: number_of(name) for name in counts}
    fractions = sum(number is not None and not number.is_integer() for number in numbers.values())
    if fractions > CONTINUOUS:
        raise InputError(
            f"target: {data.target!r} holds {len(counts):,} different numbers, a quantity rather than classes; make "
            "classes of it (low, middle, high) in a column of its own"
        )
    if len(counts) < 2:
        raise InputError(f"target: {data.target!r} is always {next(iter(counts))!r}; two classes at least are needed")
    if max(counts.values()) < LEAST_OF_CLASS:
        raise InputError(
            f"target: none of the {len(counts):,} classes of {data.target!r} has {LEAST_OF_CLASS} rows, one for each "
            "of training, validation and test; is it the right column?"
        )
    ordered = sorted(counts, key=lambda name: (numbers[name] is None, numbers[name] or 0.0, name))
    code = {name: place for place, name in enumerate(ordered)}
    return Labels(np.array([code[category_of(cell)] for cell in cells.tolist()], dtype=np.int64), ordered)


def _about(data: TableData, found: Survey) -> str:
    kinds = Counter(look.kind for look in found.used)
    left = [f"{look.name} ({look.left_out})" for look in found.looks if look.kind is None]
    more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
    return (
        f"{Path(data.file).name} ({found.table.format}): {len(found.table):,} rows, {len(found.labels.names):,} "
        f"classes; columns: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}"
        + (f"; left out: {', '.join(left[:MOST_NAMED])}{more}" if left else "")
    )


def _notes(data: TableData, found: Survey, dropped: int) -> list[str]:
    notes = []
    if dropped:
        notes.append(f"{dropped:,} rows without a {data.target!r} are left out")
    unsaid = {name: why for name, why in found.table.left_out.items() if name not in data.columns}
    notes += [f"column {name!r} is left out: {why}" for name, why in unsaid.items()]
    notes += [
        f"classes {listed(alike)} of {data.target!r} differ only in capitals or blanks: are they one class?"
        for alike in _spelt_alike(found.labels.names)
    ]
    counts = np.bincount(found.labels.codes, minlength=len(found.labels.names))
    few = [name for name, count in zip(found.labels.names, counts.tolist(), strict=True) if count < LEAST_OF_CLASS]
    if few and data.split.by == "random":
        notes.append(f"classes with fewer than {LEAST_OF_CLASS} rows are trained on and not tested: {listed(few)}")
    for look in found.used:
        if look.odd:
            notes.append(
                f"{len(look.odd):,} different cells of {look.name!r} are no numbers and count as missing: "
                f"{listed(look.odd)}"
            )
        if look.ambiguous:
            notes.append(f"dates of {look.name!r} are read day first; month first would fit as well")
    for name in leaking(found):
        notes.append(
            f"column {name!r} says the target of every row: is it a copy of {data.target!r}? `columns: {{{name}: "
            "ignore}` leaves it out"
        )
    return notes


def _spelt_alike(names: Sequence[str]) -> list[list[str]]:
    """Names that have the same letters, capitals and blanks aside."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault("".join(name.casefold().split()), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def leaking(found: Survey) -> list[str]:
    """Columns with few values, each of which goes with one class only, in all rows."""
    codes, names = found.labels.codes.tolist(), []
    for look in found.used:
        class_of: dict[str, int] = {}
        cells = found.table.cells[look.name].tolist()
        values = len(set(cells))
        if values < 2 or values * ROWS_PER_VALUE > len(codes):
            continue
        if all(class_of.setdefault(cell, code) == code for cell, code in zip(cells, codes, strict=True)):
            names.append(look.name)
    return names
