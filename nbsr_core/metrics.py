"""The figures that a study reports: how often a model is right, and how honest it is about it.

All is computed on the CPU in float64, whatever the dtype and device of the input, and returned as plain
floats: the same predictions give the same figures everywhere.

Not torchmetrics: its calibration error puts a confidence of exactly 1.0 into a bin of its own, and importing
it takes seconds and fails beside a torchvision that does not match torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from statistics import fmean, stdev

import torch
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit
from torch import Tensor

from nbsr_core.errors import InputError

PROBABILITY_FLOOR = torch.finfo(torch.float32).tiny
"""Smallest normal float32, 1.2e-38: a true class of probability 0 costs 87.3 nats, not infinity."""

SUM_TOLERANCE = 1e-3
"""How far a row of probabilities may sum from 1: enough for float16, far too little for Dirichlet counts."""

_INDICES_AT_ONCE = 2**22  # bootstrap indices held in memory together: 32 MB


def accuracy(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> float:
    """Share of samples whose most probable class is the true one (of equal classes, the first counts)."""
    probs, labels = _checked(probs, labels)
    return (probs.argmax(dim=1) == labels).double().mean().item()


def nll(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> float:
    """Mean of -ln p(true class), in nats, with p no smaller than `PROBABILITY_FLOOR`."""
    probs, labels = _checked(probs, labels)
    true_class = probs.gather(1, labels[:, None])
    return -true_class.clamp_min(PROBABILITY_FLOOR).log().mean().item()


def brier(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> float:
    """Mean squared distance from the one-hot truth, summed over classes: 0 is perfect, 2 is surely wrong."""
    probs, labels = _checked(probs, labels)
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
    probs, labels = _checked(probs, labels)
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


def classification_metrics(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> dict[str, float]:
    """What every model of every domain logs; `mean_confidence` beside `accuracy` shows which way it errs."""
    probs, labels = _checked(probs, labels)
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


def auroc(in_scores: Float[Tensor, " N"], out_scores: Float[Tensor, " M"]) -> float:
    """Chance that an in-distribution sample scores above an out-of-distribution one; a tie counts one half.

    Higher scores mean "more in-distribution". Counted pair by pair (Mann-Whitney) with integers, hence exact.
    """
    known, unknown = _scores(in_scores, "in_scores"), _scores(out_scores, "out_scores").sort().values
    below = torch.searchsorted(unknown, known, right=False).sum().item()
    below_or_equal = torch.searchsorted(unknown, known, right=True).sum().item()
    return (below + below_or_equal) / (2 * len(known) * len(unknown))


def fpr95(in_scores: Float[Tensor, " N"], out_scores: Float[Tensor, " M"]) -> float:
    """Share of the unknown samples let in by the strictest threshold that lets in 95 % of the known ones."""
    known, unknown = _scores(in_scores, "in_scores"), _scores(out_scores, "out_scores")
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
    confidence = _scores(confidence, "confidence")
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


@dataclass(frozen=True)
class Interval:
    """An estimate and the bounds of its confidence interval: NaN where a single sample allows none."""

    estimate: float
    low: float
    high: float


def bootstrap_interval(
    statistic: Callable[..., float | Tensor],
    *arrays: Tensor,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap: `statistic(*arrays)` again and again, on rows drawn together with replacement.

    Says how the figure would vary with other test samples of the same kind; for other trainings, see
    `seed_interval`. Where the statistic is a mean, `mean_interval` is much faster.
    """
    sizes = [len(array) for array in arrays]
    if not sizes or min(sizes) != max(sizes) or sizes[0] == 0:
        raise InputError(f"arrays have {sizes} samples; expected some, and as many in each array")
    _check_level(level)
    drawn = [
        float(statistic(*(array[row.to(array.device)] for array in arrays)))
        for rows in _resampled_rows(sizes[0], resamples, seed)
        for row in rows
    ]
    return _percentile_interval(float(statistic(*arrays)), drawn, sizes[0], level)


def mean_interval(
    values: Float[Tensor, " N"], *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Percentile bootstrap of the mean: `bootstrap_interval` with `torch.mean`, many resamples at a time."""
    values = _scores(values, "values")
    _check_level(level)
    means = [values[rows].mean(dim=1) for rows in _resampled_rows(len(values), resamples, seed)]
    return _percentile_interval(values.mean().item(), torch.cat(means).tolist(), len(values), level)


def seed_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student-t interval for the mean over a handful of seeds; one seed shows no spread: bounds NaN."""
    count = len(values)
    if count == 0 or not all(isfinite(value) for value in values):
        raise InputError(f"values is {list(values)}; one finite number per seed expected")
    _check_level(level)
    mean = fmean(values)
    if count == 1:
        return Interval(mean, nan, nan)
    half = float(stdtrit(count - 1, (1 + level) / 2)) * stdev(values) / sqrt(count)
    return Interval(mean, mean - half, mean + half)


def _resampled_rows(samples: int, resamples: int, seed: int) -> Iterator[Int[Tensor, "chunk N"]]:
    if resamples < 1:
        raise InputError(f"resamples is {resamples}; at least 1 expected")
    generator = torch.Generator().manual_seed(seed)
    chunk = max(1, _INDICES_AT_ONCE // samples)
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        yield torch.randint(samples, (rows, samples), generator=generator)


def _percentile_interval(estimate: float, drawn: list[float], samples: int, level: float) -> Interval:
    if samples == 1:
        return Interval(estimate, nan, nan)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.tensor(drawn, dtype=torch.float64).quantile(tails).tolist()
    return Interval(estimate, low, high)


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


def _checked(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> tuple[Float[Tensor, "N K"], Int[Tensor, " N"]]:
    if probs.ndim != 2 or not probs.is_floating_point():
        raise InputError(f"probs are {probs.dtype} of shape {tuple(probs.shape)}; expected floats [N, K]")
    labels = checked_labels(labels, *probs.shape)
    probs = probs.detach().cpu().double()
    if not bool((probs >= 0).all()):  # false for NaN too
        raise InputError(f"probs hold {probs.min().item()}; probabilities of at least 0 expected")
    sums = probs.sum(dim=1)
    off = (sums - 1).abs()
    if not bool((off <= SUM_TOLERANCE).all()):
        worst = int(off.argmax())
        raise InputError(f"probs of sample {worst} sum to {sums[worst]:.6g}; 1 ± {SUM_TOLERANCE} expected")
    return probs, labels


def _scores(scores: Float[Tensor, " N"], name: str) -> Float[Tensor, " N"]:
    """One score a sample in float64; infinities are fine (a log-density may be -inf), NaN has no order."""
    if scores.ndim != 1 or len(scores) == 0 or not scores.is_floating_point():
        given = f"{scores.dtype} of shape {tuple(scores.shape)}"
        raise InputError(f"{name} is {given}; expected floats [N], at least one")
    if bool(scores.isnan().any()):
        raise InputError(f"{name} holds {int(scores.isnan().sum())} NaN; numbers expected")
    return scores.detach().cpu().double()


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"level is {level}; a share between 0 and 1 expected, such as 0.95")
