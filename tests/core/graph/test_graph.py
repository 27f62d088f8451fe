"""Decision graphs: every way to make one, what walkers rely on."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from itertools import pairwise
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbsr_core.errors import GraphError, InputError
from nbsr_core.graph.decision_graph import DecisionGraph

TREE = {
    "Animal": {"Pets": ["cat", "dog"], "Birds": ["bird"]},
    "Vehicle": {"Road": {"Heavy": ["truck"], "Light": ["car"]}, "Other": ["ship"]},
    "Plane": ["plane"],
}
Recipe: TypeAlias = tuple[list[tuple[str, str]], dict[str, float | int], dict[str, list[int | str]]]
few = settings(max_examples=50, deadline=None)
CLASSES = ["plane", "car", "bird", "cat", "dog", "ship", "truck"]


@st.composite
def level_edges(draw: st.DrawFn) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Edges of a random levelled DAG in random order, with the level of each node."""
    widths = [1, *draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))]
    levels = [[f"n{level}-{k}" for k in range(width)] for level, width in enumerate(widths)]
    edges: set[tuple[str, str]] = set()
    for above, here in pairwise(levels):
        for child in here:
            parents = draw(st.sets(st.sampled_from(above), min_size=1, max_size=3))
            edges |= {(parent, child) for parent in parents}
    level_of = {name: level for level, names in enumerate(levels) for name in names}
    return draw(st.permutations(sorted(edges))), level_of


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Arguments of `from_edges`; tests build the graph, as checked calls may not run inside a strategy."""
    edges, level_of = draw(level_edges())
    names = st.sampled_from([name for name in level_of if name != "n0-0"])
    costs = draw(st.dictionaries(names, st.floats(0, 1e6) | st.integers(0, 9)))
    labels = st.lists(st.integers(0, 9) | st.sampled_from(CLASSES), unique=True, max_size=4)
    return edges, costs, draw(st.dictionaries(names, labels))


# ---------------------------------------------------------------- what walkers rely on


@few
@given(level_edges())
def test_nodes_are_numbered_level_by_level_with_edges_kept_in_order(
    made: tuple[list[tuple[str, str]], dict[str, int]],
) -> None:
    edges, level_of = made
    graph = DecisionGraph.from_edges(edges)
    assert {node.name: node.level for node in graph.nodes} == level_of
    assert [i for level in graph.levels for i in level] == list(range(len(graph)))
    for level, indices in enumerate(graph.levels):
        assert {graph.nodes[i].level for i in indices} == {level}
    for i, node in enumerate(graph.nodes):
        assert graph.index(node.name) == i
        assert graph.name(i) == node.name
        assert [graph.name(c) for c in node.children] == [b for a, b in edges if a == node.name]
        assert {graph.name(p) for p in node.parents} == {a for a, b in edges if b == node.name}


@few
@given(recipes())
def test_arrays_say_what_the_nodes_say(recipe: Recipe) -> None:
    graph = DecisionGraph.from_edges(*recipe)
    table = graph.child_table
    assert table.dtype == np.int64
    for i, node in enumerate(graph.nodes):
        width = len(node.children)
        assert tuple(table[i, :width]) == node.children
        assert (table[i, width:] == -1).all()
        assert graph.costs[i] == node.cost
        assert graph.is_leaf[i] == (width == 0)
    widest = [graph.max_children(level) for level in range(graph.depth + 1)]
    assert widest == [int((table[list(level)] >= 0).sum(axis=1).max()) for level in graph.levels]
    assert max(widest) == table.shape[1]
    assert widest[-1] == 0


@few
@given(recipes())
def test_networkx_sees_the_same_graph(recipe: Recipe) -> None:
    graph = DecisionGraph.from_edges(*recipe)
    seen = graph.to_networkx()
    assert nx.is_directed_acyclic_graph(seen)
    assert nx.dag_longest_path_length(seen) == graph.depth
    assert seen.number_of_edges() == int((graph.child_table >= 0).sum())
    depths = nx.single_source_shortest_path_length(seen, graph.root.name)
    assert {name: data["level"] for name, data in seen.nodes.items()} == dict(depths)
    assert {name: data["cost"] for name, data in seen.nodes.items()} == {n.name: n.cost for n in graph.nodes}
    assert [seen.nodes[node.name]["index"] for node in graph.nodes] == list(range(len(graph)))


@few
@given(recipes())
def test_a_node_owns_what_its_descendants_own(recipe: Recipe) -> None:
    graph = DecisionGraph.from_edges(*recipe)
    seen = graph.to_networkx()
    said = {name: set(entry.get("classes", [])) for name, entry in graph.to_dict()["nodes"].items()}
    for node in graph.nodes:
        below = nx.descendants(seen, node.name) | {node.name}
        assert set(node.classes) == set().union(*(said[name] for name in below))
        assert len(set(node.classes)) == len(node.classes)


def test_arrays_are_read_only_even_in_copies() -> None:
    graph = DecisionGraph.uniform(2, 2)
    assert graph.costs.size == len(graph.child_table) == graph.is_leaf.size == 7
    for one in (graph, copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        for array in (one.costs, one.child_table, one.is_leaf):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


# ---------------------------------------------------------------- ways to make a graph


def test_uniform_tree_has_path_names_and_contiguous_siblings() -> None:
    graph = DecisionGraph.uniform(depth=2, width=3, cost=2)
    names = ["root", "1", "2", "3", "1.1", "1.2", "1.3", "2.1", "2.2", "2.3", "3.1", "3.2", "3.3"]
    assert [node.name for node in graph.nodes] == names
    assert graph.child_table[:4].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    assert graph.costs.tolist() == [0.0] + [2.0] * 12
    assert (len(graph), graph.num_experts, graph.depth) == (13, 12, 2)


def test_uniform_takes_one_width_a_level() -> None:
    graph = DecisionGraph.uniform(3, (2, 1, 3))
    assert [len(level) for level in graph.levels] == [1, 2, 2, 6]
    assert [graph.max_children(level) for level in range(4)] == [2, 1, 3, 0]


def test_large_tree() -> None:
    graph = DecisionGraph.uniform(6, 4)
    assert graph.num_experts == 5460
    assert [len(level) for level in graph.levels] == [4**level for level in range(7)]
    assert graph.name(5460) == "4.4.4.4.4.4"
    first_below = [level.start for level in graph.levels[1:]]
    assert first_below == [(4**level - 1) // 3 for level in range(1, 7)]
    routers = np.flatnonzero(~graph.is_leaf)
    assert (graph.child_table[routers] == 4 * routers[:, None] + np.arange(1, 5)).all()
    assert DecisionGraph.from_dict(graph.to_dict()) == graph


def test_layered_graph_shares_its_leaves() -> None:
    graph = DecisionGraph.layered([4, 4], cost=0.5)
    assert len(graph) == 9
    assert graph.child_table[1:5].tolist() == [[5, 6, 7, 8]] * 4
    assert graph.nodes[8].parents == (1, 2, 3, 4)
    assert graph.name(8) == "L2.4"
    assert set(graph.costs[1:]) == {0.5}


def test_chain_of_names_or_of_a_depth() -> None:
    graph = DecisionGraph.chain(["scan", "biopsy"], cost=3)
    assert [node.name for node in graph.nodes] == ["root", "scan", "biopsy"]
    assert [node.children for node in graph.nodes] == [(1,), (2,), ()]
    assert DecisionGraph.chain(2, cost=3).to_dict() == DecisionGraph.chain(["L1", "L2"], cost=3).to_dict()
    assert DecisionGraph.chain(3000).depth == 3000


def test_taxonomy_reads_nodes_from_keys_and_classes_from_lists() -> None:
    graph = DecisionGraph.taxonomy(TREE, costs={"Heavy": 4})
    assert [[graph.name(i) for i in level] for level in graph.levels] == [
        ["root"],
        ["Animal", "Vehicle", "Plane"],
        ["Pets", "Birds", "Road", "Other"],
        ["Heavy", "Light"],
    ]
    classes = {node.name: node.classes for node in graph.nodes}
    assert classes["Pets"] == ("cat", "dog")
    assert classes["Vehicle"] == ("truck", "car", "ship")
    assert set(classes["root"]) == set(CLASSES)
    assert graph.is_leaf[graph.index("Plane")]
    assert graph.costs[graph.index("Heavy")] == 4


def test_taxonomy_leaves_may_have_no_classes_or_get_them_apart() -> None:
    bare = DecisionGraph.taxonomy({"a": None, "b": [], "c": {}})
    assert [node.classes for node in bare.nodes] == [()] * 4
    apart = DecisionGraph.taxonomy({"a": None, "b": []}, classes={"a": range(2), "b": [2]})
    assert apart == DecisionGraph.taxonomy({"a": [0, 1], "b": [2]})


def test_from_edges_finds_a_root_of_any_name() -> None:
    graph = DecisionGraph.from_edges(iter([("b", "c"), ("triage", "b")]), costs={"b": 0.5, "c": 0})
    assert graph.root.name == "triage"
    assert graph.costs.tolist() == [0.0, 0.5, 0.0]


# ---------------------------------------------------------------- equality and round trips


@few
@given(recipes())
def test_round_trip_through_json_is_exact(recipe: Recipe) -> None:
    graph = DecisionGraph.from_edges(*recipe)
    text = json.dumps(graph.to_dict())
    back = DecisionGraph.from_dict(json.loads(text))
    assert back == graph
    assert back.nodes == graph.nodes
    assert json.dumps(back.to_dict()) == text
    resorted = DecisionGraph.from_dict(json.loads(json.dumps(graph.to_dict(), sort_keys=True)))
    assert resorted == graph


def test_equality_and_hash_cover_all_that_matters() -> None:
    edges = [("root", "a"), ("root", "b")]
    graph = DecisionGraph.from_edges(edges, costs={"b": 0})
    same = DecisionGraph.from_edges(edges, costs={"a": 1, "b": -0.0, "root": 0}, classes={"b": []})
    assert graph == same
    assert hash(graph) == hash(same)
    assert json.dumps(graph.to_dict()) == json.dumps(same.to_dict())
    others = [
        DecisionGraph.from_edges(edges[::-1]),
        DecisionGraph.from_edges([("root", "a"), ("a", "b")]),
        DecisionGraph.from_edges(edges, costs={"a": 2}),
        DecisionGraph.from_edges(edges, classes={"a": [0]}),
        DecisionGraph.from_edges([("start", "a"), ("start", "b")]),
    ]
    assert len({graph, same, *others}) == 6


def test_classes_said_of_a_router_and_of_its_child_count_once() -> None:
    edges = [("root", "a"), ("a", "b"), ("a", "c")]
    said_twice = DecisionGraph.from_edges(edges, classes={"a": ["y", "x", "z"], "b": ["x"], "c": ["y"]})
    assert said_twice == DecisionGraph.from_edges(edges, classes={"a": ["z"], "b": ["x"], "c": ["y"]})
    assert said_twice.nodes[1].classes == ("x", "y", "z")
    assert said_twice.to_dict()["nodes"]["a"]["classes"] == ["z"]


def test_pickle_and_deepcopy_keep_equality() -> None:
    graph = DecisionGraph.taxonomy(TREE)
    assert graph.costs.sum() == 9
    for twin in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph)):
        assert twin == graph
        assert hash(twin) == hash(graph)


# ---------------------------------------------------------------- class ownership


def test_admissible_marks_the_way_to_each_class() -> None:
    graph = DecisionGraph.taxonomy(TREE)
    allowed = graph.admissible(7, CLASSES)
    ways = {
        "cat": {"root", "Animal", "Pets"},
        "bird": {"root", "Animal", "Birds"},
        "truck": {"root", "Vehicle", "Road", "Heavy"},
        "plane": {"root", "Plane"},
    }
    for label, way in ways.items():
        assert {graph.name(i) for i in np.flatnonzero(allowed[:, CLASSES.index(label)]).tolist()} == way
    assert allowed.shape == (len(graph), 7)
    assert allowed.dtype == np.bool_


def test_a_class_may_have_several_owners_and_numbers_need_no_names() -> None:
    graph = DecisionGraph.taxonomy({"a": [0, 1], "b": [1, np.int64(2)]})
    expected = [[True, True, True], [True, True, False], [False, True, True]]
    assert graph.admissible(3).tolist() == expected
    assert graph.admissible(3, ["x", "y", "z"]).tolist() == expected
    assert DecisionGraph.taxonomy({"a": ["x", 1], "b": ["y", 2]}).admissible(3, ["x", "y", "z"]).tolist() == expected


def test_routers_may_own_classes_that_no_child_owns() -> None:
    graph = DecisionGraph.from_edges(
        [("root", "m1"), ("root", "m2"), ("m1", "leaf"), ("m2", "leaf")], classes={"m1": [0], "m2": [1]}
    )
    assert graph.admissible(2).tolist() == [[True, True], [True, False], [False, True], [False, False]]


@pytest.mark.parametrize(
    ("classes", "num_classes", "names", "error", "words"),
    [
        ({"a": [0]}, 3, None, GraphError, "no node owns the class 1, 2"),
        ({"a": ["cat"]}, 2, ["cat", "dog"], GraphError, "no node owns the class 'dog'"),
        ({}, 12, None, GraphError, "no node owns the class 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"),
        (
            {"b": [5]},
            2,
            None,
            GraphError,
            "node 'b' owns the unknown class 5; without class_names, classes are 0 to 1",
        ),
        ({"b": ["cat"]}, 2, None, GraphError, "node 'b' owns the unknown class 'cat'; without class_names"),
        ({"b": ["cow"]}, 2, ["cat", "dog"], GraphError, "node 'b' owns the unknown class 'cow'"),
        ({"a": ["cat"]}, 2, ["cat"], InputError, "class_names must be 2 different names, got ['cat']"),
        ({"a": ["cat"]}, 2, ["cat", "cat"], InputError, "must be 2 different names, got ['cat', 'cat']"),
    ],
)
def test_admissible_refuses(
    classes: dict[str, Any], num_classes: int, names: list[str] | None, error: type[Exception], words: str
) -> None:
    graph = DecisionGraph.from_edges([("root", "a"), ("a", "b")], classes=classes)
    with pytest.raises(error, match=re.escape(words)):
        graph.admissible(num_classes, names)


# ---------------------------------------------------------------- pruning


def walked(graph: DecisionGraph, choices: list[int]) -> list[str]:
    """Names on one walk from the root to a leaf; `choices` pick among the children."""
    i, names = 0, [graph.root.name]
    for choice in choices:
        if graph.is_leaf[i]:
            break
        children = graph.nodes[i].children
        i = children[choice % len(children)]
        names.append(graph.name(i))
    return names


def is_path(graph: DecisionGraph, names: list[str]) -> bool:
    return nx.is_path(graph.to_networkx(), names) and bool(graph.is_leaf[graph.index(names[-1])])


@few
@given(
    recipes(),
    st.lists(st.lists(st.integers(0, 9), min_size=5, max_size=5), min_size=1, max_size=6),
    st.data(),
)
def test_pruning_keeps_exactly_the_walks_in_use(recipe: Recipe, choices: list[list[int]], data: st.DataObject) -> None:
    graph = DecisionGraph.from_edges(*recipe)
    walks = [walked(graph, chosen) for chosen in choices]
    usage = np.zeros(len(graph))
    for walk in walks:
        usage[[graph.index(name) for name in walk]] += 1 / len(walks)
    small = graph.pruned(usage, 1e-9)
    assert {node.name for node in small.nodes} == {name for walk in walks for name in walk}
    assert all(is_path(small, walk) for walk in walks)
    share = data.draw(st.floats(0, 1))
    small = graph.pruned(usage, share)
    for walk in walks:
        if all(usage[graph.index(name)] >= share for name in walk):
            assert is_path(small, walk)
    for node in small.nodes:
        before = graph.nodes[graph.index(node.name)]
        assert (node.cost, node.level, set(node.classes)) == (before.cost, before.level, set(before.classes))
        assert bool(node.children) == bool(before.children)
    assert set(small.to_networkx().edges) == set(
        graph.to_networkx().subgraph([node.name for node in small.nodes]).edges
    )


@few
@given(recipes())
def test_pruning_at_zero_changes_nothing(recipe: Recipe) -> None:
    graph = DecisionGraph.from_edges(*recipe)
    assert graph.pruned(np.zeros(len(graph)), 0) == graph


def test_pruning_is_strict_and_takes_the_subtree_along() -> None:
    graph = DecisionGraph.uniform(2, 2)  # root 1 2 1.1 1.2 2.1 2.2
    small = graph.pruned([1, 0.9, 0.1, 0.8, 0.1, 0.05, 0.05], 0.1)
    assert [node.name for node in small.nodes] == ["root", "1", "2", "1.1", "1.2", "2.1"]
    small = graph.pruned([1, 0.9, 0.1, 0.8, 0.1, 0.05, 0.05], 0.11)
    assert [node.name for node in small.nodes] == ["root", "1", "1.1"]


def test_pruned_shared_node_survives_through_its_other_parent() -> None:
    graph = DecisionGraph.layered([2, 2])
    small = graph.pruned([1, 0, 1, 0.5, 0.5], 0.25)
    assert [node.name for node in small.nodes] == ["root", "L1.2", "L2.1", "L2.2"]


def test_a_router_never_loses_its_last_child() -> None:
    graph = DecisionGraph.uniform(2, 3)
    usage = np.full(len(graph), 0.01)
    usage[[0, graph.index("2"), graph.index("2.3")]] = [1, 0.3, 0.02]
    assert [node.name for node in graph.pruned(usage, 0.5).nodes] == ["root", "2", "2.3"]
    assert [node.name for node in graph.pruned(np.zeros(13), 0.5).nodes] == ["root", "1", "1.1"]


def test_a_class_whose_leaf_was_pruned_belongs_to_the_nodes_above() -> None:
    graph = DecisionGraph.taxonomy({"a": {"x": [0], "y": [1]}, "b": [2]})
    small = graph.pruned([1, 0.6, 0.4, 0.6, 0.0], 0.01)  # root a b x y
    assert [node.name for node in small.nodes] == ["root", "a", "b", "x"]
    assert small.admissible(3)[:, 1].tolist() == [True, True, False, False]
    assert DecisionGraph.from_dict(small.to_dict()) == small


@pytest.mark.parametrize(
    ("usage", "share", "words"),
    [
        ([1, 1], 0.1, "usage must be one share per node, [3], got shape [2]"),
        ([[1, 1, 1]], 0.1, "got shape [1, 3]"),
        ([1, -0.5, 1], 0.1, "usage must be a share between 0 and 1, got -0.5"),
        ([1, math.nan, 1], 0.1, "usage must be a share between 0 and 1, got nan"),
        ([50.0, 30, 20], 0.1, "usage must be a share between 0 and 1, got 50.0"),
        ([1, 1, 1], -0.1, "min_share must be a share between 0 and 1, got -0.1"),
        ([1, 1, 1], math.nan, "min_share must be a share between 0 and 1, got nan"),
    ],
)
def test_pruned_refuses(usage: Any, share: float, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        DecisionGraph.chain(2).pruned(usage, share)


# ---------------------------------------------------------------- for the eye


# ---------------------------------------------------------------- a generalist first


@few
@given(recipes())
def test_a_generalist_comes_first_and_the_rest_stays_as_it_was(recipe: Recipe) -> None:
    graph = DecisionGraph.from_edges(*recipe)
    more = graph.with_generalist("first of all", cost=2.5)
    root, first, *rest = more.nodes
    assert root.children == (1,)
    assert (first.name, first.level, first.cost, first.parents) == ("first of all", 1, 2.5, (0,))
    assert root.classes == first.classes == graph.root.classes
    assert [more.name(child) for child in first.children] == [graph.name(child) for child in graph.root.children]
    assert len(rest) == graph.num_experts
    for node, before in zip(rest, graph.nodes[1:], strict=True):
        assert (node.name, node.cost, node.classes) == (before.name, before.cost, before.classes)
        assert node.level == before.level + 1
        assert [more.name(child) for child in node.children] == [graph.name(child) for child in before.children]


def test_every_class_is_admissible_at_the_generalist() -> None:
    graph = DecisionGraph.taxonomy(TREE)
    before, owned = graph.admissible(7, CLASSES), graph.with_generalist().admissible(7, CLASSES)
    assert owned[1].all()
    assert (owned[2:] == before[1:]).all()


def test_a_generalist_needs_a_name_of_its_own() -> None:
    with pytest.raises(GraphError, match=r"the graph has a node 'Generalist' already: give the generalist another"):
        DecisionGraph.chain(2).with_generalist().with_generalist()


def test_first_choices_are_where_walks_first_part() -> None:
    tree = DecisionGraph.uniform(2, 3)
    assert tree.first_choices == tree.levels[1]
    assert tree.with_generalist().first_choices == tree.with_generalist().levels[2]
    late = DecisionGraph.from_edges([("root", "a"), ("a", "b"), ("b", "c"), ("b", "d"), ("d", "e")])
    assert [late.name(node) for node in late.first_choices] == ["c", "d"]
    chain = DecisionGraph.chain(3)
    assert chain.first_choices == chain.levels[1], "nobody has a choice"


def test_repr_is_short() -> None:
    assert repr(DecisionGraph.uniform(2, 4)) == "DecisionGraph(depth 2, 21 nodes: 1 + 4 + 16)"
    assert repr(DecisionGraph.chain(99)) == ("DecisionGraph(depth 99, 100 nodes: 1 + 1 + 1 + 1 + 1 + 1 + ... + 1 + 1)")


def test_render_draws_the_tree() -> None:
    assert DecisionGraph.taxonomy(TREE, costs={"Other": 2.5}).render() == "\n".join(
        [
            "DecisionGraph(depth 3, 10 nodes: 1 + 3 + 4 + 2)",
            "root",
            "├─ Animal",
            "│  ├─ Pets [cat, dog]",
            "│  └─ Birds [bird]",
            "├─ Vehicle",
            "│  ├─ Road",
            "│  │  ├─ Heavy [truck]",
            "│  │  └─ Light [car]",
            "│  └─ Other (cost 2.5) [ship]",
            "└─ Plane [plane]",
        ]
    )


def test_render_expands_shared_nodes_once() -> None:
    lines = DecisionGraph.layered([2, 1, 1]).render().splitlines()
    assert lines[1:] == [
        "root",
        "├─ L1.1",
        "│  └─ L2.1",
        "│     └─ L3.1",
        "└─ L1.2",
        "   └─ L2.1 (see above)",
    ]


def test_render_cuts_levels_first_and_then_lines() -> None:
    lines = DecisionGraph.uniform(6, 4).render(max_lines=21).splitlines()
    assert len(lines) == 22
    assert lines[-1] == "   └─ 4.4 ..."
    lines = DecisionGraph.uniform(1, 100).render(max_lines=5).splitlines()
    assert lines[1:] == ["root", "├─ 1", "├─ 2", "├─ 3", "├─ 4", "..."]
