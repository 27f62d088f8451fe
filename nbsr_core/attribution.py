"""Which inputs drove this belief, and through which expert? Path-dependent input x gradient.

The belief in a class is a sum of what the visited experts added, so its gradient splits exactly by expert (paper,
path-dependent feature attribution): `I(x) = x * d alpha_{T,y} / dx = sum_t x * d e_{t,y} / dx`. Explained is the
raw belief: calibration mixes the classes and would break the sum. A density factor is part of the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.metrics import checked_labels
from nbsr_core.network import NBSR, evaluating


@dataclass(frozen=True, eq=False)
class Attribution:
    """Attribution of the raw belief in one class a sample.

    Attributes:
        by_expert: contribution of each input through the expert visited at each step, [T, B, *input]; 0 where a
            walk was already over.
        nodes: the experts in question, [T, B].
        label: the class whose belief is explained, [B].
    """

    by_expert: Float[Tensor, "T B ..."]
    nodes: Int[Tensor, "T B"]
    label: Int[Tensor, " B"]

    @property
    def total(self) -> Float[Tensor, "B ..."]:
        """The whole attribution: the parts summed over the walk."""
        return self.by_expert.sum(0)


def attribute(
    model: NBSR,
    x: Float[Tensor, "B ..."],
    label: Int[Tensor, " B"] | None = None,
    *,
    side: Float[Tensor, "B s"] | None = None,
) -> Attribution:
    """Explain the belief in `label` (the predicted class unless told) of each sample in `x`.

    The path is the one that the model would take. It is piecewise constant in x, so the gradient is along it.
    `side` is the routers' side information, for models that have any.
    """
    if not x.is_floating_point():
        raise InputError(f"attribution needs a floating-point input to differentiate by, got dtype {x.dtype}")
    if label is not None:
        label = checked_labels(label, len(x), model.num_classes).to(x.device)
    with evaluating(model), torch.enable_grad():
        probe = x.detach().clone().requires_grad_(True)
        trace = model(probe, side=side)
        chosen = trace.belief(trace.depth).argmax(-1) if label is None else label
        parts = []
        for step in trace.steps:
            said = step.evidence.gather(1, chosen.unsqueeze(1)).sum()
            (gradient,) = torch.autograd.grad(said, probe, retain_graph=True)
            parts.append(probe.detach() * gradient)
    return Attribution(torch.stack(parts), trace.nodes[1:], chosen)
