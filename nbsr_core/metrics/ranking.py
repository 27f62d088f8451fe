"""How well a score tells samples apart: the known from the unknown, the right answers from the wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nbsr_core.metrics.checks import checked_scored_answers, checked_scores


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


OF_RANKING = ("aurc", "augrc")


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Error among the most confident share of the samples, for every share.

    Attributes:
        coverage: the share of the samples that is answered: 1/N, 2/N, ... 1.
        risk: the share of the answered that is wrong.
        generalised_risk: the share of all samples that is answered and wrong: risk times coverage.
        aurc: mean of the risk.
        augrc: area under the generalised risk from coverage 0, where it is 0, to 1 (Traub et al., 2024).
    """

    coverage: Float[Tensor, " N"]
    risk: Float[Tensor, " N"]
    generalised_risk: Float[Tensor, " N"]
    aurc: float
    augrc: float


def risk_coverage(confidence: Float[Tensor, " N"], correct: Bool[Tensor, " N"]) -> RiskCoverage:
    """What abstaining on the least confident samples buys.

    Samples of equal confidence each carry their group's mean error: the expected risk if they enter in random
    order. A constant confidence hence gives a flat curve at the error rate.

    AURC divides the same mistake by ever fewer answers, so a few surely wrong answers outweigh all that comes after
    them. AUGRC counts every mistake by how long it is let through, and depends on nothing but the accuracy and on how
    well confidence tells right from wrong: `augrc = (1 - auroc) acc (1 - acc) + (1 - acc)² / 2`, exactly.
    """
    confidence, correct = checked_scored_answers(confidence, correct, "confidence")
    confidence, order = confidence.sort(descending=True)
    wrong = (~correct[order]).double()
    _, group, size = confidence.unique_consecutive(return_inverse=True, return_counts=True)
    mistakes = (group.bincount(wrong) / size)[group].cumsum(0)
    taken = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    risk, generalised = mistakes / taken, mistakes / len(wrong)
    return RiskCoverage(
        coverage=taken / len(wrong),
        risk=risk,
        generalised_risk=generalised,
        aurc=risk.mean().item(),
        augrc=torch.trapezoid(torch.nn.functional.pad(generalised, (1, 0))).item() / len(wrong),
    )


def ranking_metrics(confidence: Float[Tensor, " N"], correct: Bool[Tensor, " N"]) -> dict[str, float]:
    """Both areas of `risk_coverage`, by their names: `OF_RANKING`. Smaller is better."""
    curve = risk_coverage(confidence, correct)
    return {"aurc": curve.aurc, "augrc": curve.augrc}
