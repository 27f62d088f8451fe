"""JSON that every reader takes: it knows no NaN and no infinity, which Python's own `json` writes all the same.

A figure that is not finite becomes null. An option may well be infinite and has to come back as it was: `with_names`
writes such a number by its name, and `without_names` reads it again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

# {NAMED: "inf"} stands for the number of that name.
NAMED = "$float"

Key = TypeVar("Key")


def dumps(value: Any, *, indent: int | None = None, compact: bool = False) -> str:
    """The JSON document of plain values; numbers that are not finite are null."""
    separators = (",", ":") if compact else None
    try:
        return json.dumps(value, allow_nan=False, indent=indent, separators=separators)
    except (TypeError, ValueError):  # seldom: so thousands of figures are looked at one by one only then
        return json.dumps(finite(value), allow_nan=False, indent=indent, separators=separators)


def finite(value: Any) -> Any:
    """Plain values with None for numbers that are not finite, however they are nested."""
    return _each_float(value, lambda number: number if math.isfinite(number) else None)


def finite_figures(figures: Mapping[Key, float | None]) -> dict[Key, float]:
    """Those figures that are finite numbers."""
    return {name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)}


def with_names(value: Any) -> Any:
    """Plain values with `{NAMED: name}` for numbers that are not finite."""
    return _each_float(value, lambda number: number if math.isfinite(number) else {NAMED: str(number)})


def without_names(value: Any) -> Any:
    """The inverse of `with_names`."""
    if isinstance(value, dict):
        if value.keys() == {NAMED}:
            return float(value[NAMED])
        return {name: without_names(item) for name, item in value.items()}
    return [without_names(item) for item in value] if isinstance(value, list) else value


def _each_float(value: Any, change: Callable[[float], Any]) -> Any:
    if isinstance(value, float):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _each_float(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_each_float(item, change) for item in value]
    return value
