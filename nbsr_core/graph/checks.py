"""What a decision graph must be, checked before one is made; every error names the node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import networkx as nx
import numpy as np

from nbsr_core.errors import GraphError

ClassLabel: TypeAlias = int | str


def links_of(edges: Iterable[Any]) -> nx.DiGraph:
    """The edges as a graph of names; raises unless they are distinct pairs of names."""
    links = nx.DiGraph()
    for edge in edges:
        if not (is_list(edge) and len(edge) == 2):
            raise GraphError(f"an edge is a pair of node names (parent, child), got {edge!r}")
        parent, child = (checked_name(name, f"the edge {edge!r}") for name in edge)
        if parent == child:
            raise GraphError(f"node {parent!r} is its own child")
        if links.has_edge(parent, child):
            raise GraphError(f"duplicate edge {parent!r} -> {child!r}")
        links.add_edge(parent, child)
    if not links:
        raise GraphError("no edges and so no root: a decision graph is a root with at least one child")
    return links


def levels_in_order(links: nx.DiGraph, root: str | None) -> dict[str, int]:
    """The level of each node, in level order; raises unless all hang on one root, without cycles or skips."""
    try:
        generations = list(nx.topological_generations(links))
    except nx.NetworkXUnfeasible:
        cycle = [parent for parent, _ in nx.find_cycle(links)]
        raise GraphError(f"cycle: {' -> '.join(map(repr, [*cycle, cycle[0]]))}") from None
    starts = generations[0]
    if root is not None and root not in starts:
        raise GraphError(f"the root {root!r} must have children and no parents, as {listed(starts)} does")
    if len(starts) > 1:
        raise GraphError(f"a graph has one root, but {len(starts)} nodes have no parents: {listed(starts)}")
    level_of = {name: level for level, names in enumerate(generations) for name in names}
    for parent, child in links.edges:
        if level_of[child] != level_of[parent] + 1:
            parents = ", ".join(f"{name!r} on level {level_of[name]}" for name in links.pred[child])
            raise GraphError(
                f"edge {parent!r} -> {child!r} leads from level {level_of[parent]} to {level_of[child]}: "
                f"a node must lie one level below each of its parents, and those of {child!r} are {parents}"
            )
    order = [starts[0], *(child for _, child in nx.bfs_edges(links, starts[0]))]
    return {name: level_of[name] for name in order}


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def checked_name(name: object, where: str) -> str:
    if not (isinstance(name, str) and name):
        raise GraphError(f"a node name must be a non-empty string, got {name!r} in {where}")
    return name


def checked_count(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise GraphError(f"{what} must be a whole number >= 1, got {value!r}")
    return int(value)


def checked_cost(name: str, cost: Any) -> float:
    is_number = isinstance(cost, int | float | np.integer | np.floating) and not isinstance(cost, bool)
    if not (is_number and 0 <= cost < math.inf):
        raise GraphError(f"cost of node {name!r} must be a finite number >= 0, got {cost!r}")
    return abs(float(cost))  # abs: equal graphs write equal text, and -0.0 == 0.0


def checked_classes(name: str, labels: object) -> list[ClassLabel]:
    if not is_list(labels):
        raise GraphError(f"classes of node {name!r} must be a list of names or numbers, got {labels!r}")
    clean: list[ClassLabel] = []
    for label in labels:
        is_number = isinstance(label, int | np.integer) and not isinstance(label, bool) and label >= 0
        if not (is_number or (isinstance(label, str) and label)):
            raise GraphError(f"a class is a name or a number >= 0, got {label!r} at node {name!r}")
        clean.append(int(label) if is_number else label)
    for label, times in Counter(clean).items():
        if times > 1:
            raise GraphError(f"node {name!r} lists the class {label!r} {times} times")
    return clean


def check_keys(what: str, given: object, known: set[str]) -> None:
    if not isinstance(given, Mapping):
        raise GraphError(f"{what} must be a mapping with the keys {listed(sorted(known))}, got {given!r}")
    for key in given:
        if key not in known:
            raise GraphError(f"{what} has the unknown key {key!r}; known are {listed(sorted(known))}")


def listed(items: Sequence[object], limit: int = 8) -> str:
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(map(repr, items[:limit])) + more
