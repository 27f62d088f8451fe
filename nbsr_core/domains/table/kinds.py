"""What kind of column is this? Inferred from its cells, said in words, and overruled by the study."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from nbsr_core.domains.table.cells import (
    NumberStyle,
    category_of,
    date_format,
    day_of,
    number_of,
    number_style,
    truth_words,
)
from nbsr_core.domains.table.options import ColumnChoice, Kind
from nbsr_core.domains.table.reading import Cells
from nbsr_core.errors import InputError

LeftOut = Literal["constant", "identifier", "empty", "ignore"]

FEWEST_NAMES = 20
"""Different values from which on a column may be one that only names its row."""

ODD_SHARE = 0.05
"""Of the different cells of a column of numbers, so many may be no numbers; they count as missing, and it is said."""

SOUNDS_LIKE_A_NAME = re.compile(r"(^|[^a-z])(id|ids|idx|index|uuid|guid|key|row|column 1)$", re.IGNORECASE)
MOST_SHOWN = 4


@dataclass(frozen=True)
class ColumnLook:
    """What a look at a column found.

    Attributes:
        kind: what it is read as; None if it is left out.
        left_out: why, in a word; None if it is not.
        words: what is in it, for people.
        missing: rows without a value.
        odd: cells that are not of its kind, and count as missing too.
        style: how its numbers are written.
        pattern: how its dates are written.
        truths: its words for no and yes.
        ambiguous: whether day and month of its dates could be the other way round.
    """

    name: str
    kind: Kind | None
    left_out: LeftOut | None
    words: str
    missing: int = 0
    odd: tuple[str, ...] = ()
    style: NumberStyle = "plain"
    pattern: str = ""
    truths: tuple[str, str] = ("", "")
    ambiguous: bool = False


def look_at(
    name: str,
    cells: Cells,
    missing: Collection[str],
    separator: str | None = None,
    choice: ColumnChoice | None = None,
) -> ColumnLook:
    """Infer the kind of a column, or check that it can be what the study says."""
    counts = Counter(cells.tolist())
    empty = sum(counts.pop(word, 0) for word in missing)
    if choice == "ignore":
        return ColumnLook(name, None, "ignore", "as the study says", empty)
    if not counts:
        if choice is not None:
            raise InputError(f"columns.{name}: all its cells are missing, so it cannot be {choice}")
        return ColumnLook(name, None, "empty", "no cell holds anything", empty)
    if choice is not None:
        return _chosen(name, counts, empty, separator, choice)
    if len(counts) == 1 and not empty:
        return ColumnLook(name, None, "constant", f"always {_short(next(iter(counts)))}", empty)
    return _inferred(name, counts, empty, separator)


def _inferred(name: str, counts: Mapping[str, int], empty: int, separator: str | None) -> ColumnLook:
    truths = truth_words(counts)
    if truths is not None:
        return ColumnLook(name, "boolean", None, " or ".join(truths), empty, truths=truths)
    numeric = _numeric(name, counts, empty, separator)
    if numeric is not None and len(numeric.odd) <= ODD_SHARE * len(counts):
        why = _names_rows(name, counts)
        return ColumnLook(name, None, "identifier", why, empty) if why else numeric
    pattern = date_format(counts)
    if pattern is not None:
        return _date(name, counts, empty, pattern)
    held = sum(counts.values())
    if len(counts) >= FEWEST_NAMES and 2 * len(counts) > held:
        return ColumnLook(name, None, "identifier", f"{len(counts):,} different texts in {held:,} rows", empty)
    return _categorical(name, counts, empty)


def _chosen(
    name: str, counts: Mapping[str, int], empty: int, separator: str | None, choice: ColumnChoice
) -> ColumnLook:
    place = f"columns.{name}"
    if choice == "categorical":
        return _categorical(name, counts, empty)
    if choice == "boolean":
        truths = truth_words(counts)
        if truths is None:
            raise InputError(f"{place}: boolean needs two of its values, such as yes and no; it holds {_some(counts)}")
        return ColumnLook(name, "boolean", None, " or ".join(truths), empty, truths=truths)
    if choice == "date":
        pattern = date_format(counts)
        if pattern is None:
            raise InputError(f"{place}: no format of dates fits all its cells; it holds {_some(counts)}")
        return _date(name, counts, empty, pattern)
    numeric = _numeric(name, counts, empty, separator)
    if numeric is None or 2 * len(numeric.odd) > len(counts):
        raise InputError(f"{place}: most of its cells are no numbers; it holds {_some(counts)}")
    return numeric


def _numeric(name: str, counts: Mapping[str, int], empty: int, separator: str | None) -> ColumnLook | None:
    style = number_style(counts, separator)
    numbers = {cell: number_of(cell, style) for cell in counts}
    odd = tuple(cell for cell, number in numbers.items() if number is None)
    known = [number for number in numbers.values() if number is not None]
    if not known:
        return None
    words = f"{min(known):.6g} to {max(known):.6g}"
    if style != "plain":
        words += f" ({style})"
    return ColumnLook(name, "numeric", None, words, empty, odd, style)


def _names_rows(name: str, counts: Mapping[str, int]) -> str | None:
    """Why a column of numbers only names its rows; None where it does not."""
    held = sum(counts.values())
    if len(counts) < FEWEST_NAMES or not all(cell.lstrip("+-").isdigit() for cell in map(category_of, counts)):
        return None
    sounds = SOUNDS_LIKE_A_NAME.search(name) is not None
    if len(counts) == held:
        numbers = [int(category_of(cell)) for cell in counts]
        if sounds or max(numbers) - min(numbers) + 1 == held:
            return f"{held:,} different whole numbers in {held:,} rows"
    elif sounds:
        return f"called {name!r}; {len(counts):,} different whole numbers (split.by: group keeps equal ones together)"
    return None


def _date(name: str, counts: Mapping[str, int], empty: int, pattern: str) -> ColumnLook:
    other = pattern.replace("%d/%m", "%m/%d")
    unsure = other != pattern and all(day_of(cell, other) is not None for cell in counts)
    return ColumnLook(name, "date", None, f"like {next(iter(counts))}", empty, pattern=pattern, ambiguous=unsure)


def _categorical(name: str, counts: Mapping[str, int], empty: int) -> ColumnLook:
    merged = Counter[str]()
    for cell, count in counts.items():
        merged[category_of(cell)] += count
    return ColumnLook(name, "categorical", None, f"{len(merged):,} values: {_some(merged)}", empty)


def _some(counts: Mapping[str, int]) -> str:
    first = [_short(cell) for cell, _ in Counter(counts).most_common(MOST_SHOWN)]
    return ", ".join(first) + (", ..." if len(counts) > MOST_SHOWN else "")


def _short(cell: str) -> str:
    return cell if len(cell) <= 24 else f"{cell[:22]}..."
