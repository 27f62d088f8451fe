"""The doubt up to which a model may answer, so that the answers are wrong no more often than asked, with confidence.

A threshold at which 5% of the validation answers are wrong is too bold for 5% about half of the time: it was chosen
where these samples happened to go well. Here the threshold is chosen by tests instead, with exact binomial p-values
(Clopper and Pearson), and the probability that it is too bold is at most delta.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, sqrt

import torch
from jaxtyping import Bool, Float
from scipy.special import bdtr
from torch import Tensor

from nbsr_core.metrics.checks import checked_scored_answers, checked_scores, checked_share

OF_RISK_CONTROL = ("controlled_coverage", "controlled_error")
"""Names of the figures; the last is missing where nobody is answered."""

_SMALLEST_DOUBT = torch.finfo(torch.float64).min  # for doubts of -inf: that is the threshold that answers nobody


@dataclass(frozen=True)
class RiskControl:
    """Who is answered, and what is guaranteed of the answers, see `control_risk`.

    Attributes:
        threshold: samples of at most this doubt are answered; -inf answers nobody.
        max_error: the largest error among the answered, guaranteed ...
        delta: ... but for this probability, over the draw of the validation samples.
        samples: how many validation samples there were.
        answered: how many of them the threshold answers.
        wrong: how many of those answers are wrong.
    """

    threshold: float
    max_error: float
    delta: float
    samples: int
    answered: int
    wrong: int

    def answers(self, doubt: Float[Tensor, " N"]) -> Bool[Tensor, " N"]:
        """Which samples are answered."""
        return _finite_below(checked_scores(doubt, "doubt")) <= self.threshold

    def figures(self, doubt: Float[Tensor, " N"], correct: Bool[Tensor, " N"]) -> dict[str, float]:
        """The share of these samples that is answered, and the share of the answers that is wrong, if there are any."""
        doubt, correct = checked_scored_answers(doubt, correct, "doubt")
        answered = self.answers(doubt)
        figures = {"controlled_coverage": answered.double().mean().item()}
        if bool(answered.any()):
            figures["controlled_error"] = (~correct[answered]).double().mean().item()
        return figures


def control_risk(
    doubt: Float[Tensor, " N"], correct: Bool[Tensor, " N"], max_error: float, delta: float = 0.1
) -> RiskControl:
    """The loosest threshold that passes, and with it all stricter ones from the start on: a fixed sequence of tests.

    Samples are taken in the order of their doubt, equal doubts together. For each threshold the p-value is the
    probability of so few mistakes, or fewer, if the error among the answered were `max_error`. As long as it is at most
    delta the threshold may be loosened; the first that fails ends it. Because the sequence is fixed beforehand (Learn
    then Test; Angelopoulos et al., 2021), all tests share the one delta: to answer too boldly, the first threshold
    whose true error is above `max_error` has to pass, and it does so with a probability of at most delta.

    The sequence starts where 8 sqrt(N) samples are answered. A few samples pass only without a single mistake, and an
    early unlucky one would end it there; the start depends on N alone, so a larger `max_error` or delta never answers
    fewer. The 8 was chosen on simulated models of five kinds (N from 100 to 3000, `max_error` 0.02, 0.05 and 0.1, delta
    0.1). On five other kinds this sequence answered 45% of the samples on average, one that starts with the fewest
    samples that can pass 37%, and the selective guaranteed risk of Geifman and El-Yaniv (2017), a search in log2(N)
    steps which each have their part of delta, 36%.

    Where the sequence starts, in terms of doubt, depends on the samples. If the error among the answered never falls as
    the threshold rises, that changes nothing. For other models the argument holds up to the one sample that stands at
    the start, and for equal doubts it was not proven; simulations of both, in the tests, stay below delta.

    Args:
        doubt: of validation samples that the model was not trained on; larger for less sure.
        correct: whether the model's answers to them are right.
        max_error: the share of the answers that may be wrong.
        delta: how likely the threshold may be too bold, over the draw of the validation samples.
    """
    doubt, correct = checked_scored_answers(doubt, correct, "doubt")
    max_error, delta = checked_share(max_error, "max_error", 0.05), checked_share(delta, "delta", 0.1)
    samples = len(doubt)
    thresholds, equal = _finite_below(doubt).unique(return_inverse=True)
    answered = equal.bincount().cumsum(0)
    wrong = equal[~correct].bincount(minlength=len(thresholds)).cumsum(0)
    p_values = torch.from_numpy(bdtr(wrong.double().numpy(), answered.numpy(), max_error))
    before_start = answered < min(samples, ceil(8 * sqrt(samples)))
    passed = int(((p_values <= delta) | before_start).long().cumprod(0).sum())
    if passed <= int(before_start.sum()):
        return RiskControl(-inf, max_error, delta, samples, answered=0, wrong=0)
    last = passed - 1
    return RiskControl(
        thresholds[last].item(), max_error, delta, samples, answered=int(answered[last]), wrong=int(wrong[last])
    )


def _finite_below(doubt: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    return doubt.clamp_min(_SMALLEST_DOUBT)
