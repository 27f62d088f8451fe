"""Decision graphs: what is refused, with which words."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import nbsr_core.graph.decision_graph
from nbsr_core.errors import GraphError
from nbsr_core.graph.decision_graph import DecisionGraph

TREE = {
    "Animal": {"Pets": ["cat", "dog"], "Birds": ["bird"]},
    "Vehicle": {"Road": {"Heavy": ["truck"], "Light": ["car"]}, "Other": ["ship"]},
    "Plane": ["plane"],
}


@pytest.fixture(scope="module")
def unchecked() -> Iterator[ModuleType]:
    """The module as users run it, without the argument checks that tests may add on import."""
    name = "graph_without_import_hook"
    spec = importlib.util.spec_from_file_location(name, nbsr_core.graph.decision_graph.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ([], "no edges and so no root"),
        ([("root", "a"), ("a", "a")], "node 'a' is its own child"),
        ([("root", "a"), ("root", "a")], "duplicate edge 'root' -> 'a'"),
        ([("root", "a"), ("a", "b"), ("b", "a")], "cycle: 'a' -> 'b' -> 'a'"),
        ([("a", "b"), ("b", "c"), ("c", "a")], "cycle: 'a' -> 'b' -> 'c' -> 'a'"),
        ([("root", "a"), ("b", "c")], "a graph has one root, but 2 nodes have no parents: 'root', 'b'"),
        (
            [("root", "a"), ("a", "b"), ("root", "b")],
            "edge 'root' -> 'b' leads from level 0 to 2: a node must lie one level below each of its "
            "parents, and those of 'b' are 'a' on level 1, 'root' on level 0",
        ),
        ([("root", "")], "a node name must be a non-empty string, got '' in the edge ('root', '')"),
    ],
)
def test_edges_that_cannot_be_walked(edges: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(GraphError, match=re.escape(words)):
        DecisionGraph.from_edges(edges)


@pytest.mark.parametrize("cost", [-1, -1e-9, math.nan, math.inf])
def test_impossible_costs(cost: float) -> None:
    words = f"must be a finite number >= 0, got {cost!r}"
    with pytest.raises(GraphError, match=re.escape(f"cost of node 'b' {words}")):
        DecisionGraph.from_edges([("root", "a"), ("a", "b")], costs={"b": cost})
    for make in (DecisionGraph.chain, lambda depth, cost: DecisionGraph.uniform(depth, 2, cost)):
        with pytest.raises(GraphError, match=words):
            make(1, cost=cost)


def test_the_root_costs_nothing() -> None:
    with pytest.raises(GraphError, match=r"root 'root' has no expert: its cost is 0, got 2\.0"):
        DecisionGraph.from_edges([("root", "a")], costs={"root": 2})


@pytest.mark.parametrize("field", ["costs", "classes"])
def test_costs_and_classes_of_unknown_nodes(field: str) -> None:
    given: dict[str, Any] = {"costs": {"zz": 1.0}, "classes": {"zz": ["cat"]}}
    with pytest.raises(GraphError, match="for the node 'zz', which is on no edge"):
        DecisionGraph.from_edges([("root", "a")], **{field: given[field]})


def test_sizes_below_one() -> None:
    with pytest.raises(GraphError, match="depth must be a whole number >= 1, got 0"):
        DecisionGraph.uniform(0, 2)
    with pytest.raises(GraphError, match="width of level 1 must be a whole number >= 1, got 0"):
        DecisionGraph.uniform(2, 0)
    with pytest.raises(GraphError, match="width of level 2 must be a whole number >= 1, got -3"):
        DecisionGraph.uniform(2, [2, -3])
    with pytest.raises(GraphError, match=re.escape("one a level: depth is 3, got [2, 2]")):
        DecisionGraph.uniform(3, [2, 2])
    with pytest.raises(GraphError, match="width of level 2 must be a whole number >= 1, got 0"):
        DecisionGraph.layered([2, 0])
    with pytest.raises(GraphError, match="depth must be a whole number >= 1, got 0"):
        DecisionGraph.chain(0)
    for empty in (lambda: DecisionGraph.layered([]), lambda: DecisionGraph.chain([])):
        with pytest.raises(GraphError, match="no edges and so no root"):
            empty()


def test_duplicate_names() -> None:
    with pytest.raises(GraphError, match="duplicate node name 'a' in the chain"):
        DecisionGraph.chain(["a", "b", "a"])
    with pytest.raises(GraphError, match="duplicate node name 'root' in the chain"):
        DecisionGraph.chain(["a", "root"])
    with pytest.raises(GraphError, match="duplicate node name 'x': under 'a' and under 'b'"):
        DecisionGraph.taxonomy({"a": {"x": []}, "b": {"x": []}})
    with pytest.raises(GraphError, match="duplicate node name 'root': as the root and under 'a'"):
        DecisionGraph.taxonomy({"a": {"root": []}})


@pytest.mark.parametrize(
    ("mapping", "classes", "words"),
    [
        ({}, None, "no edges and so no root"),
        ({"a": {"b": "cat"}}, None, "node 'b' needs a dict of nodes, list of classes or None: 'cat'"),
        ({"a": 3}, None, "node 'a' needs a dict of nodes, list of classes or None: 3"),
        ({"a": ["cat", "cat"]}, None, "node 'a' lists the class 'cat' 2 times"),
        ({"a": ["cat", {"b": []}]}, None, "a class is a name or a number >= 0, got {'b': []} at node 'a'"),
        ({"a": [True]}, None, "got True at node 'a'"),
        ({"a": [-1]}, None, "got -1 at node 'a'"),
        ({"a": [1.0]}, None, "got 1.0 at node 'a'"),
        ({"a": ["cat"]}, {"a": ["dog"]}, "classes of node 'a' are given twice"),
    ],
)
def test_taxonomy_refuses(mapping: Any, classes: Any, words: str) -> None:
    with pytest.raises(GraphError, match=re.escape(words)):
        DecisionGraph.taxonomy(mapping, classes=classes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": 1}, "the graph has the unknown key 'extra'; known are 'nodes', 'root'"),
        ({"root": "zz"}, "no root: 'root' must name one of the nodes, got 'zz'"),
        ({"root": None}, "no root: 'root' must name one of the nodes, got None"),
        ({"root": "a"}, "the root 'a' must have children and no parents, as 'root' does"),
        ({"nodes": ["a"]}, "'nodes' must map each name to its description, got ['a']"),
    ],
)
def test_from_dict_refuses_the_frame(change: dict[str, Any], words: str) -> None:
    d = DecisionGraph.chain(["a", "b"]).to_dict() | change
    with pytest.raises(GraphError, match=re.escape(words)):
        DecisionGraph.from_dict(d)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            {"a": {"colour": 1}},
            "node 'a' has the unknown key 'colour'; known are 'children', 'classes', 'cost'",
        ),
        ({"a": ["b"]}, "node 'a' must be a mapping with the keys 'children', 'classes', 'cost', got ['b']"),
        ({"a": {"children": ["zz"]}}, "node 'a' has the child 'zz', which is not among the nodes"),
        ({"a": {"children": "b"}}, "node 'a': 'children' must be a list of names, got 'b'"),
        ({"a": {"children": [["b"]]}}, "must be a non-empty string, got ['b'] in the children of 'a'"),
        ({3: {}}, "a node name must be a non-empty string, got 3 in nodes"),
        ({"x": {}, "w": {}}, "unreachable from the root 'root': 'w', 'x'"),
        (
            {"x": {"children": ["y"]}, "y": {}},
            "a graph has one root, but 2 nodes have no parents: 'root', 'x'",
        ),
        ({"x": {"children": ["y"]}, "y": {"children": ["x"]}}, "cycle: 'x' -> 'y' -> 'x'"),
        ({"a": {"children": ["b", "b"]}}, "duplicate edge 'a' -> 'b'"),
        ({"a": {"cost": "1", "children": ["b"]}}, "cost of node 'a' must be a finite number >= 0, got '1'"),
        ({"a": {"cost": None, "children": ["b"]}}, "cost of node 'a' must be a finite number >= 0, got None"),
        ({"b": {"cost": True}}, "cost of node 'b' must be a finite number >= 0, got True"),
        ({"b": {"classes": "cat"}}, "classes of node 'b' must be a list of names or numbers, got 'cat'"),
        ({"b": {"classes": [""]}}, "a class is a name or a number >= 0, got '' at node 'b'"),
    ],
)
def test_from_dict_refuses_nodes(nodes: dict[Any, Any], words: str) -> None:
    d = DecisionGraph.chain(["a", "b"]).to_dict()
    with pytest.raises(GraphError, match=re.escape(words)):
        DecisionGraph.from_dict({**d, "nodes": {**d["nodes"], **nodes}})


@pytest.mark.parametrize(
    ("maker", "argument", "words"),
    [
        ("from_edges", ["root", "a"], "an edge is a pair of node names (parent, child), got 'root'"),
        ("from_edges", [("root", "a", "b")], "pair of node names (parent, child), got ('root', 'a', 'b')"),
        (
            "from_edges",
            [("root", 3)],
            "a node name must be a non-empty string, got 3 in the edge ('root', 3)",
        ),
        ("chain", "abc", "depth must be a whole number >= 1, got 'abc'"),
        ("chain", 2.0, "depth must be a whole number >= 1, got 2.0"),
        ("chain", True, "depth must be a whole number >= 1, got True"),
        ("chain", ["a", ["b"]], "a node name must be a non-empty string, got ['b'] in the chain"),
        ("layered", [2, 1.5], "width of level 2 must be a whole number >= 1, got 1.5"),
        ("taxonomy", {1: ["cat"]}, "a node name must be a non-empty string, got 1 in the branch 'root'"),
        ("from_dict", [], "the graph must be a mapping with the keys 'nodes', 'root', got []"),
    ],
)
def test_wrong_types(unchecked: ModuleType, maker: str, argument: Any, words: str) -> None:
    with pytest.raises(GraphError, match=re.escape(words)):
        getattr(unchecked.DecisionGraph, maker)(argument)


def test_unknown_names_indices_and_levels() -> None:
    graph = DecisionGraph.taxonomy(TREE)
    with pytest.raises(GraphError, match=r"no node 'Petz' in DecisionGraph\(.*; close: 'Pets'"):
        graph.index("Petz")
    for index in (-1, len(graph)):
        with pytest.raises(GraphError, match=re.escape(f"no node {index}: indices run from 0 (the root) to 9")):
            graph.name(index)
    for level in (-1, 4):
        with pytest.raises(GraphError, match=re.escape(f"no level {level}: levels run from 0 (the root) to 3")):
            graph.max_children(level)
