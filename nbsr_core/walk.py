"""The walk itself, three times: to be differentiated, to stop early, and along every path at once.

All three move a batch level by level. Rows that stand at the same node are kept together where that pays (see
`nbsr_core.dispatch`), so rows are permuted on the way; `Walkers.row` remembers which sample is which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core import dirichlet
from nbsr_core.dispatch import Layout
from nbsr_core.exits import Prediction, conclude
from nbsr_core.routing import Routes, RoutingMode, choose, straight_through
from nbsr_core.trace import BeliefTrace, Step

if TYPE_CHECKING:
    from nbsr_core.network import NBSR


@dataclass
class Walkers:
    """The samples under way, in the order that suits the level they are on.

    Attributes:
        row: which sample of the batch each walker is; None while nobody was moved and nobody has left.
        layout: how the walkers are spread over the nodes of their level; None when it is no longer true.
    """

    model: NBSR
    h: Float[Tensor, "b d"]
    side: Float[Tensor, "b s"] | None
    node: Int[Tensor, " b"]
    row: Int[Tensor, " b"] | None
    layout: Layout | None

    @staticmethod
    def at_root(model: NBSR, h: Float[Tensor, "B d"], side: Float[Tensor, "B s"] | None) -> Walkers:
        node = torch.zeros(h.shape[0], dtype=torch.int64, device=h.device)  # the root is node 0
        return Walkers(model, h, side, node, None, Layout.single(h.shape[0]))

    def ask(self, level: int, belief: Float[Tensor, "#b K"]) -> Float[Tensor, "b children"]:
        """Logits of the routers where the walkers stand."""
        routers = self.model.routers[level]
        logits: Tensor = routers(self.h, belief, self.side, self.node - routers.start, self.layout)
        return logits

    def move(self, level: int, choice: Int[Tensor, " b"]) -> Int[Tensor, " b"] | None:
        """Go to the chosen children. Returns the permutation that the new level asked for, if any."""
        nodes = self.model.graph.levels[level + 1]
        child = self.model.child_table[self.node, choice]
        self.layout = Layout.of(child - nodes.start, len(nodes), self.model.experts[level].macs)
        order = self.layout.order
        self.node = child
        if order is not None:
            self._select(order)
        return order

    def consult(self, level: int) -> Float[Tensor, "b K"]:
        """Evidence of the experts where the walkers stand now, one level below `level`."""
        start = self.model.graph.levels[level + 1].start
        evidence: Tensor = self.model.experts[level](self.h, self.node - start, self.layout)
        return evidence

    def can_go_on(self, level: int) -> Bool[Tensor, " b"] | None:
        """Who stands at an inner node of `level`; None if everybody does."""
        routers = self.model.routers[level]
        return None if routers.all_inner else routers.inner[self.node - routers.start]

    def keep(self, staying: Int[Tensor, " kept"]) -> None:
        """The others leave the batch."""
        self._select(staying)
        self.layout = None

    def _select(self, index: Int[Tensor, " kept"]) -> None:
        self.row = index if self.row is None else self.row.index_select(0, index)
        self.h, self.node = self.h.index_select(0, index), self.node.index_select(0, index)
        self.side = None if self.side is None else self.side.index_select(0, index)

    def pick(self, full: Tensor) -> Tensor:
        """The walkers' part of something known for the whole batch."""
        return full if self.row is None else full.index_select(0, self.row)

    def spread(self, part: Tensor, batch: int) -> Tensor:
        """The walkers' values back in the order of the batch, 0 for those who have left."""
        if self.row is None:
            return part
        return part.new_zeros(batch, *part.shape[1:]).index_copy(0, self.row, part)


def tracing_walk(
    model: NBSR,
    h: Float[Tensor, "B d"],
    side: Float[Tensor, "B s"] | None,
    mode: RoutingMode,
    tau: float,
    eta: float | None,
) -> BeliefTrace:
    """Full-depth walk that keeps every belief, node and route, with gradients."""
    batch, prior, scale = h.shape[0], model.prior.to(h.dtype), model.evidence_scale(h)
    walkers = Walkers.at_root(model, h, side)
    alpha, node = prior.expand(batch, -1), walkers.node
    beliefs, steps = [alpha], []
    walking: Tensor | None = None
    for level in range(model.graph.depth):
        belief = prior.unsqueeze(0) if level == 0 else walkers.pick(alpha)
        routes = choose(walkers.ask(level, belief), mode, tau)
        parent = walkers.node
        order = walkers.move(level, routes.choice)
        if order is not None:
            parent, routes = parent.index_select(0, order), routes.reordered(order)
        evidence = _credited(walkers, level, parent, routes, None if scale is None else walkers.pick(scale))
        evidence = walkers.spread(evidence, batch)
        alpha = alpha + evidence
        node = walkers.node if walkers.row is None else node.index_copy(0, walkers.row, walkers.node)
        beliefs.append(alpha)
        steps.append(
            Step(
                node=node,
                evidence=evidence,
                logits=walkers.spread(routes.logits, batch),
                choice=walkers.spread(routes.choice, batch),
                relaxed=None if routes.relaxed is None else walkers.spread(routes.relaxed, batch),
                walking=walking,
            )
        )
        if level + 1 < model.graph.depth:
            staying = walkers.can_go_on(level + 1)
            if eta is not None:
                unsure = ~_sharp(model, walkers.pick(alpha).detach(), level + 1, eta)
                staying = unsure if staying is None else staying & unsure
            if staying is not None and not bool(staying.all()):
                walkers.keep(staying.nonzero().squeeze(1))
                assert walkers.row is not None
                walking = torch.zeros(batch, dtype=torch.bool, device=h.device).index_fill(0, walkers.row, True)
    temperature = model.calibration.temperature.clone() if _calibrates(model) else None
    return BeliefTrace(model.graph, prior, tuple(beliefs), tuple(steps), scale, temperature)


def _credited(
    walkers: Walkers,
    level: int,
    parent: Int[Tensor, " b"],
    routes: Routes,
    factor: Float[Tensor, " b"] | None,
) -> Float[Tensor, "b K"]:
    """Evidence where the walkers stand, scaled by the density factor, with the router's gradient attached."""
    evidence = walkers.consult(level)
    if factor is not None:
        evidence = evidence * factor.unsqueeze(1)
    if routes.relaxed is None or routes.relaxed.shape[1] == 1:
        return evidence
    siblings = None
    if walkers.model.estimator == "counterfactual":
        siblings = _sibling_evidence(walkers, level, parent)
        siblings = siblings if factor is None else siblings * factor.detach().view(-1, 1, 1)
    return straight_through(evidence, routes.relaxed, routes.choice, siblings)


@torch.no_grad()
def _sibling_evidence(walkers: Walkers, level: int, parent: Int[Tensor, " b"]) -> Float[Tensor, "b children K"]:
    """What every child of each walker's parent would have said; 0 where a parent has fewer children."""
    model, nodes = walkers.model, walkers.model.graph.levels[level + 1]
    children = model.child_table[parent, : model.routers[level].num_children]
    columns = []
    for child in children.unbind(1):
        there = (child >= 0).nonzero().squeeze(1)
        position = child[there] - nodes.start
        layout = Layout.of(position, len(nodes), model.experts[level].macs)
        if layout.order is not None:
            there, position = there[layout.order], position[layout.order]
        evidence = model.experts[level](walkers.h.index_select(0, there), position, layout)
        columns.append(evidence.new_zeros(len(child), model.num_classes).index_copy_(0, there, evidence))
    return torch.stack(columns, dim=1)


def stopping_walk(
    model: NBSR,
    h: Float[Tensor, "B d"],
    side: Float[Tensor, "B s"] | None,
    eta: float | None,
    max_vacuity: float | None,
) -> Prediction:
    """Walk that stops: samples below eta leave the batch. Entropy is computed only where an exit is possible."""
    batch, scale, depth_of_graph = h.shape[0], model.evidence_scale(h), model.graph.depth
    walkers = Walkers.at_root(model, h, side)
    alpha = model.prior.to(h.dtype).unsqueeze(0)
    final = h.new_empty(batch, model.num_classes)
    depth = torch.full((batch,), depth_of_graph, device=h.device)
    node = torch.empty_like(depth)
    for level in range(depth_of_graph):
        choice = walkers.ask(level, alpha).argmax(-1)
        order = walkers.move(level, choice)
        evidence = walkers.consult(level)
        if scale is not None:
            evidence *= walkers.pick(scale).unsqueeze(1)
        alpha = evidence.add_(alpha if level == 0 or order is None else alpha.index_select(0, order))
        if level + 1 == depth_of_graph:
            break
        staying = walkers.can_go_on(level + 1)
        if eta is not None:
            unsure = ~_sharp(model, alpha, level + 1, eta)
            staying = unsure if staying is None else staying & unsure
        if staying is None or bool(staying.all()):
            continue
        leaving = (~staying).nonzero().squeeze(1)
        rows = leaving if walkers.row is None else walkers.row[leaving]
        final[rows] = _presented(model, alpha[leaving], level + 1)
        depth[rows], node[rows] = level + 1, walkers.node[leaving]
        if len(leaving) == len(staying):
            return conclude(final, depth, node, float(model.prior.sum()), max_vacuity)
        kept = staying.nonzero().squeeze(1)
        walkers.keep(kept)
        alpha = alpha.index_select(0, kept)
    alpha = _presented(model, alpha, depth_of_graph)
    if walkers.row is None:
        final, node = alpha, walkers.node
    else:
        final[walkers.row], node[walkers.row] = alpha, walkers.node
    return conclude(final, depth, node, float(model.prior.sum()), max_vacuity)


def soft_walk(model: NBSR, h: Float[Tensor, "B d"], side: Float[Tensor, "B s"] | None, tau: float) -> BeliefTrace:
    """Every path at once, each node weighted by the probability of reaching it: smooth all the way back in time.

    Work and memory grow with the number of nodes, which is why only training through time uses it, on small graphs.
    The nodes in the trace are those of the single most probable route.
    """
    batch, prior, scale, graph = h.shape[0], model.prior.to(h.dtype), model.evidence_scale(h), model.graph
    alpha = prior.expand(batch, -1)
    beliefs, steps = [alpha], []
    reach = h.new_ones(batch, 1)
    node = torch.zeros(batch, dtype=torch.int64, device=h.device)
    walking: Tensor | None = None
    for level in range(graph.depth):
        routers, nodes, below = model.routers[level], graph.levels[level], graph.levels[level + 1]
        reach_below = h.new_zeros(batch, len(below))
        logits_here = h.new_zeros(batch, routers.num_children)
        for parent in nodes:
            children = torch.tensor(graph.nodes[parent].children, device=h.device)
            if not len(children):
                continue
            position = torch.full((batch,), parent - nodes.start, device=h.device)
            logits = routers(h, alpha, side, position, None)
            probs = (logits / tau).softmax(-1)[:, : len(children)] * reach[:, parent - nodes.start, None]
            reach_below = reach_below.index_add(1, children - below.start, probs)
            logits_here = torch.where((node == parent).unsqueeze(1), logits, logits_here)
        evidence = torch.einsum("bn,bnk->bk", reach_below, model.experts[level].every_expert(h))
        evidence = evidence if scale is None else evidence * scale.unsqueeze(1)
        alpha = alpha + evidence
        choice = logits_here.detach().argmax(-1)
        child = model.child_table[node, choice]
        walking = None if walking is None and bool((child >= 0).all()) else child >= 0
        node = torch.where(child >= 0, child, node)
        beliefs.append(alpha)
        relaxed = (logits_here / tau).softmax(-1)
        steps.append(Step(node, evidence, logits_here, choice, relaxed, walking))
        reach = reach_below
    return BeliefTrace(graph, prior, tuple(beliefs), tuple(steps), scale)


def _calibrates(model: NBSR) -> bool:
    """Calibration is for what is shown to people, not for training."""
    return bool(model.calibration.fitted) and not model.training


def _presented(model: NBSR, alpha: Float[Tensor, "b K"], depth: int) -> Float[Tensor, "b K"]:
    """The belief as it leaves the model."""
    if not _calibrates(model):
        return alpha
    shown: Tensor = model.calibration(alpha, depth)
    return shown


def _sharp(model: NBSR, alpha: Float[Tensor, "b K"], depth: int, eta: float) -> Bool[Tensor, " b"]:
    """Whose belief is sharp enough to stop."""
    return dirichlet.entropy(_presented(model, alpha, depth), validate_args=False) < eta
