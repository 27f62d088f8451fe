"""The screened exit test answers as the exact entropy does, for every row, wherever the threshold lies."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbsr_core.belief import dirichlet
from nbsr_core.belief.entropy_tests import below
from nbsr_core.kernels import entropy_bounds


@given(
    classes=st.sampled_from([2, 3, 10, 41, 1000]),
    spread=st.floats(0.0, 9.0),
    seed=st.integers(0, 10**6),
    quantile=st.floats(0.0, 1.0),
    shift=st.sampled_from([0.0, 1e-6, -1e-6, 0.1, -0.1, 3.0, -3.0]),
)
def test_every_row_is_answered_as_by_its_exact_entropy(
    classes: int, spread: float, seed: int, quantile: float, shift: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    alpha = (torch.randn(40, classes, generator=generator) * spread).exp()
    entropy = dirichlet.entropy(alpha)
    eta = float(entropy.sort().values[round(quantile * 39)]) + shift
    assert torch.equal(below(alpha, eta), entropy < eta)


@given(
    exponent=st.floats(0.0, 9.0),
    small=st.floats(-8.0, 0.0),
    classes=st.sampled_from([2, 41, 5000]),
    seed=st.integers(0, 10**6),
)
def test_estimates_are_no_farther_off_than_they_say(exponent: float, small: float, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(20, classes, generator=generator, dtype=torch.float64)
    alpha = 10 ** (small * spread)
    alpha = (10**exponent * alpha / alpha.sum(-1, keepdim=True) * 1.001).float()
    exact = dirichlet.entropy(alpha.double())
    off = (entropy_bounds.estimate(alpha).double() - exact).abs()
    for miss, entropy in zip(off.tolist(), exact.tolist(), strict=True):
        assert miss <= entropy_bounds.doubt(entropy, classes)


@pytest.mark.parametrize("alpha", [[1e-30, 1.0], [1e-3, 5.0], [1e30, 1.0], [1e9, 1e9], [3e38, 1.0]])
def test_beliefs_that_the_table_does_not_hold_are_computed(alpha: list[float]) -> None:
    belief = torch.tensor([alpha])
    entropy = dirichlet.entropy(belief, validate_args=False)
    just_above = torch.nextafter(entropy, torch.tensor(math.inf))
    for eta, answer in ((entropy, False), (just_above, True), (entropy - 1e31, False), (entropy + 1e31, True)):
        assert below(belief, float(eta)).tolist() == [answer]


def test_infinite_thresholds_ask_nobody_and_double_precision_is_exact() -> None:
    belief = torch.rand(5, 3) + 1
    assert below(belief, math.inf).all()
    assert not below(belief, -math.inf).any()
    eta = float(dirichlet.entropy(belief.double()).median())
    assert torch.equal(below(belief.double(), eta), dirichlet.entropy(belief.double()) < eta)
