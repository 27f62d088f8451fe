"""Where a walk stops, and what is said then: early exit below an entropy threshold, abstention above a vacuity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core import dirichlet
from nbsr_core.errors import InputError


def check_eta(eta: float | None) -> float | None:
    """An exit threshold is a real number (infinities are allowed: always and never), or None for never."""
    if eta is None:
        return None
    if isinstance(eta, bool) or not isinstance(eta, int | float) or math.isnan(eta):
        raise InputError(f"eta must be a number or None, got {eta!r}")
    return float(eta)


def check_max_vacuity(max_vacuity: float | None) -> float | None:
    """Vacuity is a share of the whole belief, so a limit on it lies in (0, 1]."""
    if max_vacuity is None:
        return None
    if isinstance(max_vacuity, bool) or not isinstance(max_vacuity, int | float) or not 0 < max_vacuity <= 1:
        raise InputError(f"max_vacuity must lie in (0, 1] or be None, got {max_vacuity!r}")
    return float(max_vacuity)


def is_vacuous(eta: float, prior: Float[Tensor, " K"]) -> bool:
    """Whether eta is no test at all: the prior, before any evidence, already passes it."""
    return bool(dirichlet.entropy(prior) < eta)


def first_below(entropy: Float[Tensor, "T B"], eta: float, length: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """First depth (1-based) at which entropy < eta, but no deeper than each walk goes."""
    below = entropy < eta
    never = below.shape[0]
    first = torch.where(below.any(0), below.to(torch.uint8).argmax(0) + 1, never)
    return torch.minimum(first, length)


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the model says of each sample, where it stopped, and whether it would rather not say."""

    alpha: Float[Tensor, "B K"]
    depth: Int[Tensor, " B"]
    node: Int[Tensor, " B"]
    vacuity: Float[Tensor, " B"]
    abstained: Bool[Tensor, " B"]

    @cached_property
    def probs(self) -> Float[Tensor, "B K"]:
        """Expected marginals (paper, Eq. expected_marginal)."""
        return self.alpha / self.alpha.sum(-1, keepdim=True)

    @cached_property
    def label(self) -> Int[Tensor, " B"]:
        """The most probable class, also for abstained samples: what it would have said."""
        return self.alpha.argmax(-1)

    def __len__(self) -> int:
        return self.depth.shape[0]

    @staticmethod
    def concat(parts: Sequence[Prediction]) -> Prediction:
        """Predictions for one batch after another as one."""
        if len(parts) == 1:
            return parts[0]
        columns = ([getattr(part, field.name) for part in parts] for field in fields(Prediction))
        return Prediction(*(torch.cat(column) for column in columns))


@dataclass(frozen=True, eq=False)
class Stop:
    """Samples that stopped together: which they are (None: all, in order), their belief, node and depth."""

    row: Int[Tensor, " b"] | None
    alpha: Float[Tensor, "b K"]
    node: Int[Tensor, " b"]
    depth: int | Int[Tensor, " b"]


def conclude(stops: Sequence[Stop], prior_weight: float, max_vacuity: float | None) -> Prediction:
    """Turn the beliefs at which walks stopped into predictions; what is still too vacuous is an abstention."""
    alphas, nodes = [stop.alpha for stop in stops], [stop.node for stop in stops]
    depths = [torch.full_like(s.node, s.depth) if isinstance(s.depth, int) else s.depth for s in stops]
    if len(stops) == 1 and stops[0].row is None:
        alpha, node, depth = alphas[0], nodes[0], depths[0]
    else:
        row = torch.cat([stop.row for stop in stops if stop.row is not None])
        alpha = alphas[0].new_empty(len(row), alphas[0].shape[1]).index_copy_(0, row, torch.cat(alphas))
        node = torch.empty_like(row).index_copy_(0, row, torch.cat(nodes))
        depth = torch.empty_like(row).index_copy_(0, row, torch.cat(depths))
    vacuity = prior_weight / alpha.sum(-1)
    abstained = torch.zeros_like(depth, dtype=torch.bool) if max_vacuity is None else vacuity > max_vacuity
    return Prediction(alpha, depth, node, vacuity, abstained)
