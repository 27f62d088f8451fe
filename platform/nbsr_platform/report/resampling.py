"""How far a difference would move with other seeds and other test samples: a hierarchical paired bootstrap.

Every resample draws as many seeds as there are, with replacement, and for each drawn seed as many of its test samples
as it has, with replacement; both models of a comparison answer for the same seeds and the same samples. Where all seeds
were tested on the same samples, the drawn samples are the same for all drawn seeds: a sample on which one model is
always right is one finding, however many seeds repeat it. Samples count as independent of each other; what is alike
among them (words of one sentence, noise draws of one row) makes the interval somewhat too narrow.

Nothing is random twice: the same results give the same intervals.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from nbsr_core.metrics import Interval

LEAST_RESAMPLES = 2000
RESAMPLES_PER_COMPARISON = 100
"""No p-value of a bootstrap is smaller than two in so many resamples. Holm's correction multiplies the smallest by the
number of comparisons, and the product must be able to fall below 5%."""
COUNTS_AT_ONCE = 2**21  # how often each sample was drawn, held in memory together: 16 MB
VALUES_AT_ONCE = 2**23  # of columns that are averaged together: 64 MB

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Resampled:
    """What a bootstrap says of a difference.

    Attributes:
        samples: test samples of a seed, of the seed that has fewest.
        interval: mean difference over seeds and samples, and its 95% percentile interval.
        p: two-sided: twice the share of resamples in which the difference is zero or of the other sign.
    """

    samples: int
    interval: Interval
    p: float


def resamples_for(comparisons: int) -> int:
    """How many resamples a family of so many comparisons needs."""
    return max(LEAST_RESAMPLES, RESAMPLES_PER_COMPARISON * comparisons)


def means_of(columns: Mapping[Key, np.ndarray], resamples: int) -> dict[Key, np.ndarray]:
    """The mean of each column [N] in every resample of its rows, [R]; columns of one length share their draws."""
    found: dict[Key, np.ndarray] = {}
    for length in {len(column) for column in columns.values()}:
        names = [name for name, column in columns.items() if len(column) == length]
        at_once = max(1, VALUES_AT_ONCE // length)
        for start in range(0, len(names), at_once):
            some = names[start : start + at_once]
            means = resampled_means(np.stack([columns[name] for name in some], axis=1).astype(np.float64), resamples)
            found.update(zip(some, means.T, strict=True))
    return found


def resampled_means(columns: np.ndarray, resamples: int) -> np.ndarray:
    """Means of all columns in every resample of their rows.

    Args:
        columns: [N, C], a row per sample; every column is averaged over the same drawn rows.
        resamples: R.

    Returns:
        [R, C]; row r was made from the same draw for all matrices of N rows.
    """
    chance, samples = np.random.default_rng(0), len(columns)
    at_once, means = max(1, COUNTS_AT_ONCE // samples), []
    for start in range(0, resamples, at_once):
        draws = min(at_once, resamples - start)
        rows = chance.integers(samples, size=(draws, samples), dtype=np.int32)
        places = rows + samples * np.arange(draws)[:, None]
        counts = np.bincount(places.ravel(), minlength=draws * samples).reshape(draws, samples)
        means.append(counts.astype(np.float64) @ columns / samples)
    return np.concatenate(means)


def over_drawn_seeds(gaps: np.ndarray, *, same_samples: bool) -> np.ndarray:
    """The mean difference over the seeds that each resample draws.

    Args:
        gaps: [R, S], the difference of each seed in R resamples of its samples.
        same_samples: whether all seeds were tested on the same samples, so that a resample takes the same draw of
            samples for all of them; otherwise each drawn seed takes another one.

    Returns:
        [R].
    """
    resamples, seeds = gaps.shape
    drawn = np.random.default_rng(1).integers(seeds, size=(resamples, seeds))
    apart = 0 if same_samples else max(1, resamples // seeds)
    draws = (np.arange(resamples)[:, None] + apart * np.arange(seeds)) % resamples
    means: np.ndarray = gaps[draws, drawn].mean(axis=1)
    return means


def judged(drawn: np.ndarray, estimate: float, samples: int) -> Resampled:
    """Interval and p-value of a difference from its R resampled values."""
    low, high = np.quantile(drawn, [0.025, 0.975])
    against = int((drawn <= 0).sum() if estimate > 0 else (drawn >= 0).sum())
    p = min(1.0, 2 * (against + 1) / (len(drawn) + 1))
    return Resampled(samples, Interval(estimate, float(low), float(high)), p)
