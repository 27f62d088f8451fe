"""The figures that a study reports: how often a model is right, and how honest it is about it.

All is computed on the CPU in float64, whatever the dtype and device of the input, and returned as plain
floats: the same predictions give the same figures everywhere.

Not torchmetrics: its calibration error puts a confidence of exactly 1.0 into a bin of its own, and importing
it takes seconds and fails beside a torchvision that does not match torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.metrics.checks import PROBABILITY_FLOOR, checked, checked_labels


def accuracy(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> float:
    """Share of samples whose most probable class is the true one (of equal classes, the first counts)."""
    probs, labels = checked(probs, labels)
    return (probs.argmax(dim=1) == labels).double().mean().item()


def nll(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> float:
    """Mean of -ln p(true class), in nats, with p no smaller than `PROBABILITY_FLOOR`."""
    probs, labels = checked(probs, labels)
    true_class = probs.gather(1, labels[:, None])
    return -true_class.clamp_min(PROBABILITY_FLOOR).log().mean().item()


def brier(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> float:
    """Mean squared distance from the one-hot truth, summed over classes: 0 is perfect, 2 is surely wrong."""
    probs, labels = checked(probs, labels)
    truth = torch.nn.functional.one_hot(labels, probs.shape[1])
    return (probs - truth).square().sum(dim=1).mean().item()


def ece(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"], bins: int = 10) -> float:
    """The paper's expected calibration error: sum_m |B_m|/N |acc(B_m) - conf(B_m)| over equally wide bins."""
    return reliability(probs, labels, bins).gap


def adaptive_ece(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"], bins: int = 10) -> float:
    """ECE over bins that hold equally many samples.

    Equally wide bins leave a confident model with nearly all its samples in the last bin, where over- and
    under-confidence cancel; equal mass looks at those samples closely.
    """
    return reliability(probs, labels, bins, equal_mass=True).gap


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram:
    """Confidence against accuracy, bin by bin. Where count is 0 both are NaN, which plots leave out."""

    confidence: Float[Tensor, " bins"]
    accuracy: Float[Tensor, " bins"]
    count: Int[Tensor, " bins"]
    edges: Float[Tensor, " bins+1"]

    @property
    def gap(self) -> float:
        """Mean distance of accuracy from confidence over the bins, each weighted by its samples."""
        distance = (self.accuracy - self.confidence).abs()
        return (distance * self.count).nansum().item() / int(self.count.sum())


def reliability(
    probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"], bins: int = 10, *, equal_mass: bool = False
) -> ReliabilityDiagram:
    """Sort samples into bins by the probability of their predicted class.

    Bin m holds edge_m < confidence <= edge_{m+1} (Guo et al., 2017): 1.0 is an ordinary member of the last.
    With `equal_mass` the edges are quantiles of the confidences. Equal confidences stay together: the order
    of the samples never matters, and bins are uneven or empty where many are equal.
    """
    if bins < 1:
        raise InputError(f"bins is {bins}; at least 1 expected")
    probs, labels = checked(probs, labels)
    confidence, predicted = probs.max(dim=1)
    if equal_mass:
        share = torch.arange(1, bins) * len(confidence)
        inner = confidence.sort().values[(share + bins - 1) // bins - 1]  # the last of each bin
    else:
        inner = torch.arange(1, bins, dtype=torch.float64) / bins
    which = torch.bucketize(confidence, inner)
    count = which.bincount(minlength=bins)
    return ReliabilityDiagram(
        confidence=which.bincount(confidence, minlength=bins) / count,
        accuracy=which.bincount((predicted == labels).double(), minlength=bins) / count,
        count=count,
        edges=torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)]),
    )


OF_CLASSIFICATION = ("accuracy", "nll", "ece", "adaptive_ece", "brier", "mean_confidence")


def classification_metrics(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> dict[str, float]:
    """What every model of every domain logs; `mean_confidence` beside `accuracy` shows which way it errs."""
    probs, labels = checked(probs, labels)
    return {
        "accuracy": accuracy(probs, labels),
        "nll": nll(probs, labels),
        "ece": ece(probs, labels),
        "adaptive_ece": adaptive_ece(probs, labels),
        "brier": brier(probs, labels),
        "mean_confidence": probs.amax(dim=1).mean().item(),
    }


def confusion(
    labels_pred: Int[Tensor, " N"], labels: Int[Tensor, " N"], num_classes: int
) -> Int[Tensor, "{num_classes} {num_classes}"]:
    """How often the true class (row) was taken for each class (column)."""
    predicted = checked_labels(labels_pred, len(labels), num_classes)
    true = checked_labels(labels, len(labels), num_classes)
    cells = true * num_classes + predicted
    return cells.bincount(minlength=num_classes**2).reshape(num_classes, num_classes)
