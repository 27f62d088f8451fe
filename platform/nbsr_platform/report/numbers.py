"""Figures on their way into a page: short, finite, and no more of them than a picture can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbsr_platform.base.plain_json import finite

# More digits than a screen has pixels.
DIGITS = 5


def brief(value: Any) -> Any:
    """Numbers to five digits, what is not finite to None, in whatever they are nested."""
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        rounded = finite(float(f"{value:.{DIGITS}g}"))  # the largest numbers are rounded up to infinity
        return int(rounded) if rounded is not None and rounded.is_integer() and abs(rounded) < 1e9 else rounded
    if isinstance(value, dict):
        return {str(name): brief(item) for name, item in value.items()}
    return [brief(item) for item in value]


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the items, first and last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]
