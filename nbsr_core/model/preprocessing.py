"""Steps before the backbone that learn from the training data, kept in the model so that it takes raw input."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class FittedStep(nn.Module):
    """A step that is fitted on the training rows before the first epoch."""

    def fit(self, x: Float[Tensor, "N features"]) -> FittedStep:
        raise NotImplementedError


class Standardise(FittedStep):
    """Centre and scale each feature by the training data's own mean and deviation; the identity until it is fitted."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))
        self.mean: Tensor
        self.std: Tensor

    @torch.no_grad()
    def fit(self, x: Float[Tensor, "N features"]) -> Standardise:
        self.mean.copy_(x.mean(0))
        self.std.copy_(x.std(0).clamp_min(1e-6))
        return self

    def forward(self, x: Float[Tensor, "*N features"]) -> Float[Tensor, "*N features"]:
        return (x - self.mean) / self.std


class Knots(FittedStep):
    """Each feature also as `max(0, x - q)` at some quantiles q of the training rows: a bent line, where to bend given.

    A network finds it hard to tell 0.4 from 0.6 in one of many columns; with the bends at hand it has to learn little.
    Quantiles lie closer together towards both ends, where values are rare and tell most.
    """

    def __init__(self, features: int, knots: int) -> None:
        super().__init__()
        self.register_buffer("place", torch.zeros(knots, features))
        self.place: Tensor

    @torch.no_grad()
    def fit(self, x: Float[Tensor, "N features"]) -> Knots:
        knots = self.place.shape[0]
        share = (torch.arange(1, knots + 1, dtype=torch.float64) / (knots + 1) * torch.pi / 2).sin().square()
        rank = (share * (len(x) - 1)).round().long().to(x.device)
        self.place.copy_(x.sort(0).values[rank])
        return self

    def forward(
        self, x: Float[Tensor, "*N features"], scale: Standardise | None = None
    ) -> Float[Tensor, "*N knots features"]:
        """Of features as they are, or as `scale` made them."""
        place = self.place if scale is None else scale(self.place)
        return (x.unsqueeze(-2) - place).relu()
