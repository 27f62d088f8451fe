"""Numbers as users give them, numpy's included: taken over as Python's own, or refused by name."""

from __future__ import annotations

import math
from numbers import Real
from operator import index

from nbsr_core.errors import InputError


def number(value: object) -> float | None:
    """The value as a float, None where it is no real number (truth values, NaN and what float cannot hold are none)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return None if math.isnan(found) else found


def whole_number(name: str, value: object, least: int) -> int:
    """The value as an int of at least `least`."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        found = index(value)
        if found >= least:
            return found
        raise InputError(f"{name} must be at least {least}, got {found}")
    raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
