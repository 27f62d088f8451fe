"""Whether plain values from a file are what a dataclass says its fields hold.

Python does not ask: a list where a mapping should be is noticed far from the file, by whoever uses it first.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_shape(kind: type, values: Any) -> None:
    """Raise a `TypeError` that names the first field whose value cannot be its; unknown and missing ones included.

    A figure that is no number is None in JSON, so None stands for a float too.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"expected a mapping, got {type(values).__name__}")
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    for name, value in values.items():
        if name not in known:
            raise TypeError(f"unknown field {name!r}")
        if not _fits(value, hints[name]):
            raise TypeError(f"{name} is not what it should be")


def _fits(value: Any, hint: Any) -> bool:
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is Literal:
        return isinstance(value, str) and value in inside
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inside[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(_fits(item, inside[1]) for item in value.values())
    if hint is float:
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if hint is type(None) else isinstance(value, hint)
