"""JSON without NaN and infinities, whatever is written; what must come back does."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.base import plain_json

PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False)),
    lambda inside: st.one_of(st.lists(inside, max_size=4), st.dictionaries(st.text(), inside, max_size=4)),
    max_leaves=12,
)


def strict(text: str) -> Any:
    """As a reader reads it that knows JSON and nothing else."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@given(PLAIN)
def test_a_document_is_json_and_finite_values_are_as_they_were(value: Any) -> None:
    assert strict(plain_json.dumps(value)) == plain_json.finite(value)


def test_what_is_not_finite_is_null_however_deep_it_lies() -> None:
    document = {"a": math.nan, "b": [1.5, {"c": math.inf}], "d": (-math.inf, 2)}
    assert strict(plain_json.dumps(document)) == {"a": None, "b": [1.5, {"c": None}], "d": [None, 2]}
    assert plain_json.dumps({"a": [1, math.nan]}, compact=True) == '{"a":[1,null]}'
    assert plain_json.finite_figures({"a": 1.0, "b": None, "c": math.nan}) == {"a": 1.0}


@given(PLAIN)
def test_options_that_are_infinite_come_back(value: Any) -> None:
    assert plain_json.without_names(strict(json.dumps(plain_json.with_names(value)))) == value
