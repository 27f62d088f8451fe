"""What figures are computed from, checked: labels, probabilities and scores; all on the CPU, in float64."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.errors import InputError

PROBABILITY_FLOOR = torch.finfo(torch.float32).tiny
"""Smallest normal float32, 1.2e-38: a true class of probability 0 costs 87.3 nats, not infinity."""

SUM_TOLERANCE = 1e-3
"""How far a row of probabilities may sum from 1: enough for float16, far too little for Dirichlet counts."""


def checked_labels(labels: Int[Tensor, " _"], samples: int, num_classes: int) -> Int[Tensor, " {samples}"]:
    """The labels as int64 on the CPU, or an `InputError`: `samples` of them, within 0 .. num_classes-1."""
    if not isinstance(labels, Tensor):
        raise InputError(f"labels must be a tensor of class numbers, got {type(labels).__name__}")
    if labels.shape != (samples,) or samples == 0:
        raise InputError(f"labels have shape {tuple(labels.shape)}; expected ({samples},), at least one")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels have dtype {labels.dtype}; an integer type expected")
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= num_classes:
        raise InputError(f"labels run from {low} to {high}; expected within 0 .. {num_classes - 1}")
    return labels.detach().to("cpu", torch.int64)


def checked(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> tuple[Float[Tensor, "N K"], Int[Tensor, " N"]]:
    probs = checked_probs(probs)
    return probs, checked_labels(labels, *probs.shape)


def checked_probs(probs: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """A row of probabilities per sample, in float64 on the CPU."""
    if probs.ndim != 2 or not probs.is_floating_point():
        raise InputError(f"probs are {probs.dtype} of shape {tuple(probs.shape)}; expected floats [N, K]")
    probs = probs.detach().cpu().double()
    if not bool((probs >= 0).all()):  # false for NaN too
        raise InputError(f"probs hold {probs.min().item()}; probabilities of at least 0 expected")
    sums = probs.sum(dim=1)
    off = (sums - 1).abs()
    if not bool((off <= SUM_TOLERANCE).all()):
        worst = int(off.argmax())
        raise InputError(f"probs of sample {worst} sum to {sums[worst]:.6g}; 1 ± {SUM_TOLERANCE} expected")
    return probs


def checked_scores(scores: Float[Tensor, " N"], name: str) -> Float[Tensor, " N"]:
    """One score per sample in float64; infinities are fine (a log-density may be -inf), NaN has no order."""
    if scores.ndim != 1 or len(scores) == 0 or not scores.is_floating_point():
        given = f"{scores.dtype} of shape {tuple(scores.shape)}"
        raise InputError(f"{name} is {given}; expected floats [N], at least one")
    if bool(scores.isnan().any()):
        raise InputError(f"{name} holds {int(scores.isnan().sum())} NaN; numbers expected")
    return scores.detach().cpu().double()


def checked_scored_answers(
    scores: Float[Tensor, " N"], correct: Bool[Tensor, " N"], name: str
) -> tuple[Float[Tensor, " N"], Bool[Tensor, " N"]]:
    """One score per answer, see `checked_scores`, and whether that answer is right."""
    scores = checked_scores(scores, name)
    if correct.shape != scores.shape or correct.dtype != torch.bool:
        raise InputError(
            f"correct is {correct.dtype} of shape {tuple(correct.shape)}; "
            f"expected torch.bool of shape {tuple(scores.shape)}, like {name}"
        )
    return scores, correct.cpu()


def checked_share(value: float, name: str, such_as: float) -> float:
    """A share strictly between 0 and 1, as a plain float."""
    if not 0 < value < 1:
        raise InputError(f"{name} is {value}; a share between 0 and 1 expected, such as {such_as}")
    return float(value)
