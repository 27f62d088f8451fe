"""The compiled backend: float32 on a CPU. What compiled code does not do is left to plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.kernels.interface import Backend, DensityShape, Level, LevelResult, Siblings, WalkResult
from nbsr_core.kernels.native import rows
from nbsr_core.kernels.native.derivative import run_level
from nbsr_core.kernels.native.level import CompiledLevel
from nbsr_core.kernels.native.walk import run_walk
from nbsr_core.kernels.reference import Reference
from nbsr_core.options.specs import EvidenceKind, RouterSpec, RoutingMode


class Compiled(Backend):
    """Compiled C."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

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
        inputs = level.routers.inputs(h, belief, side)
        return run_level(CompiledLevel.of(level), inputs, position, mode, tau, siblings)

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
        if eta is not None and not isfinite(eta):
            return None
        return run_walk(levels, h, side, scale, prior, router, evidence, eta, temperature)

    def calibrated(
        self, alpha: Float[Tensor, "*batch K"], temperature: Float[Tensor, "*#batch"]
    ) -> Float[Tensor, "*batch K"]:
        if alpha.ndim != 2 or temperature.ndim > 1:
            return self.reference.calibrated(alpha, temperature)

        def compute(alpha: Tensor, temperature: Tensor) -> Tensor:
            found = rows.calibrated(alpha, temperature)
            return self.reference.calibrated(alpha, temperature) if found is None else found  # which says what is wrong

        return rows.with_derivative(compute, self.reference.calibrated, alpha, temperature.reshape(-1))

    def marginals(self, alpha: Float[Tensor, "b K"]) -> tuple[Float[Tensor, "b K"], Int[Tensor, " b"]]:
        return self.reference.marginals(alpha) if alpha.requires_grad else rows.marginals(alpha)

    def screened(self, alpha: Float[Tensor, "b K"], eta: float) -> tuple[Bool[Tensor, " b"], Bool[Tensor, " b"] | None]:
        answer, unclear = rows.screened(alpha, rows.exit_test(eta, alpha.shape[1]))
        return (answer == 1, answer == 2) if unclear else (answer.view(torch.bool), None)

    def distances(
        self, features: Float[Tensor, "N d"], shape: DensityShape, mean: Int[Tensor, " N"] | None, length: int
    ) -> Float[Tensor, " N"]:
        compute = partial(rows.density, shape=shape, mean=mean, length=length, as_factor=False)
        in_torch = partial(self.reference.distances, shape=shape, mean=mean, length=length)
        return rows.with_derivative(compute, in_torch, features)

    def closeness(
        self, features: Float[Tensor, "N d"], shape: DensityShape, mean: Int[Tensor, " N"] | None, length: int
    ) -> Float[Tensor, " N"]:
        compute = partial(rows.density, shape=shape, mean=mean, length=length, as_factor=True)
        in_torch = partial(self.reference.closeness, shape=shape, mean=mean, length=length)
        return rows.with_derivative(compute, in_torch, features)
