"""The decision graph: which expert may follow which, at what cost, and which classes it stands for.

The paper's G = (V, E) as plain data, without parameters. A walk starts at the root v_0, which routes but has
no expert, and goes down one level per step; every other node is an expert, and a router too if it has children.
All walkers work level by level, hence two invariants: nodes are numbered in level order (a level is a range
of indices, tree siblings side by side in the order given), and every edge leads exactly one level down.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from nbsr_core.errors import GraphError, InputError
from nbsr_core.graph.checks import (
    ClassLabel,
    check_keys,
    checked_classes,
    checked_cost,
    checked_count,
    checked_name,
    is_list,
    levels_in_order,
    links_of,
    listed,
)

Number: TypeAlias = float | int
ROOT, GENERALIST = "root", "Generalist"


@dataclass(frozen=True)
class Node:
    """One node; `children` and `parents` are indices into `DecisionGraph.nodes`.

    `classes` are the outcome classes that the node, or anything below it, stands for: first those of the
    children in their order, then those said of the node alone. Empty means that nothing was said.
    """

    name: str
    level: int
    cost: float = 1.0
    children: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    classes: tuple[ClassLabel, ...] = ()


@dataclass(frozen=True, repr=False)
class DecisionGraph:
    """Immutable routing graph; make one with the class methods, which check it, not from bare nodes.

    Equality and hash cover names, edges with their order, costs and classes. Arrays are read-only and, like
    `len(graph)`, include the root at index 0.
    """

    nodes: tuple[Node, ...]

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[tuple[str, str]],
        costs: Mapping[str, Number] | None = None,
        classes: Mapping[str, Sequence[ClassLabel]] | None = None,
        root: str | None = None,
    ) -> DecisionGraph:
        """The general door: (parent, child) names; the order of a parent's edges is that of its children.

        The root is the one node without parents; `root` says which that has to be. A node costs 1 unless
        `costs` says otherwise; the root has no expert and costs 0.
        """
        costs, classes = costs or {}, classes or {}
        links = links_of(edges)
        level_of = levels_in_order(links, root)
        for name in chain(costs, classes):
            if name not in level_of:
                raise GraphError(f"costs or classes are given for the node {name!r}, which is on no edge")
        index = {name: i for i, name in enumerate(level_of)}
        cost_of = {name: checked_cost(name, costs.get(name, float(i > 0))) for name, i in index.items()}
        classes_of: dict[str, tuple[ClassLabel, ...]] = {}
        for name in reversed(index):
            below = chain.from_iterable(classes_of[child] for child in links[name])
            classes_of[name] = tuple(dict.fromkeys([*below, *checked_classes(name, classes.get(name, ()))]))
        nodes = tuple(
            Node(
                name=name,
                level=level,
                cost=cost_of[name],
                children=tuple(index[child] for child in links[name]),
                parents=tuple(sorted(index[parent] for parent in links.pred[name])),
                classes=classes_of[name],
            )
            for name, level in level_of.items()
        )
        if nodes[0].cost != 0:
            raise GraphError(f"the root {nodes[0].name!r} has no expert: its cost is 0, got {nodes[0].cost}")
        return cls(nodes)

    @classmethod
    def uniform(cls, depth: int, width: int | Sequence[int], cost: Number = 1.0) -> DecisionGraph:
        """Full tree of path names: node "2.3" is the third child of the second child of the root.

        `width` is the number of children of every router, or one number per level.
        """
        depth = checked_count(depth, "depth")
        widths = list(width) if is_list(width) else [width] * depth
        if len(widths) != depth:
            raise GraphError(f"width must be one number or one a level: depth is {depth}, got {widths}")
        edges: list[tuple[str, str]] = []
        above = [ROOT]
        for level, count in enumerate(widths, start=1):
            steps = range(1, checked_count(count, f"width of level {level}") + 1)
            grown = [(up, str(k) if level == 1 else f"{up}.{k}") for up in above for k in steps]
            edges += grown
            above = [child for _, child in grown]
        return cls.from_edges(edges, costs={child: cost for _, child in edges})

    @classmethod
    def layered(cls, widths: Sequence[int], cost: Number = 1.0) -> DecisionGraph:
        """Levels of these widths, each node linked to all of the next; "L2.3" is the third of level 2."""
        levels = [[ROOT]]
        for level, width in enumerate(widths, start=1):
            levels.append([f"L{level}.{k + 1}" for k in range(checked_count(width, f"width of level {level}"))])
        edges = [(up, down) for ups, downs in pairwise(levels) for up in ups for down in downs]
        return cls.from_edges(edges, costs={child: cost for _, child in edges})

    @classmethod
    def chain(cls, names_or_depth: int | Sequence[str], cost: Number = 1.0) -> DecisionGraph:
        """A single path of the named experts, or of that many ("L1", "L2", ...)."""
        if is_list(names_or_depth):
            names = [checked_name(name, "the chain") for name in names_or_depth]
        else:
            names = [f"L{level + 1}" for level in range(checked_count(names_or_depth, "depth"))]
        for name, times in Counter([ROOT, *names]).items():
            if times > 1:
                raise GraphError(f"duplicate node name {name!r} in the chain, whose root is {ROOT!r}")
        return cls.from_edges(pairwise([ROOT, *names]), costs=dict.fromkeys(names, cost))

    @classmethod
    def taxonomy(
        cls,
        mapping: Mapping[str, Any],
        costs: Mapping[str, Number] | None = None,
        classes: Mapping[str, Sequence[ClassLabel]] | None = None,
    ) -> DecisionGraph:
        """Tree from nested dicts, whose keys are nodes; a list at the bottom holds the classes of that leaf.

        `{"Animal": {"Pets": ["cat", "dog"], "Birds": ["bird"]}, "Vehicle": None}` has the leaves Pets, Birds
        and Vehicle, which owns no class yet. `classes` adds those of nodes for which the mapping lists none.
        """
        parent_of: dict[str, str] = {}
        listed: dict[str, Sequence[ClassLabel]] = {}
        branches: list[tuple[str, Any]] = [(ROOT, mapping)]
        for name, branch in branches:  # grows while it is walked: breadth first
            if isinstance(branch, Mapping):
                for child in branch:
                    if child in parent_of or child == ROOT:
                        first = f"under {parent_of[child]!r}" if child in parent_of else "as the root"
                        raise GraphError(f"duplicate node name {child!r}: {first} and under {name!r}")
                    parent_of[checked_name(child, f"the branch {name!r}")] = name
                branches += branch.items()
            elif is_list(branch):
                listed[name] = checked_classes(name, branch)
            elif branch is not None:
                raise GraphError(f"node {name!r} needs a dict of nodes, list of classes or None: {branch!r}")
        for name in classes or {}:
            if listed.get(name):
                raise GraphError(f"classes of node {name!r} are given twice: in the mapping and in `classes`")
        edges = [(parent, child) for child, parent in parent_of.items()]
        return cls.from_edges(edges, costs, {**listed, **(classes or {})})

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> DecisionGraph:
        """The inverse of `to_dict`; `children`, `cost` and `classes` of a node may be left out."""
        check_keys("the graph", d, {"root", "nodes"})
        root, nodes = d.get("root"), d.get("nodes")
        if not isinstance(nodes, Mapping):
            raise GraphError(f"'nodes' must map each name to its description, got {nodes!r}")
        if not isinstance(root, str) or root not in nodes:
            raise GraphError(f"no root: 'root' must name one of the nodes, got {root!r}")
        edges: list[tuple[str, str]] = []
        for name, node in nodes.items():
            check_keys(f"node {checked_name(name, 'nodes')!r}", node, {"children", "cost", "classes"})
            children = node.get("children", [])
            if not is_list(children):
                raise GraphError(f"node {name!r}: 'children' must be a list of names, got {children!r}")
            for child in children:
                if checked_name(child, f"the children of {name!r}") not in nodes:
                    raise GraphError(f"node {name!r} has the child {child!r}, which is not among the nodes")
            edges += [(name, child) for child in children]
        unlinked = sorted(nodes.keys() - {root} - set(chain.from_iterable(edges)))
        if unlinked:
            raise GraphError(f"unreachable from the root {root!r}: {listed(unlinked)}")
        costs = {name: checked_cost(name, node["cost"]) for name, node in nodes.items() if "cost" in node}
        classes = {name: checked_classes(name, node["classes"]) for name, node in nodes.items() if "classes" in node}
        return cls.from_edges(edges, costs, classes, root)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; equal graphs give equal dicts. Classes stand only where no child owns them."""
        nodes: dict[str, dict[str, Any]] = {}
        for i, node in enumerate(self.nodes):
            children = [self.nodes[child] for child in node.children]
            below = set(chain.from_iterable(child.classes for child in children))
            own = [label for label in node.classes if label not in below]
            cost = {"cost": node.cost} if i else {}
            links = {"children": [child.name for child in children]} if children else {}
            nodes[node.name] = {**cost, **links, **({"classes": own} if own else {})}
        return {"root": self.root.name, "nodes": nodes}

    def to_networkx(self) -> nx.DiGraph:
        """The same graph by node names, with `index`, `level`, `cost` and `classes` as node attributes."""
        graph = nx.DiGraph()
        for i, node in enumerate(self.nodes):
            graph.add_node(node.name, index=i, level=node.level, cost=node.cost, classes=node.classes)
        graph.add_edges_from((up.name, self.nodes[child].name) for up in self.nodes for child in up.children)
        return graph

    def __len__(self) -> int:
        return len(self.nodes)

    def __reduce__(self) -> tuple[type[DecisionGraph], tuple[tuple[Node, ...]]]:
        """Copies and pickles leave the cached arrays behind, which would come out writable."""
        return type(self), (self.nodes,)

    def __repr__(self) -> str:
        sizes = [str(len(level)) for level in self.levels]
        by_level = " + ".join(sizes if len(sizes) <= 10 else [*sizes[:6], "...", *sizes[-2:]])
        return f"DecisionGraph(depth {self.depth}, {len(self)} nodes: {by_level})"

    @property
    def root(self) -> Node:
        return self.nodes[0]

    @property
    def depth(self) -> int:
        """L, the level of the deepest leaf: the greatest number of experts that one walk can visit."""
        return self.nodes[-1].level

    @property
    def num_experts(self) -> int:
        """All nodes but the root."""
        return len(self.nodes) - 1

    def index(self, name: str) -> int:
        if name not in self._index_of:
            near = difflib.get_close_matches(name, self._index_of, n=3)
            raise GraphError(f"no node {name!r} in {self}" + (f"; close: {listed(near)}" if near else ""))
        return self._index_of[name]

    def name(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise GraphError(f"no node {index}: indices run from 0 (the root) to {len(self) - 1}")
        return self.nodes[index].name

    def max_children(self, level: int) -> int:
        """The greatest number of children of a node of this level; 0 at the deepest one."""
        if not 0 <= level <= self.depth:
            raise GraphError(f"no level {level}: levels run from 0 (the root) to {self.depth}")
        return max(len(self.nodes[i].children) for i in self.levels[level])

    @cached_property
    def first_choices(self) -> range:
        """The nodes among which the first router with a choice chooses: a whole level, the first one in most graphs.

        Below a generalist it is the second. Where no router has a choice, the only node of level 1.
        """
        choosing = (level for level in range(self.depth) if self.max_children(level) > 1)
        return self.levels[next(choosing, 0) + 1]

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def levels(self) -> tuple[range, ...]:
        """The node indices of each level, the root's first."""
        sizes = np.bincount([node.level for node in self.nodes]).tolist()
        return tuple(range(start, stop) for start, stop in pairwise([0, *accumulate(sizes)]))

    @cached_property
    def costs(self) -> Float[np.ndarray, " nodes"]:
        return _frozen(np.array([node.cost for node in self.nodes], dtype=np.float64))

    @cached_property
    def is_leaf(self) -> Bool[np.ndarray, " nodes"]:
        return _frozen(np.array([not node.children for node in self.nodes]))

    @cached_property
    def child_table(self) -> Int[np.ndarray, "nodes children"]:
        """Row n holds the indices of n's children in order, padded with -1 to the widest router."""
        table = np.full((len(self), max(len(node.children) for node in self.nodes)), -1, dtype=np.int64)
        for row, node in zip(table, self.nodes, strict=True):
            row[: len(node.children)] = node.children
        return _frozen(table)

    def admissible(
        self, num_classes: int, class_names: Sequence[str] | None = None
    ) -> Bool[np.ndarray, "nodes {num_classes}"]:
        """[n, k]: node n, or one below it, owns class k, so that a walk for class k may well pass through n.

        Classes given as numbers are taken as they are; names are looked up in `class_names`, of which there
        must be `num_classes`. Every class needs an owner, else a loss over it had nothing to aim at; but no
        more than that: a router may own a class that none of its children owns.
        """
        if class_names is not None and not len(set(class_names)) == len(class_names) == num_classes:
            raise InputError(f"class_names must be {num_classes} different names, got {list(class_names)}")
        names = class_names or ()
        position: dict[ClassLabel, int] = {k: k for k in range(num_classes)}
        position.update((name, k) for k, name in enumerate(names))
        owned = np.zeros((len(self), num_classes), dtype=np.bool_)
        for i, node in reversed(list(enumerate(self.nodes))):  # deepest first: errors name the labelled node
            for label in node.classes:
                if label not in position:
                    hint = "" if names else f"; without class_names, classes are 0 to {num_classes - 1}"
                    raise GraphError(f"node {node.name!r} owns the unknown class {label!r}{hint}")
                owned[i, position[label]] = True
        orphans = [names[k] if names else k for k in np.flatnonzero(~owned[0]).tolist()]
        if orphans:
            raise GraphError(f"no node owns the class {listed(orphans)}")
        return owned

    def pruned(self, usage: ArrayLike, min_share: Number) -> DecisionGraph:
        """Without the nodes that less than `min_share` of the samples visit, and all that hung on them alone.

        This makes the paper's implicit pruning real: `usage` [nodes] is the share of samples that visit each
        node. A router whose children all fall short keeps the most used one (the first, on a tie), so that no
        walk ends earlier than before. Names, costs and classes of the survivors stay: a class whose leaf was
        dropped still belongs to the nodes above. Nodes are numbered anew; match them by name.
        """
        share = np.asarray(usage, dtype=np.float64)
        if share.shape != (len(self),):
            raise InputError(f"usage must be one share per node, [{len(self)}], got shape {list(share.shape)}")
        for what, values in (("usage", share), ("min_share", np.array([min_share]))):
            wrong = values[~((values >= 0) & (values <= 1 + 1e-6))]
            if wrong.size:
                raise InputError(f"{what} must be a share between 0 and 1, got {wrong[0]}")
        kept = {0}
        for i, node in enumerate(self.nodes):  # level order: a node's fate is known before its children's
            if i in kept and node.children:
                used = [child for child in node.children if share[child] >= min_share]
                kept.update(used or [max(node.children, key=share.__getitem__)])
        nodes = [self.nodes[i] for i in sorted(kept)]
        edges = [(up.name, self.nodes[child].name) for up in nodes for child in up.children if child in kept]
        return self.from_edges(edges, {n.name: n.cost for n in nodes}, {n.name: n.classes for n in nodes})

    def with_generalist(self, name: str = GENERALIST, cost: Number = 1.0) -> DecisionGraph:
        """With one expert between the root and its children, which every walk visits first.

        The first experts of a graph that parts at the root see a share of the samples each. A generalist sees them
        all, and the specialists below add to what it knows. It owns every class; the rest of the graph stays as it
        is, one level down. The root then has one child and needs no router.
        """
        if name in self._index_of:
            raise GraphError(f"the graph has a node {name!r} already: give the generalist another name")
        root, *others = self.nodes
        edges = [(root.name, name), *((name, self.nodes[child].name) for child in root.children)]
        edges += [(up.name, self.nodes[child].name) for up in others for child in up.children]
        costs = {node.name: node.cost for node in others}
        classes = {node.name: node.classes for node in others}
        return self.from_edges(edges, {**costs, name: cost}, {**classes, name: root.classes})

    def render(self, max_lines: int = 60) -> str:
        """Indented text tree with costs other than 1 and the classes of leaves; "..." where it is cut off.

        Whole levels are left out before single lines are. A node with several parents stands under each of
        them, but its children are shown only the first time.
        """
        lines_to_level = accumulate(sum(len(self.nodes[i].children) for i in level) for level in self.levels)
        shown_depth = max(1, sum(lines < max_lines for lines in lines_to_level))
        lines: list[str] = []
        expanded: set[int] = set()
        stack = [(0, "", "")]
        while stack and len(lines) < max_lines:
            i, branch, indent = stack.pop()
            node = self.nodes[i]
            text = node.name if i == 0 or node.cost == 1 else f"{node.name} (cost {node.cost:g})"
            if not node.children:
                text += f" [{', '.join(map(str, node.classes))}]" if node.classes else ""
            elif i in expanded:
                text += " (see above)"
            elif node.level == shown_depth:
                text += " ..."
            else:
                expanded.add(i)
                *others, last = node.children
                stack.append((last, indent + "└─ ", indent + "   "))
                stack += [(child, indent + "├─ ", indent + "│  ") for child in reversed(others)]
            lines.append(branch + text)
        return "\n".join([repr(self), *lines, *(["..."] if stack else [])])


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
