"""What fuzz tests share: how bytes and plain values are damaged, and what may come of reading them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from nbsr_core.errors import InputError

# Where files are in memory if there is such a place: thousands of them are written, and many synced.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# As many examples as a fast test may have, and as a slow one may.
FEW, MANY = settings(max_examples=60), settings(max_examples=300)

STRANGE_TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "~", "null", "../..", "a\0b", "\x1b[2J", "[/x]", "\ud800", "1e999", "-1", "iris", "x" * 5000]),
)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 3),
    st.floats(),
    st.sampled_from([0, -1, 2**63, 2**31, 1e308, -1e-308]),
    STRANGE_TEXT,
)


def plain_values(keys: st.SearchStrategy[str], leaves: int = 12) -> st.SearchStrategy[Any]:
    """Mappings and lists of anything."""
    return st.recursive(
        SCALARS,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=5)),
        max_leaves=leaves,
    )


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that were changed, cut, doubled or put in at a few places."""
    result = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(result) - 1)))
        end = min(len(result), at + draw(st.sampled_from([1, 1, 2, 5, 40, 1000])))
        how = draw(st.sampled_from(["flip", "cut", "tail", "double", "zeros", "put", "digit"]))
        if how == "flip" and result:
            result[at] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del result[at:end]
        elif how == "tail":
            del result[at:]
        elif how == "double":
            result[at:at] = result[at:end]
        elif how == "zeros":
            result[at:end] = bytes(end - at)
        elif how == "put":
            result[at:at] = draw(st.binary(min_size=1, max_size=20))
        elif how == "digit":
            digits = [place for place in range(at, end) if 48 <= result[place] < 58]
            for place in digits:
                result[place] = draw(st.integers(48, 57))
    return bytes(result)


@st.composite
def places(draw: st.DrawFn, tree: Any) -> tuple[Any, ...]:
    """A path into plain values, the whole included: level by level, so that what is near the top is not left out."""
    path: tuple[Any, ...] = ()
    while isinstance(tree, dict | list) and tree and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(list(tree) if isinstance(tree, dict) else range(len(tree))))
        path, tree = (*path, key), tree[key]
    return path


@st.composite
def changed(draw: st.DrawFn, tree: Any, keys: st.SearchStrategy[str]) -> Any:
    """Plain values of which one or two are replaced, renamed or left out."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(places(tree))
        value = draw(plain_values(keys, 4))
        if not path:
            return value
        parent = tree
        for key in path[:-1]:
            parent = parent[key]
        how = draw(st.sampled_from(["replace", "replace", "remove", "rename"]))
        if how == "replace":
            parent[path[-1]] = value
        else:
            kept = parent.pop(path[-1])
            if how == "rename" and isinstance(parent, dict):
                parent[draw(keys)] = kept
    return tree


def good_or_refused(read: Callable[[], Any]) -> Any:
    """What is read, or None where it was refused with a message; anything else fails."""
    try:
        return read()
    except InputError as error:
        if not str(error).strip():
            pytest.fail("an error without a message")
        return None
    except Exception as error:
        pytest.fail(f"{type(error).__name__} instead of an InputError: {error}")
