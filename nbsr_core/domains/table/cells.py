"""Cells of a table: text, whatever they come from, and how numbers, truth values and dates are read from it.

A CSV file has text, a Parquet file and somebody's data frame have values. All become text first, in one way, so that a
model that was trained on a file gives the same answer to the same row however it is asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from nbsr_core.errors import InputError

NumberStyle = Literal["plain", "decimal comma", "thousands comma"]
WHOLE = re.compile(r"[+-]?\d+\.0+")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
THOUSANDS_COMMA = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
TRUTHS = (("false", "true"), ("no", "yes"), ("f", "t"), ("n", "y"), ("0", "1"))
"""Pairs of words for no and yes, in lower case."""

ISO = "ISO"
_DAYS = ("%d.%m.%Y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y")
DATE_FORMATS = (ISO, *(day + time for day in _DAYS for time in ("", " %H:%M", " %H:%M:%S")))
SECONDS_OF_DAY = 86_400
EPOCH = datetime(1970, 1, 1)


def text_of(value: Any) -> str:
    """A value as the text of a cell, "" where there is none.

    Whole numbers have no point, dates and times of day are written as ISO has them, and a duration is its seconds.
    """
    if value is None or type(value).__name__ == "NAType":  # pandas' own "nothing", which cannot be compared
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bytes):
        try:
            return value.decode().strip()
        except UnicodeDecodeError:
            raise InputError(f"a cell holds bytes that are no text: {value[:20]!r}") from None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, np.timedelta64):  # for numpy a whole number too
        return text_of(value / np.timedelta64(1, "s"))
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real | Decimal):
        found = float(value)
        if found != found:
            return ""
        return str(int(found)) if found.is_integer() and abs(found) < 2**53 else repr(found)
    if isinstance(value, date):  # a datetime is one too; pandas' NaT differs from itself
        return value.isoformat() if value == value else ""
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return text_of(value.total_seconds())
    if isinstance(value, np.generic):
        return "" if value != value else text_of(value.item())
    raise InputError(f"a cell must hold a number, a text, a date or a truth value, got {type(value).__name__}")


def category_of(cell: str) -> str:
    """A cell as the name of a category or class: `3.0` is `3`, as programs differ in how they write it."""
    return cell.partition(".")[0] if WHOLE.fullmatch(cell) else cell


def number_of(cell: str, style: NumberStyle = "plain") -> float | None:
    """A finite number; None where the cell holds none."""
    if "_" in cell:  # Python's own
        return None
    try:
        found = float(cell)
    except ValueError:
        if style == "decimal comma" and DECIMAL_COMMA.fullmatch(cell):
            found = float(cell.replace(",", "."))
        elif style == "thousands comma" and THOUSANDS_COMMA.fullmatch(cell):
            found = float(cell.replace(",", ""))
        else:
            return None
    return found if math.isfinite(found) else None


def number_style(cells: Iterable[str], separator: str | None) -> NumberStyle:
    """How a column writes its numbers: one that holds commas means them as thousands only where cells are so cut."""
    commas = [cell for cell in cells if "," in cell]
    if not commas:
        return "plain"
    if separator != "," and all(map(DECIMAL_COMMA.fullmatch, commas)):
        return "decimal comma"
    return "thousands comma" if all(map(THOUSANDS_COMMA.fullmatch, commas)) else "plain"


def truth_words(cells: Iterable[str]) -> tuple[str, str] | None:
    """The words for no and yes that a column uses, both of them; None where it holds others."""
    found = {category_of(cell.lower()) for cell in cells}
    return next((pair for pair in TRUTHS if found == set(pair)), None)


def date_format(cells: Collection[str]) -> str | None:
    """The format that all cells have; day before month where both would do. None where there is none."""
    first = next(iter(cells), "")
    for pattern in DATE_FORMATS:
        if day_of(first, pattern) is not None and all(day_of(cell, pattern) is not None for cell in cells):
            return pattern
    return None


def day_of(cell: str, pattern: str) -> float | None:
    """Days since 1970, UTC where a cell has a zone; None where it is no date of this format."""
    if len(cell) < 8 or (pattern == ISO and cell[4:5] != "-"):  # ISO also knows dates without dashes, which are numbers
        return None
    read: Callable[[], datetime] = partial(datetime.strptime, cell, pattern)
    if pattern == ISO:
        read = partial(datetime.fromisoformat, cell)
    try:
        moment = read()
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    return (moment - EPOCH).total_seconds() / SECONDS_OF_DAY
