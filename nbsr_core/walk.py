"""The walk itself, three times: to be differentiated, to stop early, and along every path at once.

All three move a batch level by level. The first two take the same steps (`nbsr_core.step`), so that they agree.
"""

from __future__ import annotations

from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core import dirichlet
from nbsr_core._screening import below, exit_test
from nbsr_core.arranged import Arranged
from nbsr_core.calibration import CONCENTRATION_FLOOR
from nbsr_core.exits import Prediction, Stop, conclude
from nbsr_core.layout import Layout
from nbsr_core.native import walk_compiled
from nbsr_core.routing import RoutingMode
from nbsr_core.step import take_step
from nbsr_core.trace import BeliefTrace, Step

if TYPE_CHECKING:
    from nbsr_core.network import NBSR


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
    arranged: Arranged | None = Arranged(h, Layout.single(batch), None)
    row: Tensor | None = None  # who still walks; None for everybody
    walking: Tensor | None = None
    for level, through in enumerate(model.levels):
        belief = prior.unsqueeze(0) if level == 0 else alpha if row is None else alpha.index_select(0, row)
        siblings = partial(_sibling_evidence, model, level) if model.estimator == "counterfactual" else None
        taken = take_step(through, h, belief, side, position, arranged, mode=mode, tau=tau, siblings=siblings)
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
        shown = None
        if eta is not None:
            here = alpha.detach() if row is None else alpha.detach().index_select(0, row)
            shown = _presented(model, here, level + 1)
        staying = _staying(model, level + 1, position, shown, eta)
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
        evidence = experts(h.index_select(0, there), child.index_select(0, there))
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
    walkers = Walkers(h, side, scale)
    if not torch.is_grad_enabled() and is_compiled(model, h) and (eta is None or isfinite(eta)):
        found = _compiled_walk(model, walkers, eta, max_vacuity)
        if found is not None:
            return found
    return _stepwise_walk(model, walkers, eta, max_vacuity)


class Walkers(NamedTuple):
    """Rows that walk together: their oracles, their side information, how far their evidence counts."""

    h: Float[Tensor, "b d"]
    side: Float[Tensor, "b s"] | None
    scale: Float[Tensor, " b"] | None

    def only(self, rows: Int[Tensor, " some"]) -> Walkers:
        h, side, scale = (None if x is None else x.index_select(0, rows) for x in self)
        assert h is not None
        return Walkers(h, side, scale)


def _compiled_walk(model: NBSR, walkers: Walkers, eta: float | None, max_vacuity: float | None) -> Prediction | None:
    """The same in one call; None where a belief is none, which steps will find out about."""
    prior, spec = model.prior.to(walkers.h.dtype), model.router_spec
    sight = None if spec.belief == "none" else spec.belief
    found = walk_compiled(
        [level.compiled for level in model.levels if level.compiled is not None],
        *walkers,
        prior,
        None if sight is None else spec.describe(prior),
        sight,
        [nodes.start for nodes in model.graph.levels[1:]],
        None if eta is None else exit_test(eta, model.num_classes),
        model.calibration.temperature if _calibrates(model) else None,
        CONCENTRATION_FLOOR,
    )
    if found is None:
        return None
    told = [found.alpha, found.node, found.depth, found.probs, found.label]
    if found.unclear is not None and eta is not None:
        unclear = found.unclear.nonzero().squeeze(1)
        is_below = dirichlet.entropy(found.alpha.index_select(0, unclear), validate_args=False) < eta
        rows = unclear[~is_below]  # the others have stopped where they should
        if len(rows):
            exact = _stepwise_walk(model, walkers.only(rows), eta, max_vacuity)
            known = (exact.alpha, exact.node, exact.depth, exact.probs, exact.label)
            for whole, part in zip(told, known, strict=True):
                whole.index_copy_(0, rows, part)
    alpha, node, depth, probs, label = told
    return Prediction(alpha, depth, node, float(model.prior.sum()), max_vacuity).knowing(probs, label)


def _stepwise_walk(model: NBSR, walkers: Walkers, eta: float | None, max_vacuity: float | None) -> Prediction:
    """`stopping_walk`, step by step."""
    h, side, scale = walkers
    alpha, position = model.prior.to(h.dtype).unsqueeze(0), h.new_zeros(h.shape[0], dtype=torch.int64)
    arranged: Arranged | None = None
    row: Tensor | None = None  # who still walks; None for everybody
    stops: list[Stop] = []
    for depth, level in enumerate(model.levels, start=1):
        taken = take_step(level, h, alpha, side, position, arranged, mode="argmax", tau=1.0)
        position, arranged, evidence = taken.position, taken.arranged, taken.evidence
        if scale is not None:
            evidence *= scale.unsqueeze(1)
        alpha = evidence.add_(alpha)
        node, staying, shown = position + model.graph.levels[depth].start, None, None
        if depth < model.graph.depth:
            shown = None if eta is None else _presented(model, alpha, depth)
            staying = _staying(model, depth, position, shown, eta)
            going_on = len(position) if staying is None else int(staying.sum())
            if going_on == len(position):
                continue
        # Those who go on are told where they would stop now; what they find later takes its place.
        stops.append(Stop(row, _presented(model, alpha, depth) if shown is None else shown, node, depth))
        if staying is None or not going_on:
            break
        kept = staying.nonzero().squeeze(1)
        row = kept if row is None else row.index_select(0, kept)
        h, side, scale = walkers = walkers.only(kept)
        position, alpha = position.index_select(0, kept), alpha.index_select(0, kept)
        arranged = None
    return conclude(stops, float(model.prior.sum()), max_vacuity)


def is_compiled(model: NBSR, h: Float[Tensor, "B d"]) -> bool:
    """Whether a walk of these rows goes through compiled levels alone."""
    return all(level.compiled is not None and level.compiled.serves(h) for level in model.levels)


def _staying(
    model: NBSR, depth: int, position: Int[Tensor, " b"], shown: Float[Tensor, "b K"] | None, eta: float | None
) -> Bool[Tensor, " b"] | None:
    """Who goes on: from inner nodes only, and not below eta. None for everybody."""
    routers = model.routers[depth]
    staying = None if routers.all_inner else routers.inner.index_select(0, position)
    if eta is None or shown is None:
        return staying
    unsure = ~below(shown, eta)
    return unsure if staying is None else staying & unsure


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
            logits = routers.one_for_all(h, alpha, side, parent - nodes.start)
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
