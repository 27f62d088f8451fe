"""How sure a figure is: intervals over seeds, over test samples, and for shares within 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, isfinite, isnan, log, nan, sqrt
from statistics import fmean, stdev

import torch
from jaxtyping import Float, Int
from scipy.special import stdtrit
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.metrics.checks import checked_scores, checked_share
from nbsr_core.metrics.names import last_part

_INDICES_AT_ONCE = 2**22  # bootstrap indices held in memory together: 32 MB

LEAST_SEEDS = 3
"""Fewer seeds give a mean and no interval."""


@dataclass(frozen=True)
class Interval:
    """An estimate and the bounds of its confidence interval: NaN where so few samples allow none."""

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
    checked_share(level, "level", 0.95)
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
    values = checked_scores(values, "values")
    checked_share(level, "level", 0.95)
    means = [values[rows].mean(dim=1) for rows in _resampled_rows(len(values), resamples, seed)]
    return _percentile_interval(values.mean().item(), torch.cat(means).tolist(), len(values), level)


def seed_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student-t interval for the mean over a handful of seeds; fewer than `LEAST_SEEDS` have none: bounds NaN.

    One seed shows no spread. Two do, but t is 12.7 then: the interval is nine times as wide on either side as the two
    are apart, whatever they are, and says nothing but that there are two. For shares see `share_interval`.
    """
    count = len(values)
    if count == 0 or not all(isfinite(value) for value in values):
        raise InputError(f"values is {list(values)}; one finite number per seed expected")
    checked_share(level, "level", 0.95)
    mean = fmean(values)
    if count < LEAST_SEEDS:
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


# Last part of a figure's name, or what stands there before `_`: figures that lie in [0, 1] by what they are.
SHARES = frozenset(
    {
        *("accuracy", "accuracy_answered", "error_answered", "error", "mean_confidence"),
        *("ece", "ece_raw", "adaptive_ece"),
        *(
            "auroc",
            "fpr95",
            "aurc",
            "augrc",
            "coverage",
            "abstained",
            "exited",
            "vacuity",
            "success",
            "halts",
            "crashes",
        ),
        *("set_coverage", "empty_sets", "singleton_sets", "controlled_coverage", "controlled_error"),
        *("routing_agreement", "leaf_agreement", "smallest_mid_usage", "smallest_leaf_usage", "peak", "area"),
    }
)


def is_share(figure: str) -> bool:
    """Whether a figure lies in [0, 1] by its name: `noise_draws/ece`, `ood/letters/auroc_precision`."""
    last = last_part(figure)
    return last in SHARES or last.partition("_")[0] in ("auroc", "fpr95", "abstained")


def figure_interval(figure: str, values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of a figure over seeds with the interval that suits it; NaN bounds with fewer than `LEAST_SEEDS`."""
    if is_share(figure) and all(0 <= value <= 1 for value in values):
        return share_interval(values, level)
    return seed_interval(values, level)


def share_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student-t interval for the mean of shares over seeds, on the logit scale: it never leaves [0, 1].

    The mean m and its standard error s are those of `seed_interval`; the interval is `logit(m) ± t s / (m (1 - m))`,
    carried back (the delta method). On the plain scale an interval of 98% ± 3% promises 101%, and where the spread is
    skewed, as it is near a bound, it holds the truth too seldom: 89 to 92 times in a hundred for shares with a beta law
    near 0 or 1 and 3 to 10 seeds, where this one does 93 to 95 times. Logits of the single values would need none of
    them to be 0 or 1, and would speak of the mean logit instead of the mean. Values that are all the same have an
    interval of no width.
    """
    plain = seed_interval(values, level)
    mean, half = plain.estimate, (plain.high - plain.low) / 2
    if isnan(half) or half == 0 or not 0 < mean < 1:
        return plain
    centre, reach = log(mean) - log(1 - mean), half / (mean * (1 - mean))
    return Interval(mean, _expit(centre - reach), _expit(centre + reach))


def few_seeds(seeds: int) -> str | None:
    """Why there is no interval, in words; None if there is one."""
    if seeds >= LEAST_SEEDS:
        return None
    return f"{seeds} seed{'s' if seeds > 1 else ''}: too few for an interval ({LEAST_SEEDS} give one)"


def _expit(value: float) -> float:
    return 1 / (1 + exp(-value)) if value > 0 else exp(value) / (1 + exp(value))
