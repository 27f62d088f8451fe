"""How a router turns logits into a choice, and how it learns from a choice that has no gradient.

Training walks are hard: one child is taken. The straight-through estimator (paper, Eq. Gumbel-Softmax-detach) lets the
gradient pass through the relaxed probabilities instead. What arrives there depends on whose evidence is known:

* *sparse*: only the chosen child's expert ran, so only the chosen gate is credited, with `<dL/dalpha, e_chosen>`;
* *counterfactual*: the siblings' evidence is computed too (without gradient to their experts), and every gate is
  credited with what taking it would have added, `<dL/dalpha, e_j>`. Dearer by the width, less biased.

In both, the value of the evidence is untouched and experts off the path get a gradient of exactly zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.errors import InputError

RoutingMode = Literal["gumbel", "softmax", "argmax"]
Estimator = Literal["sparse", "counterfactual"]

SMALLEST_TEMPERATURE = 1e-6  # colder, and the softmax of logits / tau has no gradient that float32 can hold


def check_choice(name: str, value: str, allowed: Any) -> None:
    """Reject a misspelt option with the list of right ones."""
    options = get_args(allowed)
    if value not in options:
        raise InputError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")


def check_temperature(tau: float) -> float:
    """A Gumbel-softmax temperature must be a positive, finite number."""
    is_number = isinstance(tau, int | float) and not isinstance(tau, bool)
    if not (is_number and SMALLEST_TEMPERATURE <= tau < math.inf):
        raise InputError(f"temperature tau must be a finite number > 0, got {tau!r}")
    return float(tau)


@dataclass(frozen=True)
class TemperatureSchedule:
    """Exponential annealing with a floor: `tau(epoch) = max(floor, start * decay ** epoch)`."""

    start: float = 1.0
    decay: float = 0.9
    floor: float = 0.1

    def __post_init__(self) -> None:
        check_temperature(self.start)
        check_temperature(self.floor)
        if not 0 < self.decay <= 1:
            raise InputError(f"temperature decay must lie in (0, 1], got {self.decay!r}")

    def __call__(self, epoch: int) -> float:
        return max(self.floor, self.start * self.decay**epoch)


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
    """Pick one child a row: sampled with Gumbel noise, or the best one (softmax relaxes, argmax does not)."""
    if mode == "argmax":
        return Routes(logits, None, logits.argmax(-1))
    scores = logits + gumbel_noise(logits) if mode == "gumbel" else logits
    scores = scores if tau == 1.0 else scores / tau
    return Routes(logits, scores.softmax(-1), scores.detach().argmax(-1))


def selection(relaxed: Float[Tensor, "b children"], choice: Int[Tensor, " b"]) -> Float[Tensor, "b children"]:
    """The straight-through one-hot itself, `(onehot - pi).detach() + pi`, for penalties on what was chosen (costs)."""
    hard = torch.zeros_like(relaxed).scatter_(1, choice.unsqueeze(1), 1.0)
    return hard + (relaxed - relaxed.detach())
