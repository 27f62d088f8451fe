"""How well a score tells samples apart: the known from the unknown, the right answers from the wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.metrics.checks import checked_scores


def auroc(in_scores: Float[Tensor, " N"], out_scores: Float[Tensor, " M"]) -> float:
    """Chance that an in-distribution sample scores above an out-of-distribution one; a tie counts one half.

    Higher scores mean "more in-distribution". Counted pair by pair (Mann-Whitney) with integers, hence exact.
    """
    known, unknown = checked_scores(in_scores, "in_scores"), checked_scores(out_scores, "out_scores").sort().values
    below = torch.searchsorted(unknown, known, right=False).sum().item()
    below_or_equal = torch.searchsorted(unknown, known, right=True).sum().item()
    return (below + below_or_equal) / (2 * len(known) * len(unknown))


def fpr95(in_scores: Float[Tensor, " N"], out_scores: Float[Tensor, " M"]) -> float:
    """Share of the unknown samples let in by the strictest threshold that lets in 95 % of the known ones."""
    known, unknown = checked_scores(in_scores, "in_scores"), checked_scores(out_scores, "out_scores")
    admitted = -(-95 * len(known) // 100)  # rounded up, in integers
    threshold = known.sort(descending=True).values[admitted - 1]
    return (unknown >= threshold).double().mean().item()


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Error rate among the most confident share of the samples, for every share; `aurc` is its mean."""

    coverage: Float[Tensor, " N"]
    risk: Float[Tensor, " N"]
    aurc: float


def risk_coverage(confidence: Float[Tensor, " N"], correct: Bool[Tensor, " N"]) -> RiskCoverage:
    """What abstaining on the least confident samples buys.

    Samples of equal confidence each carry their group's mean error: the expected risk if they enter in random
    order. A constant confidence hence gives a flat curve at the error rate.
    """
    confidence = checked_scores(confidence, "confidence")
    if correct.shape != confidence.shape or correct.dtype != torch.bool:
        raise InputError(
            f"correct is {correct.dtype} of shape {tuple(correct.shape)}; "
            f"expected torch.bool of shape {tuple(confidence.shape)}, like confidence"
        )
    confidence, order = confidence.sort(descending=True)
    wrong = (~correct.cpu()[order]).double()
    _, group, size = confidence.unique_consecutive(return_inverse=True, return_counts=True)
    mean_wrong = group.bincount(wrong) / size
    taken = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    risk = mean_wrong[group].cumsum(0) / taken
    return RiskCoverage(coverage=taken / len(wrong), risk=risk, aurc=risk.mean().item())
