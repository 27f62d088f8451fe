"""NBSR whose routers see more than its experts: side information eps (paper, Eq. router) as part of the input."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.model.network import NBSR
from nbsr_core.trace.belief_trace import BeliefTrace
from nbsr_core.trace.exits import Prediction


class SideInput(NBSR):
    """The last `side_dim` columns of the input go to the routers alone, the others to the backbone.

    So whoever trains, judges or serves a model hands over one input, as with every other model.
    """

    def seen(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B f"]:
        return x[:, : x.shape[1] - self.side_dim]

    def forward(self, x: Float[Tensor, "B F"], **given: Any) -> BeliefTrace:
        return super().forward(x, **{**given, "side": self._side(x)})

    @torch.inference_mode()
    def predict(self, x: Float[Tensor, "B F"], **given: Any) -> Prediction:
        return super().predict(x, **{**given, "side": self._side(x)})

    def _side(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B s"]:
        return x[:, x.shape[1] - self.side_dim :]
