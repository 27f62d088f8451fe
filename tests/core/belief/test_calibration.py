"""Calibration: what it may change (how sure a belief is) and what it must not (everything else)."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.belief.calibration import (
    CONCENTRATION_FLOOR,
    TEMPERATURE_BOUNDS,
    DepthCalibration,
    calibrated,
    fit_temperature,
)
from nbsr_core.errors import InputError

temperatures = st.floats(*TEMPERATURE_BOUNDS)
concentrations = st.one_of(
    st.floats(2**-10, 2**20, width=32),
    st.sampled_from([1.0, 1.0 + 2**-23, 1.0 - 2**-24, 8.0, 8.0 + 2**-20, 1e6]),  # equal, and equal but for rounding
)


@st.composite
def batches(draw: st.DrawFn) -> Tensor:
    classes = draw(st.integers(2, 6))
    row = st.lists(concentrations, min_size=classes, max_size=classes)
    return torch.tensor(draw(st.lists(row, min_size=1, max_size=8)), dtype=torch.float32)


def honest(samples: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Probabilities and labels drawn from exactly these."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.softmax(2.5 * torch.randn(samples, classes, generator=generator), dim=1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(1)


def distorted(probs: Tensor, temperature: float, precision: float = 30.0) -> Tensor:
    """A belief that `temperature` turns back into `probs`."""
    power = probs.double() ** temperature
    return (precision * power / power.sum(-1, keepdim=True)).to(probs.dtype)


def mean(alpha: Tensor) -> Tensor:
    return alpha / alpha.sum(-1, keepdim=True)


# --- one belief ---


@given(batches(), temperatures)
def test_keeps_precision_and_the_largest_class(alpha: Tensor, temperature: float) -> None:
    result = calibrated(alpha, temperature)
    torch.testing.assert_close(result.sum(-1), alpha.sum(-1), rtol=1e-5, atol=0)
    assert (result > 0).all()
    largest = alpha == alpha.amax(-1, keepdim=True)
    still_largest = result == result.amax(-1, keepdim=True)
    assert (still_largest | ~largest).all()  # none of the largest is overtaken, by rounding neither
    clearly_smaller = alpha < alpha.amax(-1, keepdim=True) * (1 - 1e-4)
    assert not (still_largest & clearly_smaller).any()


@given(batches(), temperatures)
def test_is_the_renormalised_power(alpha: Tensor, temperature: float) -> None:
    row, result = alpha[0], calibrated(alpha, temperature)[0]
    powers = [mpmath.mpf(a) ** (1 / mpmath.mpf(temperature)) for a in row.tolist()]
    for got, power in zip(result.tolist(), powers, strict=True):
        wanted = sum(row.tolist()) * power / sum(powers)
        # a log rounded in float32 is off by 1e-7 or so of itself, and the power multiplies that
        scale = 1 + abs(mpmath.log(max(wanted, CONCENTRATION_FLOOR) / sum(row.tolist())))
        assert got == pytest.approx(float(max(wanted, CONCENTRATION_FLOOR)), rel=float(2e-6 * scale))


@given(batches())
def test_temperature_one_changes_nothing(alpha: Tensor) -> None:
    torch.testing.assert_close(calibrated(alpha, 1.0), alpha, rtol=1e-5, atol=0)


@given(st.integers(2, 2000), st.floats(0.01, 1e6), temperatures)
def test_a_uniform_belief_stays_uniform(classes: int, each: float, temperature: float) -> None:
    result = calibrated(torch.full((classes,), each), temperature)
    assert (result == result[0]).all()
    torch.testing.assert_close(result, torch.full((classes,), each), rtol=1e-4, atol=0)


@pytest.mark.parametrize("temperature", [0.05, 0.3, 1.0, 20.0])
def test_extreme_beliefs_stay_finite_and_positive_with_finite_gradients(temperature: float) -> None:
    alpha = torch.tensor([[1e8, 1.0, 1.0], [1.0, 1e-8, 1.0], [1e30, 1e-18, 1e-30]], requires_grad=True)
    result = calibrated(alpha, temperature)
    assert (result >= torch.tensor(CONCENTRATION_FLOOR)).all()
    assert result.isfinite().all()
    assert torch.polygamma(1, result.detach()).isfinite().all()
    result.log().sum().backward()
    assert alpha.grad is not None
    assert alpha.grad.isfinite().all()


def test_gradients_of_belief_and_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    alpha = (torch.rand(3, 2, 4, generator=generator, dtype=torch.float64) + 0.2).requires_grad_()
    temperature = torch.tensor([[0.4], [1.0], [2.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(calibrated, (alpha, temperature))
    assert torch.autograd.gradcheck(calibrated, (alpha, temperature[0, 0]))


def test_temperatures_broadcast_over_the_batch() -> None:
    alpha = torch.rand(2, 3, 4) + 0.1
    each = torch.tensor([[0.3, 1.0, 2.0], [4.0, 0.5, 1.5]])
    one_by_one = torch.stack([
        torch.stack([calibrated(row, t) for row, t in zip(rows, ts.tolist(), strict=True)])
        for rows, ts in zip(alpha, each, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(calibrated(alpha, each), one_by_one)
    torch.testing.assert_close(calibrated(alpha, each[:, :1])[1], calibrated(alpha[1], 4.0))
    torch.testing.assert_close(calibrated(alpha, torch.tensor(2.0)), calibrated(alpha, 2.0))


def test_an_empty_batch_stays_empty() -> None:
    assert calibrated(torch.ones(0, 4), 0.5).shape == (0, 4)


# --- fitting ---


@pytest.mark.parametrize("temperature", [0.25, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("classes", [2, 41])
def test_recovers_the_temperature_that_made_the_labels(temperature: float, classes: int) -> None:
    probs, labels = honest(20_000, classes, seed=classes)
    belief = distorted(probs.double(), temperature)
    assert fit_temperature(belief, labels) == pytest.approx(temperature, rel=0.04)
    assert fit_temperature(mean(belief), labels) == pytest.approx(fit_temperature(belief, labels))


def test_finds_the_minimum_that_a_general_search_finds() -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        alpha = 1 + 5 * torch.rand(200, 6, generator=generator, dtype=torch.float64) ** 4
        labels = torch.where(
            torch.rand(200, generator=generator) < 0.7,
            alpha.argmax(1),
            torch.randint(6, (200,), generator=generator),
        )

        others = mean(alpha).scatter(1, labels[:, None], 0.0).argmax(1)

        def loss(log_t: float, alpha: Tensor = alpha, labels: Tensor = labels, others: Tensor = others) -> float:
            said = mean(mean(alpha) ** math.exp(-log_t))
            return 201 / 202 * metrics.nll(said, labels) + 1 / 202 * metrics.nll(said, others)

        reference = minimize_scalar(loss, bounds=tuple(np.log(TEMPERATURE_BOUNDS)), options={"xatol": 1e-8})
        assert fit_temperature(alpha, labels) == pytest.approx(math.exp(reference.x), rel=1e-4)


def test_validation_without_skill_stops_at_the_bound() -> None:
    alpha = torch.tensor([[2.0, 1.0], [1.0, 3.0], [5.0, 1.0]])
    assert fit_temperature(alpha, 1 - alpha.argmax(1)) == TEMPERATURE_BOUNDS[1]


@pytest.mark.parametrize("samples", [10, 100, 3000])
@pytest.mark.parametrize("certainty", [0.6, 0.99, 1 - 1e-9])
def test_validation_without_errors_leaves_room_for_the_next_one(samples: int, certainty: float) -> None:
    """By the rule of succession: of N + 2 answers one may be wrong, whatever the model said of itself."""
    probs = torch.tensor([[certainty, 0.75 * (1 - certainty), 0.25 * (1 - certainty)]], dtype=torch.float64)
    temperature = fit_temperature(probs.expand(samples, 3), torch.zeros(samples).long())
    assert TEMPERATURE_BOUNDS[0] < temperature < TEMPERATURE_BOUNDS[1]
    after = calibrated(probs, temperature)[0]
    assert after[1] / (after[0] + after[1]) == pytest.approx(1 / (samples + 2), rel=0.6)


def test_doubts_stay_apart_where_validation_has_no_error() -> None:
    """Otherwise no detector could tell a surer answer from a less sure one."""
    surer = torch.linspace(3.0, 12.0, 500, dtype=torch.float64)
    probs = torch.stack([torch.zeros_like(surer), -surer], 1).softmax(1)
    after = calibrated(probs, fit_temperature(probs, torch.zeros(500).long()))
    assert len(after[:, 1].unique()) == 500


def test_nothing_to_learn_means_temperature_one() -> None:
    assert fit_temperature(torch.ones(5, 3), torch.tensor([0, 1, 2, 0, 0])) == 1.0


def test_impossible_labels_still_give_a_finite_fit() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.6, 0.4]])
    low, high = TEMPERATURE_BOUNDS
    assert low <= fit_temperature(probs, torch.tensor([1, 1, 0, 0])) <= high


def test_weak_evidence_against_many_prior_counts_becomes_honest() -> None:
    """Softplus-like evidence against 41 pseudo-counts: the under-confidence that calibration is for."""

    def softplus_beliefs(seed: int) -> tuple[Tensor, Tensor]:
        probs, labels = honest(8000, 41, seed)
        return 1 + torch.nn.functional.softplus(3 * (probs.log() + 4)), labels

    belief, labels = softplus_beliefs(seed=1)
    temperature = fit_temperature(belief, labels)
    held_out, truth = softplus_beliefs(seed=2)
    before, after = mean(held_out), mean(calibrated(held_out, temperature))
    assert metrics.ece(before, truth) > 0.2
    assert metrics.ece(after, truth) < 0.25 * metrics.ece(before, truth)
    assert metrics.nll(after, truth) < metrics.nll(before, truth)
    assert metrics.accuracy(after, truth) == metrics.accuracy(before, truth)


def test_power_distortion_is_undone_to_sampling_noise() -> None:
    probs, labels = honest(40_000, 10, seed=4)
    belief = distorted(probs, 0.35)
    temperature = fit_temperature(belief[:20_000], labels[:20_000])
    before, after = (
        metrics.ece(mean(b), labels[20_000:]) for b in (belief[20_000:], calibrated(belief[20_000:], temperature))
    )
    assert before > 0.15
    assert after < 0.015


# --- every depth of a walk ---


def walks(samples: int, seed: int, depth_temperatures: tuple[float, ...] = (0.3, 0.6, 2.0)) -> tuple[Tensor, Tensor]:
    probs, labels = honest(samples, 5, seed)
    after_prior = [distorted(probs, t, 10.0 * (i + 1)) for i, t in enumerate(depth_temperatures)]
    return torch.stack([torch.ones_like(probs), *after_prior]), labels


def test_each_depth_gets_its_own_temperature() -> None:
    alpha, labels = walks(20_000, seed=0)
    calibration = DepthCalibration(3).fit(alpha, labels)
    assert calibration.temperature.tolist() == pytest.approx([0.3, 0.6, 2.0], rel=0.05)
    assert [fit_temperature(belief, labels) for belief in alpha[1:]] == pytest.approx(calibration.temperature.tolist())
    result = calibration.all_depths(alpha)
    assert torch.equal(result[0], alpha[0])
    for depth in range(4):
        torch.testing.assert_close(result[depth], calibration(alpha[depth], depth))
    for depth in (1, 2, 3):
        assert metrics.ece(mean(result[depth]), labels) < 0.015
    torch.testing.assert_close(result.sum(-1), alpha.sum(-1))


def test_an_unfitted_or_reset_calibration_returns_the_very_same_beliefs() -> None:
    alpha, labels = walks(50, seed=1)
    calibration = DepthCalibration(3)
    for _ in range(2):
        assert not calibration.fitted
        assert calibration.temperature.tolist() == [1.0, 1.0, 1.0]
        assert calibration.all_depths(alpha) is alpha
        assert calibration(alpha[2], 2) is alpha[2] or torch.equal(calibration(alpha[2], 2), alpha[2])
        assert not torch.equal(calibration.fit(alpha, labels)(alpha[2], 2), alpha[2])
        calibration.reset()


def test_the_prior_is_never_calibrated() -> None:
    alpha, labels = walks(50, seed=1)
    prior = torch.rand(50, 5) + 0.5
    alpha[0] = prior
    calibration = DepthCalibration(3).fit(alpha, labels)
    assert torch.equal(calibration(prior, 0), prior)
    assert torch.equal(calibration.all_depths(alpha)[0], prior)


def test_only_walks_that_get_there_count() -> None:
    alpha, labels = walks(400, seed=2)
    reached = torch.ones(3, 400, dtype=torch.bool)
    reached[1, 300:] = False
    reached[2, 200:] = False
    alpha[2, 300:] = torch.tensor([1e3, 1.0, 1.0, 1.0, 1.0])  # would spoil the fit, if it counted
    calibration = DepthCalibration(3).fit(alpha, labels, reached)
    expected = [fit_temperature(alpha[t, :n], labels[:n]) for t, n in ((1, 400), (2, 300), (3, 200))]
    assert calibration.temperature.tolist() == pytest.approx(expected)
    reached[2] = False
    assert calibration.fit(alpha, labels, reached).temperature[2] == 1.0


def test_a_walk_that_ended_keeps_its_last_calibrated_belief() -> None:
    alpha, labels = walks(30, seed=3)
    calibration = DepthCalibration(3).fit(alpha, labels)
    reached = torch.tensor([[True, True, False], [True, False, False], [True, False, False]])
    alpha = alpha[:, :3].clone()
    alpha[2:, 1] = alpha[1, 1]  # ends at depth 1
    alpha[1:, 2] = alpha[0, 2] = torch.tensor([2.3, 1.7, 0.9, 1.1, 0.3])  # never leaves an informed prior
    result = calibration.all_depths(alpha, reached)
    for depth in (1, 2, 3):
        torch.testing.assert_close(result[depth, 0], calibration(alpha[depth, 0], depth))
        torch.testing.assert_close(result[depth, 1], calibration(alpha[1, 1], 1))
        assert torch.equal(result[depth, 2], alpha[0, 2])


def test_survives_saving_and_loading() -> None:
    alpha, labels = walks(200, seed=4)
    fitted = DepthCalibration(3).fit(alpha, labels)
    file = io.BytesIO()
    torch.save(fitted.state_dict(), file)
    file.seek(0)
    loaded = DepthCalibration(3)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert loaded.fitted
    assert torch.equal(loaded.all_depths(alpha), fitted.all_depths(alpha))
    fitted.load_state_dict(DepthCalibration(3).state_dict())
    assert not fitted.fitted
    assert not list(fitted.parameters())  # no optimiser may move a temperature


def test_beliefs_pass_gradients_through_a_fitted_calibration() -> None:
    alpha, labels = walks(20, seed=5)
    calibration = DepthCalibration(3).fit(alpha.requires_grad_(), labels)
    mean(calibration.all_depths(alpha))[3, :, 0].sum().backward()
    assert alpha.grad is not None
    assert alpha.grad[3].abs().sum() > 0
    assert alpha.grad[:3].abs().sum() == 0


# --- bad input ---


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrated(torch.tensor([1.0, 0.0]), 1.0), "alpha runs from 0 to 1; finite and above 0"),
        (lambda: calibrated(torch.tensor([1.0, -2.0]), 1.0), "alpha runs from -2 to 1"),
        (lambda: calibrated(torch.tensor([1.0, math.nan]), 1.0), "alpha runs from nan"),
        (lambda: calibrated(torch.tensor([1.0, math.inf]), 1.0), "alpha runs from 1 to inf"),
        (lambda: calibrated(torch.ones(2), 0.0), "temperature is 0.0; finite and above 0 expected"),
        (lambda: calibrated(torch.ones(2), math.nan), "temperature is nan"),
        (lambda: calibrated(torch.ones(1, 2), torch.tensor([-1.0])), r"temperature is \[-1.0\]"),
        (
            lambda: fit_temperature(torch.ones(3), torch.zeros(3).long()),
            r"shape \(3,\); expected floats \[N, K\]",
        ),
        (lambda: fit_temperature(torch.ones(3, 2), torch.zeros(2).long()), r"\(2,\); expected \(3,\)"),
        (lambda: fit_temperature(torch.ones(1, 2), torch.tensor([2])), "from 2 to 2; expected within 0 .. 1"),
        (lambda: fit_temperature(torch.ones(0, 2), torch.zeros(0).long()), "at least one"),
        (lambda: fit_temperature(-torch.ones(1, 2), torch.tensor([0])), "belief runs from -1 to -1"),
        (lambda: fit_temperature(torch.zeros(1, 2), torch.tensor([0])), "no row of zeros expected"),
        (lambda: fit_temperature(torch.tensor([[1, math.nan]]), torch.tensor([0])), "belief runs from nan"),
        (
            lambda: fit_temperature(torch.tensor([[1, math.inf]]), torch.tensor([0])),
            "belief runs from 1 to inf",
        ),
        (lambda: DepthCalibration(0), "depth is 0; at least 1"),
        (lambda: DepthCalibration(2)(torch.ones(4, 3), 3), "depth is 3; expected 0 .. 2"),
        (lambda: DepthCalibration(2)(torch.ones(4, 3), -1), "depth is -1; expected 0 .. 2"),
        (lambda: DepthCalibration(2).fit(*walks(5, 0)), r"\(4, 5, 5\); expected \[3, N, K\]: the prior"),
        (lambda: DepthCalibration(4).all_depths(walks(5, 0)[0]), r"\(4, 5, 5\); expected \[5, N, K\]"),
        (lambda: DepthCalibration(3).fit(*walks(5, 0), torch.ones(3, 4).bool()), r"\(3, 4\); .*\(3, 5\)"),
        (lambda: DepthCalibration(3).fit(*walks(5, 0), torch.ones(3, 5)), "float32 .* expected torch.bool"),
        (lambda: DepthCalibration(3).fit(*walks(5, 0), torch.eye(3, 5).bool()), "a walk that skips a depth"),
        (lambda: DepthCalibration(3).fit(walks(5, 0)[0], torch.full((5,), 5)), "labels run from 5 to 5"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
