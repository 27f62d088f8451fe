"""The belief against references that share no code with it: mpmath, scipy and torch.distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nbsr_core.belief import dirichlet
from nbsr_core.errors import InputError

mpmath.mp.dps = 40
CLASS_COUNTS = (2, 3, 10, 41, 65, 1000, 10_000)

# ---------------------------------------------------------------------------------------------- references


def exact(values: Tensor) -> list[mpmath.mpf]:
    return [mpmath.mpf(value) for value in values.tolist()]


class Distinct:
    """The distinct entries, or rows, of a tensor and how often each occurs: mpmath is slow."""

    def __init__(self, values: Tensor) -> None:
        distinct, self.places, counts = values.unique(dim=0, return_inverse=True, return_counts=True)
        self.values = [[mpmath.mpf(x) for x in row] for row in distinct.reshape(len(distinct), -1).tolist()]
        self.counts = counts.tolist()

    def sum(self, term: Callable[..., mpmath.mpf]) -> mpmath.mpf:
        return mpmath.fsum(n * term(*row) for n, row in zip(self.counts, self.values, strict=True))

    def map(self, term: Callable[..., mpmath.mpf]) -> np.ndarray:
        values: np.ndarray = np.array([float(term(*row)) for row in self.values])[self.places.numpy()]
        return values


def exact_entropy(alpha: Tensor) -> mpmath.mpf:
    a, K = Distinct(alpha), len(alpha)
    a0 = a.sum(lambda x: x)
    of_classes = a.sum(lambda x: mpmath.loggamma(x) - (x - 1) * mpmath.psi(0, x))
    return of_classes - mpmath.loggamma(a0) + (a0 - K) * mpmath.psi(0, a0)


def exact_entropy_slopes(alpha: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """∂H/∂alpha, and the size of the two terms g' whose difference it is: rounding is relative to these."""
    a, K = Distinct(alpha), len(alpha)
    a0 = a.sum(lambda x: x)
    of_total = (a0 - K) * mpmath.psi(1, a0)
    slopes = a.map(lambda x: of_total - (x - 1) * mpmath.psi(1, x))
    size = a.map(lambda x: abs(1 - (x - 1) * mpmath.psi(1, x)) + abs(1 - of_total))
    return slopes, size


def exact_divergence(alpha: Tensor, beta: Tensor) -> mpmath.mpf:
    pairs = Distinct(torch.stack([alpha, beta], dim=1))
    a0, b0 = pairs.sum(lambda x, y: x), pairs.sum(lambda x, y: y)
    ln_gammas = pairs.sum(lambda x, y: mpmath.loggamma(y) - mpmath.loggamma(x))
    expected = pairs.sum(lambda x, y: (x - y) * mpmath.psi(0, x)) - (a0 - b0) * mpmath.psi(0, a0)
    return ln_gammas + mpmath.loggamma(a0) - mpmath.loggamma(b0) + expected


def exact_divergence_slopes(alpha: Tensor, beta: Tensor) -> tuple[np.ndarray, np.ndarray]:
    pairs = Distinct(torch.stack([alpha, beta], dim=1))
    a0, b0 = pairs.sum(lambda x, y: x), pairs.sum(lambda x, y: y)
    slope, rise = (a0 - b0) * mpmath.psi(1, a0), mpmath.psi(0, b0) - mpmath.psi(0, a0)
    of_alpha = pairs.map(lambda x, y: (x - y) * mpmath.psi(1, x) - slope)
    return of_alpha, pairs.map(lambda x, y: mpmath.psi(0, y) - mpmath.psi(0, x) - rise)


# ------------------------------------------------------------------------------------------- kinds of belief


def some_of(K: int, low: float, high: float) -> Tensor:
    """K values from at most 40 distinct ones, evenly spread on a logarithmic scale."""
    distinct = torch.logspace(math.log10(low), math.log10(high), 40)
    return distinct[torch.randint(0, 40, (K,))]


def beside(top: float, rest: Tensor) -> Tensor:
    return torch.cat([rest[1:], torch.tensor([top])])


BELIEFS: dict[str, Callable[[int], Tensor]] = {
    "uniform": torch.ones,
    "alike": lambda K: torch.full((K,), 1.7),
    "tiny": lambda K: torch.full((K,), 1e-3),
    "weak": lambda K: some_of(K, 1e-3, 1.0),
    "usual": lambda K: some_of(K, 1.0, 30.0),
    "wild": lambda K: some_of(K, 1e-3, 1e5),
    "certain": lambda K: some_of(K, 0.1e8 / K, 1e8 / K),
    "one huge": lambda K: beside(1e8, some_of(K, 1.0, 2.0)),
    "one huge, rest tiny": lambda K: beside(1e8, some_of(K, 1e-3, 1e-2)),
}

kinds = pytest.mark.parametrize("kind", BELIEFS)
class_counts = pytest.mark.parametrize("K", CLASS_COUNTS)
concentrations = st.floats(-3.0, 8.0).map(lambda exponent: 10.0**exponent)


@st.composite
def beliefs(draw: st.DrawFn, count: int = 1) -> tuple[Tensor, ...]:
    """`count` float32 beliefs over the same 2 to 8 classes, concentrations from 1e-3 to 1e8."""
    K = draw(st.integers(2, 8))
    return tuple(torch.tensor(draw(st.lists(concentrations, min_size=K, max_size=K))) for _ in range(count))


# --------------------------------------------------------------------------------------------------- entropy


def check_entropy_and_gradient(alpha: Tensor) -> None:
    """The same float32 values in both dtypes, hence with one reference."""
    expected = float(exact_entropy(alpha))
    slopes, size = exact_entropy_slopes(alpha)
    for dtype, error, error_of_slope in ((torch.float32, 1e-6, 1e-6), (torch.float64, 1e-12, 1e-11)):
        leaf = alpha.to(dtype).detach().requires_grad_()
        entropy = dirichlet.entropy(leaf)
        entropy.backward()
        assert entropy.dtype == dtype
        assert entropy.item() == pytest.approx(expected, rel=error, abs=error)
        assert leaf.grad is not None
        assert np.all(np.abs(leaf.grad.double().numpy() - slopes) <= error_of_slope * size)


@class_counts
@kinds
def test_entropy_and_gradient_are_right_for_every_kind_of_belief(kind: str, K: int) -> None:
    check_entropy_and_gradient(BELIEFS[kind](K))


@given(beliefs())
def test_entropy_and_gradient_are_right_for_any_belief(drawn: tuple[Tensor]) -> None:
    check_entropy_and_gradient(drawn[0])


def test_entropy_agrees_with_scipy_on_moderate_beliefs() -> None:
    alpha = torch.rand(20, 10, dtype=torch.float64) * 30 + 0.05
    expected = [scipy.stats.dirichlet.entropy(row) for row in alpha.numpy()]
    np.testing.assert_allclose(dirichlet.entropy(alpha).numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("K", [*CLASS_COUNTS, 4])
def test_prior_entropy_is_minus_log_factorial_and_the_maximum(K: int) -> None:
    uniform = dirichlet.prior(K)
    highest = float(dirichlet.entropy(uniform))
    assert highest == pytest.approx(-math.lgamma(K), rel=1e-6, abs=1e-6)
    others = torch.stack([uniform + torch.rand(K) - 0.5 for _ in range(5)])
    assert bool((dirichlet.entropy(others) < highest).all())


def exit_batch() -> Tensor:
    """Beliefs as an early exit meets them: evidence of all sizes on a prior of ones."""
    return 1 + torch.exp(3 * torch.randn(4096, 41))


def test_batch_of_an_early_exit_equals_float64_reference() -> None:
    alpha = exit_batch().requires_grad_()
    entropy = dirichlet.entropy(alpha, validate_args=False)
    weight = torch.randn(4096)
    (entropy * weight).sum().backward()

    a = alpha.detach().double().numpy()
    a0 = a.sum(-1, keepdims=True)
    ln_beta = scipy.special.gammaln(a).sum(-1) - scipy.special.gammaln(a0[:, 0])
    expected = ln_beta + ((a0 - 41) * scipy.special.psi(a0))[:, 0] - ((a - 1) * scipy.special.psi(a)).sum(-1)
    of_total = (a0 - 41) * scipy.special.polygamma(1, a0)
    slopes = (of_total - (a - 1) * scipy.special.polygamma(1, a)) * weight.numpy()[:, None]
    np.testing.assert_allclose(entropy.detach().numpy(), expected, rtol=1e-6)
    assert alpha.grad is not None
    np.testing.assert_allclose(alpha.grad.numpy(), slopes, rtol=1e-5, atol=1e-6)


def test_entropy_is_independent_of_layout_and_of_inference_mode() -> None:
    alpha = exit_batch()[:300]
    expected = dirichlet.entropy(alpha)
    with torch.inference_mode():
        assert torch.equal(dirichlet.entropy(alpha), expected)
    layouts = {
        "transposed": alpha.t().contiguous().t(),
        "strided": torch.stack([alpha, torch.full_like(alpha, torch.nan)], dim=-1)[..., 0],
        "columns of a wider tensor": torch.cat([alpha, alpha], dim=-1)[:, 41:],
    }
    for name, layout in layouts.items():
        assert not layout.is_contiguous(), name
        torch.testing.assert_close(dirichlet.entropy(layout), expected, rtol=1e-6, atol=0.0)
        leaf = layout.detach().requires_grad_()
        straight = alpha.clone().requires_grad_()
        dirichlet.entropy(leaf).sum().backward()
        dirichlet.entropy(straight).sum().backward()
        torch.testing.assert_close(leaf.grad, straight.grad, rtol=1e-6, atol=1e-7)


def test_gradients_work_after_a_first_use_in_inference_mode() -> None:
    """What is kept between calls must not stay bound to the mode of the first, for a K seen only here."""
    alpha, beta = torch.full((23,), 2.0, requires_grad=True), torch.ones(23)
    with torch.inference_mode():
        dirichlet.entropy(beta)
        dirichlet.kl_divergence(beta, beta)
    (dirichlet.entropy(alpha) + dirichlet.kl_divergence(alpha, beta)).backward()
    assert alpha.grad is not None
    assert bool(alpha.grad.isfinite().all())


def test_entropy_works_on_any_leading_axes() -> None:
    alpha = exit_batch()[:12]
    flat = dirichlet.entropy(alpha)
    torch.testing.assert_close(dirichlet.entropy(alpha.reshape(2, 3, 2, 41)), flat.reshape(2, 3, 2))
    torch.testing.assert_close(dirichlet.entropy(alpha[5]), flat[5])
    assert dirichlet.entropy(alpha[:0]).shape == (0,)
    prior = dirichlet.prior(41).expand(6, 41)
    torch.testing.assert_close(dirichlet.entropy(prior), torch.full((6,), -math.lgamma(41)))


def test_gradients_pass_gradcheck_in_float64() -> None:
    alpha = torch.tensor([[0.01, 0.3, 2.0], [1.0, 40.0, 7.0]], dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([2.0, 0.5, 30.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(dirichlet.entropy, alpha)
    assert torch.autograd.gradcheck(dirichlet.kl_divergence, (alpha, beta))
    assert torch.autograd.gradcheck(dirichlet.information_gain, (alpha, beta))
    for function in (dirichlet.mean, dirichlet.variance, dirichlet.covariance, dirichlet.categorical_entropy):
        assert torch.autograd.gradcheck(function, alpha)


def test_second_derivative_is_refused_rather_than_wrong() -> None:
    """Also where the incoming gradient is constant and the rest of the graph differentiable."""
    log_alpha = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    for measure in (dirichlet.entropy, lambda alpha: dirichlet.kl_divergence(alpha, torch.ones(3))):
        (slope,) = torch.autograd.grad(measure(log_alpha.exp()), log_alpha, create_graph=True)
        with pytest.raises(NotImplementedError, match="differentiated only once"):
            slope.sum().backward()


def test_information_gain_of_a_small_step_is_right_and_may_be_negative() -> None:
    before = torch.full((41,), 3.0)
    after = before.clone()
    after[7] += 0.001
    expected = float(exact_entropy(before) - exact_entropy(after))
    assert float(dirichlet.information_gain(before, after)) == pytest.approx(expected, rel=1e-6)

    surprised = dirichlet.information_gain(torch.tensor([5.0, 1.0]), torch.tensor([[5.0, 5.0], [9.0, 1.0]]))
    assert float(surprised[0]) < 0 < float(surprised[1])


# ------------------------------------------------------------------------------------------------ divergence


def neighbours(alpha: Tensor) -> dict[str, Tensor]:
    up = torch.tensor(math.inf)
    one_step = alpha.clone()
    one_step[0] = torch.nextafter(alpha[0], up)
    return {
        "next float": torch.nextafter(alpha, up),
        "next float of one class": one_step,
        "scaled a little": alpha * 1.0001,
        "scaled": alpha * 1.3,
        "one class doubled": torch.cat([alpha[:1] * 2, alpha[1:]]),
        "prior": torch.ones_like(alpha),
        "inverted": 0.5 + 1 / alpha,
    }


@pytest.mark.parametrize("K", [2, 3, 41, 2000])
@kinds
def test_divergence_is_right_for_near_and_far_beliefs(kind: str, K: int) -> None:
    alpha = BELIEFS[kind](K)
    for name, beta in neighbours(alpha).items():
        expected = float(exact_divergence(alpha, beta))
        assert float(dirichlet.kl_divergence(alpha, beta)) == pytest.approx(expected, rel=1e-5, abs=1e-30), name
        expected = float(exact_divergence(beta, alpha))
        assert float(dirichlet.kl_divergence(beta, alpha)) == pytest.approx(expected, rel=1e-5, abs=1e-30), name


@pytest.mark.parametrize("K", [2, 10])
@kinds
def test_divergence_gradients_are_right_for_near_and_far_beliefs(kind: str, K: int) -> None:
    for name, beta in neighbours(BELIEFS[kind](K)).items():
        alpha, beta = BELIEFS[kind](K).requires_grad_(), beta.detach().requires_grad_()
        if torch.equal(alpha, beta):
            continue
        dirichlet.kl_divergence(alpha, beta).backward()
        for leaf, slopes in zip((alpha, beta), exact_divergence_slopes(alpha.detach(), beta.detach()), strict=True):
            assert leaf.grad is not None
            error = np.abs(leaf.grad.double().numpy() - slopes).max()
            assert error <= 1e-6 * np.abs(slopes).max(), name


@given(beliefs(count=2))
def test_divergence_is_right_and_not_negative_for_any_pair(pair: tuple[Tensor, Tensor]) -> None:
    alpha, beta = pair
    divergence = float(dirichlet.kl_divergence(alpha, beta))
    assert divergence >= 0
    assert divergence == pytest.approx(float(exact_divergence(alpha, beta)), rel=1e-5, abs=1e-30)
    assert float(dirichlet.kl_divergence(alpha, alpha)) == 0


def test_divergence_is_not_negative_even_where_rounding_wins() -> None:
    alpha = torch.rand(500, 3, dtype=torch.float64) * 1e16
    assert bool((dirichlet.kl_divergence(alpha, alpha * 1.5) >= 0).all())


def test_divergence_agrees_with_torch_on_moderate_beliefs_and_broadcasts() -> None:
    alpha = torch.rand(3, 5, 10, dtype=torch.float64) * 30 + 0.05
    beta = torch.rand(10, dtype=torch.float64) * 3 + 0.05
    expected = torch.distributions.kl_divergence(
        torch.distributions.Dirichlet(alpha), torch.distributions.Dirichlet(beta.expand_as(alpha))
    )
    torch.testing.assert_close(dirichlet.kl_divergence(alpha, beta), expected, rtol=1e-10, atol=0.0)
    narrow = dirichlet.kl_divergence(alpha.float(), beta.float())
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), expected, rtol=1e-5, atol=0.0)


# --------------------------------------------------------------------------------------------------- moments


@given(beliefs())
def test_moments_are_right_for_any_belief(drawn: tuple[Tensor]) -> None:
    (alpha,) = drawn
    a = exact(alpha)
    a0 = mpmath.fsum(a)
    scale = a0**2 * (a0 + 1)
    assert float(dirichlet.precision(alpha)) == pytest.approx(float(a0), rel=1e-6)
    np.testing.assert_allclose(dirichlet.mean(alpha).numpy(), [float(x / a0) for x in a], rtol=1e-6)
    np.testing.assert_allclose(dirichlet.variance(alpha).numpy(), [float(x * (a0 - x) / scale) for x in a], rtol=1e-6)
    expected = [[float(((x * a0 if i == j else 0) - x * y) / scale) for j, y in enumerate(a)] for i, x in enumerate(a)]
    np.testing.assert_allclose(dirichlet.covariance(alpha).numpy(), expected, rtol=1e-6)


@given(beliefs())
def test_variance_is_bounded_by_precision_and_covariance_rows_sum_to_zero(drawn: tuple[Tensor]) -> None:
    alpha = drawn[0].double()
    variance, covariance = dirichlet.variance(alpha), dirichlet.covariance(alpha)
    bound = 1 / (4 * (alpha.sum() + 1))
    assert bool((variance <= bound * (1 + 1e-12)).all())
    assert bool((covariance.sum(-1).abs() <= 1e-7 * variance).all())
    torch.testing.assert_close(covariance, covariance.t(), rtol=1e-12, atol=0.0)


def test_moments_agree_with_torch_and_scipy() -> None:
    alpha = torch.rand(6, 10, dtype=torch.float64) * 30 + 0.05
    reference = torch.distributions.Dirichlet(alpha)
    torch.testing.assert_close(dirichlet.mean(alpha), reference.mean)
    torch.testing.assert_close(dirichlet.variance(alpha), reference.variance)
    covariance = dirichlet.covariance(alpha)
    torch.testing.assert_close(torch.diagonal(covariance, dim1=-2, dim2=-1), reference.variance)
    expected = np.stack([scipy.stats.dirichlet.cov(row) for row in alpha.numpy()])
    np.testing.assert_allclose(covariance.numpy(), expected, rtol=1e-10)


def test_variance_of_a_class_that_holds_nearly_everything() -> None:
    top, rest = exact(alpha := torch.tensor([1e8, 1.3e-3]))
    expected = float(top * rest / ((top + rest) ** 2 * (top + rest + 1)))
    assert dirichlet.variance(alpha).tolist() == pytest.approx([expected, expected], rel=1e-6, abs=0.0)


@pytest.mark.parametrize("top", [1.0, 1e4, 1e8])
def test_precision_of_ten_thousand_classes_is_the_nearest_float(top: float) -> None:
    alpha = beside(top, torch.rand(10_000) + 0.5)
    assert dirichlet.precision(alpha) == torch.tensor(math.fsum(alpha.tolist()))
    assert float(dirichlet.mean(alpha).double().sum()) == pytest.approx(1.0, abs=2e-7)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_marginal_interval_agrees_with_scipy_and_keeps_its_level(level: float) -> None:
    alpha = torch.rand(4, 5, dtype=torch.float64) * 30 + 0.05
    low, high = dirichlet.marginal_interval(alpha, level)
    a, b = alpha.numpy(), alpha.sum(-1, keepdim=True).numpy() - alpha.numpy()
    expected_low, expected_high = scipy.stats.beta.interval(level, a, b)
    np.testing.assert_allclose(low.numpy(), expected_low, rtol=1e-9)
    np.testing.assert_allclose(high.numpy(), expected_high, rtol=1e-9)
    inside = mpmath.betainc(a[0, 0], b[0, 0], low[0, 0].item(), high[0, 0].item(), regularized=True)
    assert float(inside) == pytest.approx(level, rel=1e-8)


def test_marginal_interval_of_a_certain_belief_from_float32() -> None:
    alpha = torch.tensor([1e8, 2.5], requires_grad=True)
    low, high = dirichlet.marginal_interval(alpha, 0.9)
    assert low.dtype == high.dtype == torch.float32
    assert not low.requires_grad
    expected = scipy.stats.beta.ppf([0.05, 0.95], 2.5, 1e8)
    np.testing.assert_allclose([float(low[1]), float(high[1])], expected, rtol=1e-6)
    low, high = dirichlet.marginal_interval(alpha.double(), 0.9)
    np.testing.assert_allclose([1 - float(high[0]), 1 - float(low[0])], expected, rtol=1e-6)


# ----------------------------------------------------------------------------------------------- uncertainty


@given(beliefs())
def test_categorical_entropy_and_gradient_are_right_for_any_belief(drawn: tuple[Tensor]) -> None:
    alpha = drawn[0].requires_grad_()
    entropy = dirichlet.categorical_entropy(alpha)
    entropy.backward()
    a = exact(alpha.detach())
    a0 = mpmath.fsum(a)
    expected = -mpmath.fsum(x / a0 * mpmath.log(x / a0) for x in a)
    slopes = np.array([float((-mpmath.log(x / a0) - expected) / a0) for x in a])
    assert entropy.item() == pytest.approx(float(expected), rel=1e-5, abs=0.0)
    assert alpha.grad is not None
    size = np.array([float((abs(mpmath.log(x / a0)) + expected) / a0) for x in a])
    assert np.all(np.abs(alpha.grad.double().numpy() - slopes) <= 1e-5 * size)


@given(beliefs(), st.floats(0.1, 10.0))
def test_vacuity_and_belief_masses_sum_to_one(drawn: tuple[Tensor], weight: float) -> None:
    evidence = drawn[0]
    K = len(evidence)
    base_rate = torch.arange(1, K + 1, dtype=torch.float64)
    prior = dirichlet.prior(K, weight, (base_rate / base_rate.sum()).tolist())
    alpha = evidence + prior
    masses = dirichlet.belief_masses(alpha, prior)
    assert bool((masses >= 0).all())
    assert float(masses.sum() + dirichlet.vacuity(alpha, weight)) == pytest.approx(1.0, abs=1e-5)

    alpha = evidence + 1
    total = dirichlet.belief_masses(alpha).sum() + dirichlet.vacuity(alpha)
    assert float(total) == pytest.approx(1.0, abs=1e-5)


def test_uniform_belief_is_all_vacuity_and_evidence_lowers_it() -> None:
    ones = torch.ones(2, 4)
    assert dirichlet.vacuity(ones).tolist() == [1.0, 1.0]
    assert not dirichlet.belief_masses(ones).any()
    assert float(dirichlet.vacuity(torch.tensor([7.0, 1.0, 1.0, 1.0]))) == pytest.approx(0.4)
    assert dirichlet.belief_masses(torch.tensor([7.0, 1.0, 0.5, 1.5])).tolist() == pytest.approx([0.6, 0, -0.05, 0.05])


def test_prior_is_weight_times_base_rate() -> None:
    assert dirichlet.prior(41).tolist() == [1.0] * 41
    assert dirichlet.prior(4, weight=2.0).tolist() == [0.5] * 4
    given_rates = dirichlet.prior(3, 6.0, [0.5, 0.25, 0.25], dtype=torch.float64)
    assert given_rates.dtype == torch.float64
    assert given_rates.tolist() == [3.0, 1.5, 1.5]
    assert dirichlet.prior(2, base_rate=torch.tensor([0.9, 0.1])).tolist() == pytest.approx([1.8, 0.2])


# ------------------------------------------------------------------------------------------------ bad inputs


UNARY: list[Callable[..., object]] = [
    dirichlet.precision,
    dirichlet.mean,
    dirichlet.variance,
    dirichlet.covariance,
    dirichlet.marginal_interval,
    dirichlet.entropy,
    dirichlet.categorical_entropy,
    dirichlet.vacuity,
    dirichlet.belief_masses,
    dirichlet.validate,
]
BAD_VALUES = [
    (
        torch.tensor([[1.0, 2.0], [math.nan, 1.0]]),
        r"alpha must be finite and above 0, but alpha\[1, 0\] is nan",
    ),
    (torch.tensor([1.0, math.inf]), r"finite and above 0, but alpha\[1\] is inf"),
    (torch.tensor([1.0, 0.0]), r"finite and above 0, but alpha\[1\] is 0"),
    (torch.tensor([-0.5, 1.0]), r"finite and above 0, but alpha\[0\] is -0.5"),
]
BAD_FORMS = [
    (torch.ones(3, dtype=torch.int64), r"alpha must be float32 or float64, got torch.int64"),
    (torch.ones(3, dtype=torch.bfloat16), r"alpha must be float32 or float64, got torch.bfloat16"),
    (torch.ones(5, 1), r"at least 2 classes on the last axis, got \[5, 1\]"),
    (torch.tensor(1.0), r"at least 2 classes on the last axis, got \[\]"),
]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("function", UNARY, ids=lambda function: function.__name__)
@pytest.mark.parametrize(("alpha", "message"), BAD_VALUES + BAD_FORMS)
def test_bad_beliefs_are_refused_by_name(function: Callable[..., object], alpha: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        function(alpha)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("function", [f for f in UNARY if f is not dirichlet.validate], ids=lambda f: f.__name__)
def test_without_validation_only_the_form_is_checked(function: Callable[..., object]) -> None:
    function(torch.tensor([1.0, math.nan]), validate_args=False)
    with pytest.raises(InputError, match="float32 or float64"):
        function(torch.ones(3, dtype=torch.int64), validate_args=False)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("function", "names"),
    [
        (dirichlet.kl_divergence, ("alpha", "beta")),
        (dirichlet.information_gain, ("before", "after")),
        (dirichlet.belief_masses, ("alpha", "prior")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bad_pairs_are_refused_by_name(function: Callable[..., object], names: tuple[str, str]) -> None:
    first, second = names
    with pytest.raises(InputError, match=rf"{first} and {second} must have the same number.*\[4, 3\] and \[5\]"):
        function(torch.ones(4, 3), torch.ones(5))
    with pytest.raises(InputError, match=rf"axes of {first} and {second} must broadcast.*\[4, 3\] and \[2, 3\]"):
        function(torch.ones(4, 3), torch.ones(2, 3))
    with pytest.raises(InputError, match=rf"{first}\[2\] is nan"):
        function(torch.tensor([1.0, 1.0, math.nan]), torch.ones(3))
    with pytest.raises(InputError, match=rf"{second}\[0\] is -1"):
        function(torch.ones(3), torch.tensor([-1.0, 1.0, 1.0]))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dirichlet.prior(1), "num_classes must be at least 2, got 1"),
        (lambda: dirichlet.prior(3, weight=0.0), "weight must be finite and above 0, got 0.0"),
        (lambda: dirichlet.prior(3, weight=math.nan), "weight must be finite and above 0, got nan"),
        (lambda: dirichlet.prior(3, base_rate=[0.5, 0.5]), r"base_rate must have shape \[3\].*got \[2\]"),
        (lambda: dirichlet.prior(2, base_rate=[1.0, 0.0]), "above 0 and sum to 1, got minimum 0 and sum 1"),
        (lambda: dirichlet.prior(2, base_rate=[0.5, 0.6]), "got minimum 0.5 and sum 1.1"),
        (lambda: dirichlet.prior(2, base_rate=[0.5, math.nan]), "got minimum nan and sum nan"),
        (lambda: dirichlet.vacuity(torch.ones(3), -2.0), "prior_weight must be finite and above 0, got -2.0"),
        (lambda: dirichlet.marginal_interval(torch.ones(3), 1.0), "level must lie between 0 and 1, got 1.0"),
    ],
)
def test_other_bad_arguments_are_refused_by_name(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
