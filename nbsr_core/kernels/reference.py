"""The reference: every kernel in plain torch under ordinary autograd, on any device and in any precision."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.kernels.entropy_bounds import doubt, estimate
from nbsr_core.kernels.interface import Backend, DensityShape, Level, LevelResult, Siblings, WalkResult
from nbsr_core.kernels.routing import choose, gated
from nbsr_core.options.specs import EvidenceKind, RouterSpec, RoutingMode

CONCENTRATION_FLOOR = 1e-18
"""Smallest calibrated alpha_k: always a Dirichlet, and trigamma ~ 1/alpha^2 stays finite in float32."""


class Reference(Backend):
    """Plain torch."""

    def level(
        self,
        level: Level,
        h: Float[Tensor, "b d"],
        belief: Float[Tensor, "#b K"],
        side: Float[Tensor, "b s"] | None,
        position: Int[Tensor, " b"],
        *,
        mode: RoutingMode,
        tau: float,
        siblings: Siblings | None = None,
    ) -> LevelResult:
        routers, has_choice = level.routers, level.routers.bank is not None
        logits = routers(routers.inputs(h, belief, side), position)
        mode = "softmax" if mode == "gumbel" and not has_choice else mode  # an only child needs no lot
        routes = choose(logits, mode, tau)
        arrived = routers.chosen(position, routes.choice)
        evidence = level.experts(h, arrived)
        if routes.relaxed is not None and has_choice and torch.is_grad_enabled():
            of_siblings = None if siblings is None else siblings(h, position)
            evidence = gated(evidence, routes.relaxed, routes.choice, of_siblings)
        return LevelResult(routes, arrived, evidence)

    def walk(
        self,
        levels: Sequence[Level],
        h: Float[Tensor, "b d"],
        side: Float[Tensor, "b s"] | None,
        scale: Float[Tensor, " b"] | None,
        prior: Float[Tensor, " K"],
        router: RouterSpec,
        evidence: EvidenceKind,
        eta: float | None,
        temperature: Float[Tensor, " depth"] | None,
    ) -> WalkResult | None:
        return None  # level by level it is as fast

    def calibrated(
        self, alpha: Float[Tensor, "*batch K"], temperature: Float[Tensor, "*#batch"]
    ) -> Float[Tensor, "*batch K"]:
        lowest, highest = (bound.item() for bound in alpha.detach().aminmax())
        if not 0 < lowest <= highest < math.inf:  # false for NaN too
            raise InputError(f"alpha runs from {lowest:.4g} to {highest:.4g}; finite and above 0 expected")
        tiny = torch.finfo(alpha.dtype).tiny
        # Relative to the largest: its log is exactly 0, so rounding lets none pass it. Softmax drops the factor.
        relative = alpha / alpha.detach().amax(-1, keepdim=True)
        if lowest < highest * tiny:
            relative = relative.clamp_min(tiny)
        if torch.is_grad_enabled():
            power = relative.log() / temperature.unsqueeze(-1)
        else:  # in place: fresh memory for every operation costs more than the operation
            power = relative.log_().div_(temperature.unsqueeze(-1))
        mean = torch.softmax(power, dim=-1)
        return (alpha.sum(-1, keepdim=True) * mean).clamp_min_(max(CONCENTRATION_FLOOR, tiny))

    def marginals(self, alpha: Float[Tensor, "b K"]) -> tuple[Float[Tensor, "b K"], Int[Tensor, " b"]]:
        return alpha / alpha.sum(-1, keepdim=True), alpha.max(-1).indices  # faster than argmax

    def screened(self, alpha: Float[Tensor, "b K"], eta: float) -> tuple[Bool[Tensor, " b"], Bool[Tensor, " b"] | None]:
        distance = estimate(alpha).sub_(eta)
        answer = distance < 0
        unclear = ~(distance.abs_() > doubt(eta, alpha.shape[1]))  # true for NaN too
        return answer, unclear if bool(unclear.any()) else None

    def distances(
        self, features: Float[Tensor, "N d"], shape: DensityShape, mean: Int[Tensor, " N"] | None, length: int
    ) -> Float[Tensor, " N"]:
        white = (features.to(shape.centre) - shape.centre) @ shape.whitening
        if mean is None:
            # The product only finds the nearest mean; its own value would be a difference of large numbers.
            mean = (shape.means.square().sum(-1) - 2 * white @ shape.means.T).argmin(-1)
        away = white - shape.means.index_select(0, mean)
        distance: Tensor = torch.linalg.vector_norm(away, dim=-1) / math.sqrt(away.shape[-1])
        return distance if length == 1 else distance.view(-1, length).cummax(1).values.flatten()

    def closeness(
        self, features: Float[Tensor, "N d"], shape: DensityShape, mean: Int[Tensor, " N"] | None, length: int
    ) -> Float[Tensor, " N"]:
        return closeness_at(self.distances(features, shape, mean, length), shape)


def closeness_at(distance: Float[Tensor, " N"], shape: DensityShape) -> Float[Tensor, " N"]:
    """The factor on evidence at given distances: 1 up to the threshold, then a Gaussian fall down to the floor."""
    beyond = ((distance - shape.threshold) / shape.spread).clamp_min(0)
    return torch.exp(-0.5 * beyond.square()).clamp_min(shape.floor)
