"""The walk itself, three times: to be differentiated, to stop early, and along every path at once.

All three move a batch level by level. Rows that stand at the same node go through a bank together where that pays (see
`nbsr_core.dispatch`): a walk that stops keeps them permuted on the way, and `Walkers.row` remembers which sample is
which; a walk that is traced has them permuted and put back within each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core._screening import below
from nbsr_core.dispatch import Layout
from nbsr_core.exits import Prediction, Stop, conclude
from nbsr_core.routing import RoutingMode
from nbsr_core.step import Arranged, take_step
from nbsr_core.trace import BeliefTrace, Step

if TYPE_CHECKING:
    from nbsr_core.network import NBSR


@dataclass
class Walkers:
    """The samples under way, in the order that suits the level they are on.

    Attributes:
        level: the level that they are on.
        position: where in it each one stands.
        row: which sample of the batch each walker is; None while nobody was moved and nobody has left.
        layout: how the walkers are spread over the nodes of their level; None when it is no longer true.
    """

    model: NBSR
    h: Float[Tensor, "b d"]
    side: Float[Tensor, "b s"] | None
    level: int
    position: Int[Tensor, " b"]
    row: Int[Tensor, " b"] | None
    layout: Layout | None

    @staticmethod
    def at_root(model: NBSR, h: Float[Tensor, "B d"], side: Float[Tensor, "B s"] | None) -> Walkers:
        position = torch.zeros(h.shape[0], dtype=torch.int64, device=h.device)
        return Walkers(model, h, side, 0, position, None, Layout.single(h.shape[0]))

    @property
    def node(self) -> Int[Tensor, " b"]:
        """Where everybody stands, as nodes of the graph."""
        return self.position + self.model.graph.levels[self.level].start

    def ask(self, belief: Float[Tensor, "#b K"]) -> Float[Tensor, "b children"]:
        """Logits of the routers where the walkers stand."""
        logits: Tensor = self.model.routers[self.level](self.h, belief, self.side, self.position, self.layout)
        return logits

    def move(self, choice: Int[Tensor, " b"]) -> Int[Tensor, " b"] | None:
        """Go to the chosen children. Returns the permutation that the new level asked for, if any."""
        self.position = self.model.routers[self.level].chosen(self.position, choice)
        self.level += 1
        experts = self.model.experts[self.level - 1]
        self.layout = Layout.of(self.position, len(self.model.graph.levels[self.level]), experts.macs)
        if self.layout.order is not None:
            self._select(self.layout.order)
        return self.layout.order

    def consult(self) -> Float[Tensor, "b K"]:
        """Evidence of the experts where the walkers stand."""
        evidence: Tensor = self.model.experts[self.level - 1](self.h, self.position, self.layout)
        return evidence

    def can_go_on(self) -> Bool[Tensor, " b"] | None:
        """Who stands at an inner node; None if everybody does."""
        routers = self.model.routers[self.level]
        return None if routers.all_inner else routers.inner.index_select(0, self.position)

    def keep(self, staying: Int[Tensor, " kept"]) -> None:
        """The others leave the batch."""
        self._select(staying)
        self.layout = None

    def _select(self, index: Int[Tensor, " kept"]) -> None:
        self.row = index if self.row is None else self.row.index_select(0, index)
        self.h, self.position = self.h.index_select(0, index), self.position.index_select(0, index)
        self.side = None if self.side is None else self.side.index_select(0, index)

    def pick(self, full: Tensor) -> Tensor:
        """The walkers' part of something known for the whole batch."""
        return full if self.row is None else full.index_select(0, self.row)


def tracing_walk(
    model: NBSR,
    h: Float[Tensor, "B d"],
    side: Float[Tensor, "B s"] | None,
    mode: RoutingMode,
    tau: float,
    eta: float | None,
    scale: Float[Tensor, " B"] | None,
) -> BeliefTrace:
    """Full-depth walk that keeps every belief, node and route, with gradients; evidence is multiplied by `scale`."""
    batch, prior = h.shape[0], model.prior.to(h.dtype)
    alpha, node = prior.expand(batch, -1), torch.zeros(batch, dtype=torch.int64, device=h.device)
    beliefs, steps = [alpha], []
    position = node
    arranged: Arranged | None = Arranged(Layout.single(batch), None, h)
    row: Tensor | None = None  # who still walks; None for everybody
    walking: Tensor | None = None
    for level, (routers, experts) in enumerate(zip(model.routers, model.experts, strict=True)):
        belief = prior.unsqueeze(0) if level == 0 else alpha if row is None else alpha.index_select(0, row)
        siblings = partial(_sibling_evidence, model, level) if model.estimator == "counterfactual" else None
        taken = take_step(routers, experts, h, belief, side, position, arranged, mode=mode, tau=tau, siblings=siblings)
        position, arranged, routes, evidence = taken.position, taken.arranged, taken.routes, taken.evidence
        if scale is not None:
            evidence = evidence * (scale if row is None else scale.index_select(0, row)).unsqueeze(1)
        evidence = _spread(evidence, row, batch)
        alpha = alpha + evidence
        here = position + model.graph.levels[level + 1].start
        node = here if row is None else node.index_copy(0, row, here)
        beliefs.append(alpha)
        relaxed = None if routes.relaxed is None else _spread(routes.relaxed, row, batch)
        logits, choice = _spread(routes.logits, row, batch), _spread(routes.choice, row, batch)
        steps.append(Step(node, evidence, logits, choice, relaxed, walking))
        if level + 1 == model.graph.depth:
            break
        onward = model.routers[level + 1]
        staying = None if onward.all_inner else onward.inner.index_select(0, position)
        if eta is not None:
            belief = alpha.detach() if row is None else alpha.detach().index_select(0, row)
            unsure = ~below(_presented(model, belief, level + 1), eta)
            staying = unsure if staying is None else staying & unsure
        if staying is not None and not bool(staying.all()):
            kept = staying.nonzero().squeeze(1)
            row = kept if row is None else row.index_select(0, kept)
            h, position, arranged = h.index_select(0, kept), position.index_select(0, kept), None
            side = None if side is None else side.index_select(0, kept)
            walking = torch.zeros(batch, dtype=torch.bool, device=h.device).index_fill(0, row, True)
    temperature = model.calibration.temperature.clone() if _calibrates(model) else None
    return BeliefTrace(model.graph, prior, tuple(beliefs), tuple(steps), scale, temperature)


def _spread(part: Tensor, row: Int[Tensor, " b"] | None, batch: int) -> Tensor:
    """The walkers' values in the order of the batch, 0 for those who have left."""
    return part if row is None else part.new_zeros(batch, *part.shape[1:]).index_copy(0, row, part)


@torch.no_grad()
def _sibling_evidence(
    model: NBSR, level: int, h: Float[Tensor, "b d"], parent: Int[Tensor, " b"]
) -> Float[Tensor, "b children K"]:
    """What every child of each walker's parent would have said; 0 where a parent has fewer children."""
    experts, routers = model.experts[level], model.routers[level]
    children = routers.child_position.view(-1, routers.num_children).index_select(0, parent)
    columns = []
    for child in children.unbind(1):
        there = (child >= 0).nonzero().squeeze(1)
        position = child.index_select(0, there)
        layout = Layout.of(position, len(model.graph.levels[level + 1]), experts.macs)
        if layout.order is not None:
            there, position = there.index_select(0, layout.order), position.index_select(0, layout.order)
        evidence = experts(h.index_select(0, there), position, layout)
        columns.append(evidence.new_zeros(len(child), model.num_classes).index_copy_(0, there, evidence))
    return torch.stack(columns, dim=1)


def stopping_walk(
    model: NBSR,
    h: Float[Tensor, "B d"],
    side: Float[Tensor, "B s"] | None,
    eta: float | None,
    max_vacuity: float | None,
    scale: Float[Tensor, " B"] | None,
) -> Prediction:
    """Walk that stops: samples below eta leave the batch. Entropy is computed only where an exit is possible."""
    last = model.graph.depth
    walkers = Walkers.at_root(model, h, side)
    alpha = model.prior.to(h.dtype).unsqueeze(0)
    stops: list[Stop] = []
    while len(walkers.position):
        order = walkers.move(walkers.ask(alpha).max(-1).indices)
        evidence = walkers.consult()
        if scale is not None:
            evidence *= walkers.pick(scale).unsqueeze(1)
        alpha = evidence.add_(alpha if walkers.level == 1 or order is None else alpha.index_select(0, order))
        shown = _presented(model, alpha, walkers.level)
        if walkers.level == last:
            stops.append(Stop(walkers.row, shown, walkers.node, last))
            break
        staying = walkers.can_go_on()
        if eta is not None:
            unsure = ~below(shown, eta)
            staying = unsure if staying is None else staying & unsure
        if staying is None or bool(staying.all()):
            continue
        if not bool(staying.any()):
            stops.append(Stop(walkers.row, shown, walkers.node, walkers.level))
            break
        kept, leaving = staying.nonzero().squeeze(1), (~staying).nonzero().squeeze(1)
        rows = leaving if walkers.row is None else walkers.row.index_select(0, leaving)
        node = walkers.node.index_select(0, leaving)
        stops.append(Stop(rows, shown.index_select(0, leaving), node, walkers.level))
        walkers.keep(kept)
        alpha = alpha.index_select(0, kept)
    return conclude(stops, float(model.prior.sum()), max_vacuity)


def soft_walk(
    model: NBSR,
    h: Float[Tensor, "B d"],
    side: Float[Tensor, "B s"] | None,
    tau: float,
    scale: Float[Tensor, " B"] | None,
) -> BeliefTrace:
    """Every path at once, each node weighted by the probability of reaching it: smooth all the way back in time.

    Work and memory grow with the number of nodes, which is why only training through time uses it, on small graphs.
    The nodes in the trace are those of the single most probable route.
    """
    batch, prior, graph = h.shape[0], model.prior.to(h.dtype), model.graph
    alpha = prior.expand(batch, -1)
    beliefs, steps = [alpha], []
    reach = h.new_ones(batch, 1)
    node = torch.zeros(batch, dtype=torch.int64, device=h.device)
    walking: Tensor | None = None
    for level in range(graph.depth):
        routers, nodes, reached = model.routers[level], graph.levels[level], graph.levels[level + 1]
        reach_below = h.new_zeros(batch, len(reached))
        logits_here = h.new_zeros(batch, routers.num_children)
        for parent in nodes:
            children = torch.tensor(graph.nodes[parent].children, device=h.device)
            if not len(children):
                continue
            position = torch.full((batch,), parent - nodes.start, device=h.device)
            logits = routers(h, alpha, side, position, None)
            probs = (logits / tau).softmax(-1)[:, : len(children)] * reach[:, parent - nodes.start, None]
            reach_below = reach_below.index_add(1, children - reached.start, probs)
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
