"""A deep ensemble: the same flat network several times, from different first weights; their mean is the answer.

Lakshminarayanan, Pritzel and Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
NeurIPS 2017. Here all members are one module and learn side by side, so that a training can be stopped and resumed, or
shared among workers, like any other. The one difference from members that are trained one after another: all see the
same batches in the same order. What tells them apart is where they started.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nbsr_core.learning.learners import Classifier, Inside
from nbsr_core.learning.references.flat import flat_network


class Backbones(nn.Module):
    """What each member's backbone makes of the same input."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Float[Tensor, "B M d"]:
        return torch.stack([member(x) for member in self.members], 1)


class Heads(nn.Module):
    """Each member's head on the features of its own backbone."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, h: Float[Tensor, "B M d"]) -> Float[Tensor, "B M K"]:
        return torch.stack([member(own) for member, own in zip(self.members, h.unbind(1), strict=True)], 1)


def mean_log_probabilities(logits: Float[Tensor, "B M K"]) -> Float[Tensor, "B K"]:
    """Logarithm of the mean of the members' softmax."""
    return torch.logsumexp(logits.log_softmax(-1), 1) - math.log(logits.shape[1])


class ManyAnswers(Classifier):
    """A network that gives the logits of several members; the mean of their probabilities is the answer."""

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss", "nll")

    def members_nll(self, module: nn.Module, x: Tensor, y: Tensor) -> Float[Tensor, ""]:
        """The cross-entropy of each member on its own, on average over members and samples."""
        logits, labels = module(x), self.labels(y)
        return self.cross_entropy(logits.flatten(0, 1), labels.repeat_interleave(logits.shape[1]))

    def probabilities_of(self, outputs: Float[Tensor, "N M K"]) -> Float[Tensor, "N K"]:
        """The mean over the members."""
        return outputs.softmax(-1).mean(1)

    def members_probabilities(self, x: Tensor) -> Float[Tensor, "N M K"]:
        """What each member says."""
        return self.by_chunks(lambda part: self.module(part).softmax(-1), x)


def side_by_side(members: Iterable[tuple[nn.Module, nn.Module]]) -> nn.Sequential:
    """Flat networks as one: backbone and head of each, built one after another to start from different weights."""
    backbones, heads = zip(*members, strict=True)
    return flat_network(Backbones(backbones), Heads(heads))


class Ensemble(ManyAnswers):
    """Members that are trained with the sum of their cross-entropies; none of them knows of the others.

    Args:
        module: gives the logits of all members [B, M, K], as `side_by_side` does.
        members: M.
    """

    def __init__(self, module: nn.Module, members: int) -> None:
        super().__init__(module)
        self.members = members

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        nll = self.members_nll(module, x, y)
        return {"loss": self.members * nll, "nll": nll}

    def inside(self, x: Tensor) -> Inside:
        """The features of all members side by side, and the logarithm of the mean probabilities."""
        features = self.by_chunks(self.module.get_submodule("backbone"), x)
        logits = self.by_chunks(self.module.get_submodule("head"), features)
        return Inside(features.flatten(1), mean_log_probabilities(logits))
