"""How a router turns logits into a choice, and how it learns from a choice that has no gradient.

Training walks are hard: one child is taken. The straight-through estimator (paper, Eq. Gumbel-Softmax-detach) lets the
gradient pass through the relaxed probabilities instead. What arrives there depends on whose evidence is known:

* *sparse*: only the chosen child's expert ran, so only the chosen gate is credited, with `<dL/dalpha, e_chosen>`;
* *counterfactual*: the siblings' evidence is computed too (without gradient to their experts), and every gate is
  credited with what taking it would have added, `<dL/dalpha, e_j>`. Dearer by the width, less biased.

In both, the value of the evidence is untouched and experts off the path get a gradient of exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.options.specs import RoutingMode


def gumbel_noise(like: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Standard Gumbel draws, `-log E` with `E ~ Exp(1)`: finite, because torch never draws E = 0."""
    return torch.empty_like(like).exponential_().log_().neg_()


@dataclass(frozen=True)
class Routes:
    """What the routers of one level decided for the rows that stood there.

    Attributes:
        logits: router output z, padded with -inf where a node has fewer children than its widest neighbour.
        relaxed: differentiable probabilities pi that carry the gradient (Gumbel-softmax in training).
        choice: the child taken, as a column of `logits`.
    """

    logits: Float[Tensor, "b children"]
    relaxed: Float[Tensor, "b children"] | None
    choice: Int[Tensor, " b"]


def choose(logits: Float[Tensor, "b children"], mode: RoutingMode, tau: float) -> Routes:
    """Pick one child for each row: sampled with Gumbel noise, or the best one (softmax relaxes, argmax does not)."""
    if mode == "argmax":
        return Routes(logits, None, logits.argmax(-1))
    scores = logits + gumbel_noise(logits) if mode == "gumbel" else logits
    scores = scores if tau == 1.0 else scores / tau
    return Routes(logits, scores.softmax(-1), scores.detach().argmax(-1))


def selection(relaxed: Float[Tensor, "b children"], choice: Int[Tensor, " b"]) -> Float[Tensor, "b children"]:
    """The straight-through one-hot itself, `(onehot - pi).detach() + pi`, for penalties on what was chosen (costs)."""
    hard = torch.zeros_like(relaxed).scatter_(1, choice.unsqueeze(1), 1.0)
    return hard + (relaxed - relaxed.detach())


def gated(
    evidence: Float[Tensor, "b K"],
    relaxed: Float[Tensor, "b children"],
    choice: Int[Tensor, " b"],
    siblings: Float[Tensor, "b children K"] | None = None,
) -> Float[Tensor, "b K"]:
    """The evidence of the chosen child times its straight-through gate, which is 1: the value stays, routers learn.

    With the evidence of all `siblings` (counterfactual), their gates are credited too.
    """
    if siblings is not None:
        return evidence + torch.einsum("bj,bjk->bk", relaxed - relaxed.detach(), siblings)
    gate = relaxed.gather(1, choice.unsqueeze(1))
    return evidence * (1.0 + (gate - gate.detach()))
