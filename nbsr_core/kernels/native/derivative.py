"""A compiled level as one function for autograd: compiled code has its derivative written out (`level.h`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from nbsr_core.kernels.interface import LevelResult, Siblings
from nbsr_core.kernels.native.level import CompiledLevel, LevelRun
from nbsr_core.kernels.routing import Routes
from nbsr_core.options.specs import RoutingMode


def run_level(
    level: CompiledLevel,
    inputs: list[Tensor],
    position: Int[Tensor, " b"],
    mode: RoutingMode,
    tau: float,
    siblings: Siblings | None,
) -> LevelResult:
    """One level down, differentiable where gradients are enabled. `inputs` are h and whatever else the routers see."""
    parameters = level.parameters()
    if not torch.is_grad_enabled():
        run = level.run(inputs, parameters, position, mode, tau)
        return LevelResult(Routes(run.logits, run.relaxed, run.choice), run.arrived, run.evidence)
    asked = _Asked(level, len(inputs), position, mode, tau, siblings)
    evidence, logits, relaxed = _DifferentiableLevel.apply(asked, *inputs, *parameters)
    return LevelResult(Routes(logits, relaxed, asked.run.choice), asked.run.arrived, evidence)


@dataclass
class _Asked:
    """What a level is asked for beside its tensors, and the run that followed."""

    level: CompiledLevel
    inputs: int
    position: Tensor
    mode: RoutingMode
    tau: float
    siblings: Siblings | None
    run: LevelRun = field(init=False)


class _DifferentiableLevel(torch.autograd.Function):
    """From h, what else routers see, and parameters to evidence, logits and relaxed choice."""

    @staticmethod
    def forward(ctx: Any, asked: _Asked, *tensors: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs, parameters = list(tensors[: asked.inputs]), tensors[asked.inputs :]
        run = asked.run = asked.level.run(inputs, parameters, asked.position, asked.mode, asked.tau)
        taught = run.relaxed is not None and asked.level.router is not None
        of_siblings = asked.siblings(inputs[0], asked.position) if taught and asked.siblings is not None else None
        ctx.save_for_backward(*tensors, run.evidence, run.relaxed, of_siblings)
        ctx.level, ctx.inputs, ctx.call, ctx.kept, ctx.taught = asked.level, asked.inputs, run.call, run.kept, taught
        ctx.set_materialize_grads(False)
        return run.evidence, run.logits, run.relaxed

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_evidence: Tensor | None, of_logits: Tensor | None, of_relaxed: Tensor | None
    ) -> tuple[Any, ...]:
        *tensors, evidence, relaxed, siblings = ctx.saved_tensors
        inputs, parameters = tensors[: ctx.inputs], tensors[ctx.inputs :]
        taught = ctx.taught
        if taught and siblings is not None and of_evidence is not None:
            learned = torch.einsum("bk,bjk->bj", of_evidence, siblings)
            of_relaxed, taught = learned if of_relaxed is None else of_relaxed + learned, False
        wanted, level = ctx.needs_input_grad[1 : 1 + ctx.inputs], ctx.level
        of_inputs, of_parameters = level.differentiate(
            ctx.call, evidence, relaxed, inputs, wanted, parameters, of_evidence, of_logits, of_relaxed, taught
        )
        return None, *of_inputs, *of_parameters
