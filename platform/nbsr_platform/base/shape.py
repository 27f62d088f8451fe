"""Whether plain values from a file are what a dataclass, or a `TypedDict`, says its fields hold.

Python does not ask: a list where a mapping should be is noticed far from the file, by whoever uses it first.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict


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
        if not fits(value, hints[name], none_for_float=True):
            raise TypeError(f"{name} is not what it should be")


def fits(value: Any, hint: Any, *, none_for_float: bool = False) -> bool:
    """Whether a plain value is what an annotation says; a `TypedDict` may have further keys.

    Args:
        value: as it came from JSON.
        hint: the annotation.
        none_for_float: whether None, and numbers that are not finite, stand for a float too.
    """

    def inside(item: Any, hint: Any) -> bool:
        return fits(item, hint, none_for_float=none_for_float)

    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        # A number that is not finite becomes None in JSON.
        value = None if isinstance(value, float) and not _is_number(value) else value
        return any(inside(value, one) for one in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is list:
        return isinstance(value, list) and all(inside(item, parts[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(inside(item, parts[1]) for item in value.values())
    if is_typeddict(hint):
        found = _keys(hint)
        return (
            isinstance(value, dict)
            and all(name in value for name, (_, required) in found.items() if required)
            and all(inside(value[name], part) for name, (part, _) in found.items() if name in value)
        )
    if hint is float:
        return _is_number(value) or (none_for_float and (value is None or isinstance(value, float)))
    if hint is int:
        return isinstance(value, int) and _is_number(value)
    return value is None if hint is type(None) else isinstance(value, hint)


def _is_number(value: Any) -> bool:
    """Finite, and no whole number that is too large to become a float."""
    largest = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -largest <= value <= largest


@cache
def _keys(kind: type) -> dict[str, tuple[Any, bool]]:
    """Annotations of a `TypedDict` by key, and whether it must be there.

    Its own `__required_keys__` do not know: annotations that are kept as texts are not looked into.
    """
    marked, plain = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    return {name: (plain[name], get_origin(marked[name]) is not NotRequired) for name in plain}
