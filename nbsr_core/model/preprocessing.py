"""Steps before the backbone that learn from the training data, kept in the model so that it takes raw input."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Standardise(nn.Module):
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

    def forward(self, x: Float[Tensor, "N features"]) -> Float[Tensor, "N features"]:
        return (x - self.mean) / self.std
