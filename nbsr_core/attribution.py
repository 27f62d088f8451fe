"""Which inputs drove this belief, and through which expert? Path-dependent input x gradient.

The belief in a class is a sum of what the visited experts added, so its gradient splits exactly by expert (paper,
section on path-dependent feature attribution): `I(x) = x * d alpha_{T,y} / dx = sum_t x * d e_{t,y} / dx`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.network import NBSR


@dataclass(frozen=True, eq=False)
class Attribution:
    """Attribution of the raw belief in one class a sample.

    Attributes:
        by_expert: contribution of each input through the expert visited at each step, [T, B, *input].
        nodes: the experts in question, [T, B].
        label: the class whose belief is explained, [B].
    """

    by_expert: Float[Tensor, "T B *input"]
    nodes: Int[Tensor, "T B"]
    label: Int[Tensor, " B"]

    @property
    def total(self) -> Float[Tensor, B * input]:
        """The whole attribution: the parts summed over the walk."""
        return self.by_expert.sum(0)


def attribute(model: NBSR, x: Tensor, label: Int[Tensor, " B"] | None = None) -> Attribution:
    """Explain the belief in `label` (the predicted class unless told) of each sample in `x`.

    The path is the one that the model would take; it is piecewise constant in x, so the gradient is along that path.
    """
    if not x.is_floating_point():
        raise InputError(f"attribution needs a floating-point input to differentiate by, got dtype {x.dtype}")
    was_training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            probe = x.detach().clone().requires_grad_(True)
            trace = model(probe)
            chosen = trace.belief(trace.depth).argmax(-1) if label is None else label
            parts = []
            for step in trace.steps:
                said = step.evidence.gather(1, chosen.unsqueeze(1)).sum()
                (gradient,) = torch.autograd.grad(said, probe, retain_graph=True)
                parts.append(probe.detach() * gradient)
    finally:
        model.train(was_training)
    return Attribution(torch.stack(parts), trace.nodes[1:], chosen)
