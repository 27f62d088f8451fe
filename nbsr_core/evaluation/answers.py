"""Figures of a model's answers, as it is used and, beside them, as it was before calibration."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.learning.learners import Answers

OF_RAW = ("ece_raw", "nll_raw")
OF_ANSWERS = (*metrics.OF_CLASSIFICATION, *OF_RAW)


def answer_figures(said: Answers) -> dict[str, float]:
    """What every model of every domain logs, on whatever set it is asked."""
    return {**metrics.classification_metrics(said.probs, said.labels), **raw_figures(said.raw, said.labels)}


def raw_figures(raw: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> dict[str, float]:
    """How honest the probabilities were before calibration: treated alike, models are also compared without it."""
    return {"ece_raw": metrics.ece(raw, labels), "nll_raw": metrics.nll(raw, labels)}
