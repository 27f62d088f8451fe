"""The walk itself, three times: to be differentiated, to stop early, and along every path at once.

All three move a batch level by level. The first two go through the same kernels (`nbsr_core.kernels`), so that they
agree. A level of depth t reads the oracle of stage t (`nbsr_core.model.stages`), or of the last stage. Where nothing
stops, all stages are there from the start; a walk that may stop asks for the next one when it gets there, and only for
the rows that do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.belief import dirichlet
from nbsr_core.belief.entropy_tests import below
from nbsr_core.kernels import backend_for
from nbsr_core.options.specs import RoutingMode
from nbsr_core.trace.belief_trace import BeliefTrace, Step
from nbsr_core.trace.exits import Prediction, Stop, conclude

if TYPE_CHECKING:
    from nbsr_core.model.network import NBSR


class Deeper(Protocol):
    """The way to the oracles of the next stage, for rows that have come to the end of one."""

    def only(self, kept: Int[Tensor, " some"]) -> Deeper:
        """The same for some of the rows."""

    def __call__(self, side: Float[Tensor, "b s"] | None) -> WalkInput:
        """Compute the next stage: what the rows walk with from there on."""


class WalkInput(NamedTuple):
    """What rows walk with: their oracles, their side information, and the factor on their evidence.

    `deeper` leads to the oracles of the next stage; without it these serve all levels below.
    """

    h: Float[Tensor, "b d"]
    side: Float[Tensor, "b s"] | None
    scale: Float[Tensor, " b"] | None
    deeper: Deeper | None = None

    def only(self, kept: Int[Tensor, " some"]) -> WalkInput:
        h, side, scale = (None if x is None else x.index_select(0, kept) for x in self[:3])
        assert h is not None
        return WalkInput(h, side, scale, None if self.deeper is None else self.deeper.only(kept))

    def below(self) -> WalkInput:
        """What the same rows walk with one level further down."""
        return self if self.deeper is None else self.deeper(self.side)


def tracing_walk(
    model: NBSR, stages: Sequence[WalkInput], mode: RoutingMode, tau: float, eta: float | None
) -> BeliefTrace:
    """Full-depth walk that keeps every belief, node and route, with gradients; `stages` are all there are."""
    first = stages[0].h
    batch, prior = first.shape[0], model.prior.to(first.dtype)
    alpha, node = prior.expand(batch, -1), torch.zeros(batch, dtype=torch.int64, device=first.device)
    ahead = list(stages)  # the last one serves all deeper levels
    beliefs, steps = [alpha], []
    position = node
    row: Tensor | None = None  # who still walks; None for everybody
    walking: Tensor | None = None
    for depth, level in enumerate(model.levels, start=1):
        belief = prior.unsqueeze(0) if depth == 1 else alpha if row is None else alpha.index_select(0, row)
        h, side, scale, _ = ahead[0]
        ahead = ahead[1:] or ahead
        siblings = partial(_sibling_evidence, model, depth - 1) if model.estimator == "counterfactual" else None
        found = backend_for(h, levels=[level]).level(
            level, h, belief, side, position, mode=mode, tau=tau, siblings=siblings
        )
        position, routes = found.position, found.routes
        added, after = _grown(model, belief, found.evidence, scale)
        evidence = _spread(added, row, batch)
        alpha = after if row is None else alpha.index_copy(0, row, after)
        here = position + level.first_node
        node = here if row is None else node.index_copy(0, row, here)
        beliefs.append(alpha)
        relaxed = None if routes.relaxed is None else _spread(routes.relaxed, row, batch)
        logits, choice = _spread(routes.logits, row, batch), _spread(routes.choice, row, batch)
        steps.append(Step(node, evidence, logits, choice, relaxed, walking))
        if depth == model.graph.depth:
            break
        shown = None
        if eta is not None:
            here = alpha.detach() if row is None else alpha.detach().index_select(0, row)
            shown = _presented(model, here, depth)
        staying = _staying(model, depth, position, shown, eta)
        if staying is not None and not bool(staying.all()):
            kept = staying.nonzero().squeeze(1)
            row = kept if row is None else row.index_select(0, kept)
            position = position.index_select(0, kept)
            ahead = [rows.only(kept) for rows in ahead]
            walking = torch.zeros(batch, dtype=torch.bool, device=h.device).index_fill(0, row, True)
    temperature = model.calibration.temperature.clone() if _calibrates(model) else None
    return BeliefTrace(model.graph, prior, tuple(beliefs), tuple(steps), _closeness(stages), temperature)


def _closeness(stages: Sequence[WalkInput]) -> tuple[Float[Tensor, " B"], ...]:
    """The factors on evidence stage by stage; none where evidence counts as it is."""
    return tuple(rows.scale for rows in stages if rows.scale is not None)


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


def stopping_walk(model: NBSR, rows: WalkInput, eta: float | None, max_vacuity: float | None) -> Prediction:
    """Walk that stops: samples below eta leave the batch. Entropy is computed only where an exit is possible."""
    found = whole_walk(model, rows, eta, max_vacuity)
    return level_by_level(model, rows, eta, max_vacuity) if found is None else found


def whole_walk(model: NBSR, rows: WalkInput, eta: float | None, max_vacuity: float | None) -> Prediction | None:
    """`stopping_walk` in one call, where a backend can do that for these rows; else None.

    It takes one oracle for all levels, so that there must be no further stage.
    """
    if torch.is_grad_enabled() or model.normalise or rows.deeper is not None:
        return None
    temperature = model.calibration.temperature if _calibrates(model) else None
    found = backend_for(rows.h, levels=model.levels).walk(
        model.levels, *rows[:3], model.prior.to(rows.h.dtype), model.router_spec, model.evidence, eta, temperature
    )
    if found is None:
        return None
    alpha, depth, node, probs, label = found.alpha, found.depth, found.node, found.probs, found.label
    if found.unclear is not None and eta is not None:
        unclear = found.unclear.nonzero().squeeze(1)
        is_below = dirichlet.entropy(alpha.index_select(0, unclear), validate_args=False) < eta
        going_on = unclear[~is_below]  # the others have stopped where they should
        if len(going_on):
            exact = level_by_level(model, rows.only(going_on), eta, max_vacuity)
            parts = (exact.alpha, exact.depth, exact.node, exact.probs, exact.label)
            for whole, part in zip((alpha, depth, node, probs, label), parts, strict=True):
                whole.index_copy_(0, going_on, part)
    return Prediction(alpha, depth, node, float(model.prior.sum()), max_vacuity, (probs, label))


def level_by_level(model: NBSR, rows: WalkInput, eta: float | None, max_vacuity: float | None) -> Prediction:
    """`stopping_walk`, one level after the other."""
    alpha, position = model.prior.to(rows.h.dtype).unsqueeze(0), rows.h.new_zeros(len(rows.h), dtype=torch.int64)
    row: Tensor | None = None  # who still walks; None for everybody
    stops: list[Stop] = []
    for depth, level in enumerate(model.levels, start=1):
        rows = rows if depth == 1 else rows.below()
        h, side, scale, _ = rows
        found = backend_for(h, levels=[level]).level(level, h, alpha, side, position, mode="argmax", tau=1.0)
        position, (_, alpha) = found.position, _grown(model, alpha, found.evidence, scale)
        node, staying, shown = position + level.first_node, None, None
        if depth < model.graph.depth:
            shown = None if eta is None else _presented(model, alpha, depth)
            staying = _staying(model, depth, position, shown, eta)
            going_on = len(position) if staying is None else int(staying.sum())
            if going_on == len(position):
                continue
        # Those who go on leave here what they would say now; what they find later takes its place.
        stops.append(Stop(row, _presented(model, alpha, depth) if shown is None else shown, node, depth))
        if staying is None or not going_on:
            break
        kept = staying.nonzero().squeeze(1)
        row = kept if row is None else row.index_select(0, kept)
        rows = rows.only(kept)
        position, alpha = position.index_select(0, kept), alpha.index_select(0, kept)
    return conclude(stops, float(model.prior.sum()), max_vacuity)


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


def soft_walk(model: NBSR, stages: Sequence[WalkInput], tau: float) -> BeliefTrace:
    """Every path at once, each node weighted by the probability of reaching it: smooth all the way back in time.

    Work and memory grow with the number of nodes, which is why only training through time uses it, on small graphs.
    The nodes in the trace are those of the single most probable route.
    """
    first = stages[0].h
    batch, prior, graph = first.shape[0], model.prior.to(first.dtype), model.graph
    alpha = prior.expand(batch, -1)
    beliefs, steps = [alpha], []
    reach = first.new_ones(batch, 1)
    node = torch.zeros(batch, dtype=torch.int64, device=first.device)
    walking: Tensor | None = None
    for level in range(graph.depth):
        h, side, scale, _ = stages[min(level, len(stages) - 1)]
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
        evidence, alpha = _grown(model, alpha, evidence, scale)
        choice = logits_here.detach().argmax(-1)
        child = model.child_table[node, choice]
        walking = None if walking is None and bool((child >= 0).all()) else child >= 0
        node = torch.where(child >= 0, child, node)
        beliefs.append(alpha)
        relaxed = (logits_here / tau).softmax(-1)
        steps.append(Step(node, evidence, logits_here, choice, relaxed, walking))
        reach = reach_below
    return BeliefTrace(graph, prior, tuple(beliefs), tuple(steps), _closeness(stages))


def _grown(
    model: NBSR, belief: Float[Tensor, "#b K"], evidence: Float[Tensor, "b K"], scale: Float[Tensor, " b"] | None
) -> tuple[Float[Tensor, "b K"], Float[Tensor, "b K"]]:
    """What is added to a belief after an expert has spoken, and the belief then: `alpha <- alpha + e`."""
    if model.evidence == "relative":
        evidence = evidence * belief
    if scale is not None:
        evidence = evidence * scale.unsqueeze(1)
    after = belief + evidence
    if model.normalise:
        after = after * (belief.sum(-1, keepdim=True) / after.sum(-1, keepdim=True))
        evidence = after - belief
    return evidence, after


def _calibrates(model: NBSR) -> bool:
    """Calibration is for what is shown to people, not for training."""
    return bool(model.calibration.fitted) and not model.training


def _presented(model: NBSR, alpha: Float[Tensor, "b K"], depth: int) -> Float[Tensor, "b K"]:
    """The belief as it leaves the model."""
    if not _calibrates(model):
        return alpha
    shown: Tensor = model.calibration(alpha, depth)
    return shown
