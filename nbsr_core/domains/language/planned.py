"""A walk whose routes are known before it starts: how tokens are predicted, thousands at a time, over many words.

Routers that do not read the belief need the oracle alone, which is small. So routes are found first, as far as nobody
can exit, and tokens are sorted by them. Runs of tokens then share their experts: products write straight into the place
of their rows, evidence is gathered in place, and no belief is moved before it is done. That matters most where beliefs
are large. One over 5,000 words takes 20 kB, those of a batch 80 MB, and a pass over them costs more than the products
behind them. So they walk in blocks that stay in the cache, and leave it once, as probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from nbsr_core.belief.entropy_tests import below
from nbsr_core.kernels import StackedLinear, activate
from nbsr_core.model.experts import ExpertBank
from nbsr_core.model.network import NBSR
from nbsr_core.model.routers import LevelRouters
from nbsr_core.options.specs import DEFAULT_EXP_BOUND, LARGEST_EXPONENT, ExpertSpec
from nbsr_core.trace.exits import Prediction

Places = NDArray[np.int64]


def can_plan(model: NBSR) -> bool:
    """Whether routes follow from the oracle: no router reads belief or side information, all leaves lie equally deep.

    And all experts of a level are of one kind, so that a level is one bank, and their evidence is added as it is.
    """
    leaves = {node.level for node in model.graph.nodes if not node.children}
    blind = model.router_spec.belief == "none" and not model.side_dim
    plain = model.evidence == "absolute" and not model.normalise
    return blind and plain and len(leaves) == 1 and all(len(level.banks) == 1 for level in model.experts)


def planned_walk(
    model: NBSR,
    h: Float[Tensor, "rows d"],
    eta: float | None,
    max_vacuity: float | None,
    scale: Float[Tensor, " rows"] | None,
    block: int,
) -> PlannedPrediction:
    """What `stopping_walk` says of each row; no more than `block` of them at a time have a belief."""
    at_root = np.zeros(len(h), dtype=np.int64)
    stopped = StoppedTokens(model, h)
    tokens = WalkingTokens(np.arange(len(h)), at_root, h, None if scale is None else scale.unsqueeze(1))
    _walk(model, tokens, None, 0, eta, block, stopped)
    return stopped.prediction(max_vacuity)


def _walk(
    model: NBSR,
    tokens: WalkingTokens,
    gathered: Float[Tensor, "b K"] | None,
    level: int,
    eta: float | None,
    block: int,
    stopped: StoppedTokens,
) -> None:
    """From a level down to the next one where somebody may exit, and on from there with those who do not.

    `gathered` is the evidence so far, before it is scaled by closeness.
    """
    last = model.graph.depth if eta is None else level + 1
    path = [tokens.position]
    for routers in list(model.routers)[level:last]:
        path.append(next_places(routers, tokens.h, path[-1]))
    order = np.argsort(path[-1].astype(np.int16), kind="stable")  # a radix sort
    tokens, path = tokens.only(order), [places[order] for places in path[1:]]
    if gathered is not None:
        gathered = gathered.index_select(0, torch.from_numpy(order).to(gathered.device))
    for start in range(0, len(order), block):
        part = slice(start, start + block)
        here, evidence = tokens.part(part), None if gathered is None else gathered[part]
        for experts, places in zip(list(model.experts)[level:last], path, strict=True):
            found = consult(experts.banks[0], here.h, places[part])
            evidence = found if evidence is None else evidence.add_(found)
        assert evidence is not None
        here.position = path[-1][part]
        belief = here.believe(model.prior, evidence)
        shown: Tensor = model.calibration(belief, last)
        unsure = None if eta is None or last == model.graph.depth else ~below(shown, eta)
        stopped.put(here, shown, last)  # for those who go on, until they come back
        if unsure is not None and bool(unsure.any()):
            kept = unsure.nonzero().squeeze(1)
            onward = evidence.index_select(0, kept)
            _walk(model, here.only(kept.cpu().numpy()), onward, last, eta, block, stopped)


@dataclass
class WalkingTokens:
    """Rows under way: which they are, where in their level they stand, their oracles, how far their evidence counts."""

    row: Places
    position: Places
    h: Float[Tensor, "b d"]
    scale: Float[Tensor, "b 1"] | None

    def only(self, kept: Places) -> WalkingTokens:
        """Some of them, or all, in this order."""
        index = torch.from_numpy(kept).to(self.h.device)
        scale = None if self.scale is None else self.scale.index_select(0, index)
        return WalkingTokens(self.row[kept], self.position[kept], self.h.index_select(0, index), scale)

    def part(self, rows: slice) -> WalkingTokens:
        return WalkingTokens(
            self.row[rows], self.position[rows], self.h[rows], None if self.scale is None else self.scale[rows]
        )

    def believe(self, prior: Float[Tensor, " K"], evidence: Float[Tensor, "b K"]) -> Float[Tensor, "b K"]:
        """The prior and as much of the evidence as counts."""
        return prior + evidence if self.scale is None else torch.addcmul(prior, evidence, self.scale)


def next_places(routers: LevelRouters, h: Float[Tensor, "b d"], position: Places) -> Places:
    """Where in the level below each row goes: every router of the level is asked, and a row's own one heard."""
    choice: Places = np.zeros_like(position)
    bank = routers.bank
    if bank is not None:
        z = bank.from_oracle.every_slot(h).transpose(0, 1)
        for layer in bank.layers:
            z, weight = z.relu_(), layer.weight.mT
            z = torch.bmm(z, weight) if layer.bias is None else torch.baddbmm(layer.bias.unsqueeze(1), z, weight)
        if routers.uneven:
            z = z.masked_fill(routers.missing.unsqueeze(1), -math.inf)
        favourites = z.max(-1).indices.cpu().numpy()
        choice = favourites[0] if len(favourites) == 1 else favourites[position, np.arange(len(position))]
    below_here: Places = routers.child_position.cpu().numpy()[position * routers.num_children + choice]
    return below_here


def consult(bank: ExpertBank, h: Float[Tensor, "b d"], places: Places) -> Float[Tensor, "b K"]:
    """Evidence of each row's own expert, run by run of rows that share it."""
    *hidden, last = bank.layers
    output = h.new_empty(len(h), last.weight.shape[1])
    for slot, start, stop in _runs(places):
        z = h[start:stop]
        for layer in hidden:
            z = _affine(layer, slot, z).relu_()
        _affine(last, slot, z, output[start:stop])
    return _activated(bank.spec, output)


def _affine(layer: StackedLinear, slot: int, z: Float[Tensor, "run inp"], out: Tensor | None = None) -> Tensor:
    weight = layer.weight[slot].t()
    return torch.mm(z, weight, out=out) if layer.bias is None else torch.addmm(layer.bias[slot], z, weight, out=out)


def _runs(places: Places) -> Iterator[tuple[int, int, int]]:
    """(place, start, stop) of each run of equal places."""
    edges = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
    for start, stop in pairwise(edges):
        yield int(places[start]), start, stop


def _activated(spec: ExpertSpec, z: Float[Tensor, "b K"]) -> Float[Tensor, "b K"]:
    """`spec.activate`, in place for the exponential: fresh memory costs more than the function."""
    if spec.activation != "exp":
        return activate(spec, z)
    return z.neg_().clamp_max_(LARGEST_EXPONENT).exp_().add_(1 / (spec.bound or DEFAULT_EXP_BOUND)).reciprocal_()


class StoppedTokens:
    """Where every token stopped, filled block by block."""

    def __init__(self, model: NBSR, h: Float[Tensor, "rows d"]) -> None:
        self.model = model
        self.probs, self.precision = h.new_empty(len(h), model.num_classes), h.new_empty(len(h))
        self.label = torch.empty(len(h), dtype=torch.int64, device=h.device)
        self.depth: Places = np.empty(len(h), dtype=np.int64)
        self.node: Places = np.empty(len(h), dtype=np.int64)

    def put(self, tokens: WalkingTokens, alpha: Float[Tensor, "b K"], depth: int) -> None:
        """These rows stop here. Their belief is normalised in place."""
        rows = torch.from_numpy(tokens.row).to(alpha.device)
        precision, label = alpha.sum(-1), alpha.max(-1).indices
        found = (alpha.div_(precision.unsqueeze(1)), precision, label)
        for whole, part in zip((self.probs, self.precision, self.label), found, strict=True):
            whole.index_copy_(0, rows, part)
        self.depth[tokens.row] = depth
        self.node[tokens.row] = tokens.position + self.model.graph.levels[depth].start

    def prediction(self, max_vacuity: float | None) -> PlannedPrediction:
        weight, device = float(self.model.prior.sum()), self.probs.device
        depth, node = (torch.from_numpy(part).to(device) for part in (self.depth, self.node))
        return PlannedPrediction(self.probs, self.precision, self.label, depth, node, weight, max_vacuity)


class PlannedPrediction(Prediction):
    """A prediction that keeps probabilities and precision; `alpha`, as large as both together, is their product."""

    def __init__(
        self,
        probs: Float[Tensor, "B K"],
        precision: Float[Tensor, " B"],
        label: Int[Tensor, " B"],
        depth: Int[Tensor, " B"],
        node: Int[Tensor, " B"],
        prior_weight: float,
        max_vacuity: float | None,
    ) -> None:
        self.probs, self.precision, self.label = probs, precision, label
        self.depth, self.node, self.vacuity = depth, node, (prior_weight / precision).clamp_max(1.0)
        self.prior_weight, self.max_vacuity = prior_weight, max_vacuity
        self._known = probs, label

    @cached_property
    def alpha(self) -> Float[Tensor, "B K"]:
        return self.probs * self.precision.unsqueeze(1)
