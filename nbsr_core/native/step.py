"""A compiled level as one step for autograd, like `nbsr_core.step`, whose text says what is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from nbsr_core.native.level import CompiledLevel, Found

if TYPE_CHECKING:
    from nbsr_core.routing import RoutingMode

Siblings = Callable[[Float[Tensor, "b d"], Int[Tensor, " b"]], Float[Tensor, "b children K"]]


def run_compiled(
    level: CompiledLevel,
    inputs: list[Tensor],
    position: Int[Tensor, " b"],
    mode: RoutingMode,
    tau: float,
    siblings: Siblings | None,
) -> tuple[Tensor, Tensor, Tensor | None, Found]:
    """Evidence, logits and relaxed choice, differentiable where gradients are wanted, and what else was found."""
    parameters = level.parameters()
    if torch.is_grad_enabled():
        held = _Held(level, len(inputs), position, mode, tau, siblings)
        evidence, logits, relaxed = _CompiledStep.apply(held, *inputs, *parameters)
        return evidence, logits, relaxed, held.found
    found = level.run(inputs, parameters, position, mode, tau)
    return found.evidence, found.logits, found.relaxed, found


@dataclass
class _Held:
    """What a step knows beside its tensors."""

    level: CompiledLevel
    inputs: int
    position: Tensor
    mode: RoutingMode
    tau: float
    siblings: Siblings | None
    found: Found = field(init=False)


class _CompiledStep(torch.autograd.Function):
    """From h, what else routers see, and parameters to evidence, logits and relaxed choice."""

    @staticmethod
    def forward(ctx: Any, held: _Held, *tensors: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs, parameters = list(tensors[: held.inputs]), tensors[held.inputs :]
        found = held.found = held.level.run(inputs, parameters, held.position, held.mode, held.tau)
        taught = found.relaxed is not None and held.level.router is not None
        of_siblings = held.siblings(inputs[0], held.position) if taught and held.siblings is not None else None
        ctx.save_for_backward(*tensors, found.evidence, found.relaxed, of_siblings)
        ctx.level, ctx.inputs, ctx.call, ctx.kept, ctx.taught = held.level, held.inputs, found.call, found.kept, taught
        ctx.set_materialize_grads(False)
        return found.evidence, found.logits, found.relaxed

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
