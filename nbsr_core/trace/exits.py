"""Where a walk stops, and what is said then: early exit below an entropy threshold, abstention above a vacuity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core._checks import number
from nbsr_core.belief import dirichlet
from nbsr_core.errors import InputError
from nbsr_core.kernels import backend_for
from nbsr_core.options.specs import check_max_vacuity as check_max_vacuity


def check_eta(eta: float | None) -> float | None:
    """An exit threshold is a real number (infinities are allowed: always and never), or None for never."""
    if eta is None:
        return None
    known = number(eta)
    if known is None:
        raise InputError(f"eta must be a number or None, got {eta!r}")
    return known


def is_vacuous(eta: float, prior: Float[Tensor, " K"]) -> bool:
    """Whether eta is no test at all: the prior, before any evidence, already passes it."""
    return bool(dirichlet.entropy(prior) < eta)


def first_below(entropy: Float[Tensor, "T B"], eta: float, length: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """First depth (1-based) at which entropy < eta, but no deeper than each walk goes."""
    below = entropy < eta
    never = below.shape[0]
    first = torch.where(below.any(0), below.to(torch.uint8).argmax(0) + 1, never)
    return torch.minimum(first, length)


class Prediction:
    """What the model says of each sample, where it stopped, and whether it would rather not say.

    Attributes:
        depth: how many experts it was shown to.
        node: the last of them.
        prior_weight: W, the pseudo-counts of the prior.
        max_vacuity: above it the model abstains; None if it never does.
    """

    def __init__(
        self,
        alpha: Float[Tensor, "B K"],
        depth: Int[Tensor, " B"],
        node: Int[Tensor, " B"],
        prior_weight: float,
        max_vacuity: float | None,
        marginals: tuple[Float[Tensor, "B K"], Int[Tensor, " B"]] | None = None,
    ) -> None:
        """`marginals` are probabilities and labels, where a walk has found them already."""
        self._alpha, self.depth, self.node = alpha, depth, node
        self.prior_weight, self.max_vacuity = prior_weight, max_vacuity
        self._known = marginals

    @property
    def alpha(self) -> Float[Tensor, "B K"]:
        """The belief at which each sample stopped."""
        return self._alpha

    @cached_property
    def vacuity(self) -> Float[Tensor, " B"]:
        """The share of the belief that is still the prior's, `W / alpha_0`; rounding makes it no more than all."""
        return (self.prior_weight / self.alpha.sum(-1)).clamp_max(1.0)

    @cached_property
    def abstained(self) -> Bool[Tensor, " B"]:
        """Who would rather not say."""
        if self.max_vacuity is None:
            return torch.zeros_like(self.depth, dtype=torch.bool)
        return self.vacuity > self.max_vacuity

    @cached_property
    def probs(self) -> Float[Tensor, "B K"]:
        """Expected marginals (paper, Eq. expected_marginal)."""
        return self._marginals[0]

    @cached_property
    def label(self) -> Int[Tensor, " B"]:
        """The most probable class, also for abstained samples: what it would have said."""
        return self._marginals[1]

    @cached_property
    def _marginals(self) -> tuple[Float[Tensor, "B K"], Int[Tensor, " B"]]:
        """Probabilities and labels in one pass, since whoever wants one mostly wants the other."""
        return backend_for(self.alpha).marginals(self.alpha) if self._known is None else self._known

    def __len__(self) -> int:
        return self.depth.shape[0]

    @staticmethod
    def concat(parts: Sequence[Prediction]) -> Prediction:
        """Predictions for one batch after another as one."""
        if len(parts) == 1:
            return parts[0]
        alpha, depth, node = (torch.cat([getattr(part, name) for part in parts]) for name in ("alpha", "depth", "node"))
        known = [part._known for part in parts if part._known is not None]
        marginals = None
        if len(known) == len(parts):
            marginals = torch.cat([probs for probs, _ in known]), torch.cat([label for _, label in known])
        return Prediction(alpha, depth, node, parts[0].prior_weight, parts[0].max_vacuity, marginals)


@dataclass(frozen=True, eq=False)
class Stop:
    """Samples that stopped together: which they are (None: all, in order), their belief, node and depth."""

    row: Int[Tensor, " b"] | None
    alpha: Float[Tensor, "b K"]
    node: Int[Tensor, " b"]
    depth: int | Int[Tensor, " b"]


def conclude(stops: Sequence[Stop], prior_weight: float, max_vacuity: float | None) -> Prediction:
    """Turn the beliefs at which walks stopped into predictions, in the order of the batch.

    Who stops twice has gone on from the first stop, which may be that of everybody.
    """
    depths = [torch.full_like(s.node, s.depth) if isinstance(s.depth, int) else s.depth for s in stops]
    first, found = stops[0], [stops[0].alpha, depths[0], stops[0].node]
    if first.row is not None:
        rows = torch.cat([stop.row for stop in stops if stop.row is not None])
        found = [values.new_empty(int(rows.max()) + 1, *values.shape[1:]) for values in found]
    for stop, reached in zip(stops, depths, strict=True):
        if stop.row is not None:
            for whole, part in zip(found, (stop.alpha, reached, stop.node), strict=True):
                whole.index_copy_(0, stop.row, part)
    alpha, depth, node = found
    return Prediction(alpha, depth, node, prior_weight, max_vacuity)
