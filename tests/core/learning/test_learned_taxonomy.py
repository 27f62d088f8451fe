"""Classes that are hard to tell apart share a group, whatever their number."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning.learned_taxonomy import LearnedTaxonomy
from nbsr_core.learning.splits import Split, Splits


def clusters(classes: int, seed: int = 0, rows: int = 12) -> Splits:
    """Classes in pairs: the first two lie close together, so do the next two, and so on."""
    draw = torch.Generator().manual_seed(seed)
    middle = torch.randn(classes, 6, generator=draw) * 6
    middle[1::2] = middle[: 2 * (classes // 2) : 2] + 0.3

    def split() -> Split:
        y = torch.arange(classes).repeat(rows)
        return Split(middle[y] + torch.randn(len(y), 6, generator=draw), y)

    names = [f"k{number}" for number in range(classes)]
    return Splits(split(), split(), split(), names, list("abcdef"), source="made up", synthetic=True)


def levels_of(graph: DecisionGraph, classes: int) -> list[set[frozenset[int]]]:
    """The groups of each level below the root."""
    owns = graph.admissible(classes, [f"k{number}" for number in range(classes)])
    return [{frozenset(np.flatnonzero(owns[node]).tolist()) for node in level} for level in graph.levels[1:]]


def test_classes_that_are_confused_share_a_group() -> None:
    found = LearnedTaxonomy([f"k{number}" for number in range(8)], depth=1, width=4, generalist=False)
    assert levels_of(found.learn(clusters(8)), 8)[0] == {frozenset(pair) for pair in ((0, 1), (2, 3), (4, 5), (6, 7))}


@pytest.mark.parametrize("generalist", [False, True])
@given(classes=st.integers(2, 20), depth=st.integers(1, 4), width=st.integers(2, 5), seed=st.integers(0, 9))
def test_groups_are_nested_and_no_level_repeats_another(
    generalist: bool, classes: int, depth: int, width: int, seed: int
) -> None:
    plan = LearnedTaxonomy([f"k{number}" for number in range(classes)], depth, width, generalist)
    for graph in (plan.before_training(), plan.learn(clusters(classes, seed))):
        levels = levels_of(graph, classes)[generalist:]
        assert len(levels) <= depth
        for level in levels:
            assert sorted(k for group in level for k in group) == list(range(classes))
        for above, below in pairwise(levels):
            assert len(above) < len(below)
            assert all(any(small <= large for large in above) for small in below)
