"""Intervals of shares over seeds: within 0 and 1, and right as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nbsr_core import metrics
from nbsr_core.metrics import seed_interval
from nbsr_core.metrics.intervals import few_seeds, figure_interval, is_share, share_interval


@given(st.lists(st.floats(0, 1), min_size=3, max_size=10))
def test_an_interval_of_shares_stays_within_0_and_1_around_the_mean(values: list[float]) -> None:
    interval = share_interval(values)
    assert 0 <= interval.low <= interval.estimate + 1e-12
    assert interval.estimate - 1e-12 <= interval.high <= 1
    assert interval.estimate == pytest.approx(np.mean(values))


@given(st.floats(0.3, 0.7), st.lists(st.floats(-1e-4, 1e-4), min_size=3, max_size=8))
def test_where_values_are_close_and_far_from_the_bounds_it_is_students(centre: float, offsets: list[float]) -> None:
    values = [centre + offset for offset in offsets]
    ours, plain = share_interval(values), seed_interval(values)
    assert (ours.low, ours.high) == pytest.approx((plain.low, plain.high), abs=2e-6)


@pytest.mark.parametrize(("a", "b"), [(50, 50), (90, 10), (45, 5), (9, 1), (2, 50), (1, 99)])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_it_holds_the_truth_about_as_often_as_it_says(a: float, b: float, seeds: int) -> None:
    drawn = np.random.default_rng(0).beta(a, b, (2000, seeds)).tolist()
    truth = a / (a + b)
    found = [share_interval(values) for values in drawn]
    ours = np.mean([interval.low <= truth <= interval.high for interval in found])
    plain = np.mean([each.low <= truth <= each.high for each in map(seed_interval, drawn)])
    assert ours >= 0.92
    assert ours >= plain - 0.01, "never worse than the plain interval"
    # Against the formula written out with scipy.
    values = np.array(drawn[0])
    reach = stats.t.ppf(0.975, seeds - 1) * stats.sem(values) / (values.mean() * (1 - values.mean()))
    logit = math.log(values.mean() / (1 - values.mean()))
    expected = [1 / (1 + math.exp(-(logit + sign * reach))) for sign in (-1, 1)]
    assert [found[0].low, found[0].high] == pytest.approx(expected)


@pytest.mark.parametrize("values", [[0.798], [0.7, 0.9]])
def test_one_seed_or_two_give_no_interval(values: list[float]) -> None:
    for interval in (share_interval(values), seed_interval(values), figure_interval("nll", values)):
        assert interval.estimate == pytest.approx(np.mean(values))
        assert math.isnan(interval.low)
        assert math.isnan(interval.high)
    assert few_seeds(len(values)) is not None
    assert few_seeds(3) is None


def test_a_figure_is_known_as_a_share_by_its_name_and_values() -> None:
    shares = ["accuracy", "noise_draws/ece", "ood/letters/auroc_precision", "alien/halts", "test/singleton_sets"]
    shares += ["ece_raw", "unk/abstained_knn", "ood/letters/abstained"]
    for name in (*shares, *metrics.OF_RANKING, *metrics.OF_RISK_CONTROL, *(set(metrics.OF_CONFORMAL) - {"set_size"})):
        assert is_share(name)
    for name in ("nll", "mean_depth", "perplexity", "brier", "noise_draws/mean_cost", "set_size"):
        assert not is_share(name)
    assert figure_interval("accuracy", [0.99, 1.0, 0.9]).high < 1
    assert figure_interval("nll", [0.99, 1.0, 0.9]).high > 1
    beyond = [0.5, 1.5, 3.0]  # a domain of one's own may mean something else by a name
    assert figure_interval("error", beyond) == seed_interval(beyond)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5])
def test_the_same_share_in_every_seed_has_an_interval_of_no_width(value: float) -> None:
    interval = share_interval([value] * 4)
    assert (interval.low, interval.estimate, interval.high) == (value, value, value)
