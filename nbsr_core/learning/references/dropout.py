"""Monte Carlo dropout: dropout stays on when the model answers, and the answer is the mean of several passes.

Gal and Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning", ICML 2016.
A pass drops the same features of every sample, as if one thinned network had been drawn; the thinned networks are drawn
once, from a fixed seed. So an answer follows from the weights and the sample alone, not from what was asked before or
beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.learning.learners import Classifier, Inside
from nbsr_core.learning.references.ensemble import mean_log_probabilities


class ThinnedDropout(nn.Module):
    """Dropout on vectors: ordinary while it is trained, then every thinned network at once.

    Args:
        size: of the vectors.
        rate: probability that a feature is dropped.
        passes: S, how many thinned networks there are.
        place: which dropout of the network this is, from 0: each has masks of its own.
    """

    def __init__(self, size: int, rate: float, passes: int, place: int) -> None:
        super().__init__()
        self.rate = rate
        kept = torch.rand(passes, 1, size, generator=torch.Generator().manual_seed(place)) >= rate
        self.register_buffer("masks", kept / (1 - rate), persistent=False)
        self.masks: Tensor

    def forward(self, x: Float[Tensor, "... B d"]) -> Float[Tensor, "... B d"]:
        """[B, d] to [B, d] in training; otherwise [B, d], or already [S, B, d], to [S, B, d]."""
        return F.dropout(x, self.rate) if self.training else x * self.masks


def thinned_layers(inputs: int, hidden: Sequence[int], rate: float, passes: int, first: int = 0) -> nn.Sequential:
    """Dense ReLU layers with dropout after each.

    Args:
        inputs: size of what the first layer reads.
        hidden: sizes of the layers.
        rate: see `ThinnedDropout`.
        passes: likewise.
        first: number of the first dropout, where others stand before it.
    """
    layers: list[nn.Module] = []
    for place, size in enumerate(hidden, start=first):
        layers += [nn.Linear(inputs, size), nn.ReLU(), ThinnedDropout(size, rate, passes, place)]
        inputs = size
    return nn.Sequential(*layers)


class McDropout(Classifier):
    """A flat network with a `ThinnedDropout` or more in it, all with the same number of passes."""

    at_once = 512  # each goes through all passes

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        """Cross-entropy of one pass; of all of them while the backbone, and its dropout with it, stands still."""
        logits, labels = module(x).flatten(0, -2), self.labels(y)
        return {"loss": self.cross_entropy(logits, labels.repeat(len(logits) // len(labels)))}

    def probabilities_of(self, outputs: Float[Tensor, "S N K"]) -> Float[Tensor, "N K"]:
        """The mean over the passes."""
        return outputs.softmax(-1).mean(0)

    def inside(self, x: Tensor) -> Inside:
        """The features before the head, on average over the passes, and the logarithm of the mean probabilities."""
        backbone = self.module.get_submodule("backbone")
        features = self.by_chunks(lambda part: backbone(part).mean(0), x)
        logits = self.by_chunks(lambda part: mean_log_probabilities(self.module(part).transpose(0, 1)), x)
        return Inside(features, logits)
