"""'I don't know' in figures: who is answered, how often those answers are wrong, and the threshold behind both.

The threshold is chosen on the validation split, as eta is: the smallest vacuity at which as many of the validation
samples are answered as `evaluation.answered` says. By default these are 95%, the usual operating point of detectors
(FPR95). That needs no labels and no unknown samples, and lets models be compared: each is asked for the same share of
answers. Models without a vacuity withhold the answers that they are least confident of, by the same rule; a
`max_vacuity` set by hand says nothing of them, but 1, which switches abstention off, does so for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NEVER = 1.0
"""The `max_vacuity` that switches abstention off: no vacuity is above it."""

MAX_DOUBT = "max_doubt"
"""Of a model that knows no vacuity: it abstains where `1 - confidence` is above it; chosen on the validation split."""

OF_ABSTENTION = ("coverage", "abstained", "accuracy_answered", "error_answered")
"""Names of the figures; the last two are missing where nobody is answered."""


@dataclass(frozen=True)
class Use:
    """A way to use a model on two splits: how much it doubts each sample, and whether it is right.

    Attributes:
        doubt: larger for less sure: vacuity, or 1 - confidence; for samples of the test split.
        right: whether the answers to these are right.
        valid: the doubt about samples of the validation split.
    """

    doubt: Float[Tensor, " N"]
    right: Bool[Tensor, " N"]
    valid: Float[Tensor, " M"]


def threshold(doubt: Float[Tensor, " M"], answered: float) -> float:
    """The smallest doubt at which this share of these samples, or more, are answered."""
    return float(doubt.kthvalue(max(1, math.ceil(answered * len(doubt)))).values)


def abstention_figures(use: Use, limit: float) -> dict[str, float]:
    """Coverage on the test split, and the error among those that are answered; none of it where nobody is."""
    answered = use.doubt <= limit
    coverage = float(answered.double().mean())
    figures = {"coverage": coverage, "abstained": 1 - coverage}
    if bool(answered.any()):
        right = float(use.right[answered].double().mean())
        figures |= {"accuracy_answered": right, "error_answered": 1 - right}
    return figures


def by_confidence(probs: Float[Tensor, "N K"], y: Int[Tensor, " N"], valid: Float[Tensor, "M K"]) -> Use:
    """The use of a model that knows no vacuity: it doubts what it is not confident of."""
    confidence, label = probs.max(-1)
    return Use((1 - confidence).cpu(), (label == y.to(label.device)).cpu(), (1 - torch.amax(valid, -1)).cpu())
