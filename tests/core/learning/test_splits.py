"""What data says of itself: its fingerprint, and what models are built from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from nbsr_core.domains.domain import Signature
from nbsr_core.learning.splits import Split, Splits


def splits(structure: Mapping[str, Any] | None = None, first: str = "a") -> Splits:
    rows = Split(torch.eye(2), torch.tensor([0, 1]))
    return Splits(rows, rows, rows, (first, "b"), ("x", "y"), "made up", synthetic=True, structure=structure or {})


def test_a_model_is_built_from_names_and_structure_of_its_data() -> None:
    structure = {"panels": {"blood": {"columns": [0], "cost": 10}}}
    assert Signature.of(splits(structure)) == Signature(("a", "b"), ("x", "y"), structure)


@pytest.mark.parametrize("changed", [{"structure": {"panels": [1, 2]}}, {"structure": {"panels": [2]}}, {"first": "c"}])
def test_the_fingerprint_knows_names_and_structure(changed: dict[str, Any]) -> None:
    assert splits({"panels": [1]}).fingerprint() != splits(**{"structure": {"panels": [1]}, **changed}).fingerprint()


def test_the_fingerprint_knows_no_order_of_keys() -> None:
    assert splits({"a": 1, "b": 2}).fingerprint() == splits({"b": 2, "a": 1}).fingerprint()
