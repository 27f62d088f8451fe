"""A walk in one call, and passes over a batch: compiled code says what torch says, to the bit where it must."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import torch
from models import FEATURES, GRAPHS, make_model
from reference import PADDED
from torch import Tensor

import nbsr_core as nbsr
from nbsr_core.belief import calibration
from nbsr_core.errors import InputError
from nbsr_core.kernels.choice import REFERENCE
from nbsr_core.kernels.native import build, rows
from nbsr_core.model.walk import WalkInput, level_by_level, whole_walk

ALL_GRAPHS = {**GRAPHS, "padded": PADDED}
SIGHTS = {
    "alpha": nbsr.RouterSpec(),
    "log": nbsr.RouterSpec(hidden=(18, 5), belief="log"),
    "mean": nbsr.RouterSpec(hidden=(), belief="mean", bias=False),
    "none": nbsr.RouterSpec(hidden=(6,), belief="none"),
}

pytestmark = pytest.mark.skipif(not build.availability()[0], reason=f"not compiled: {build.availability()[1]}")


def both_ways(
    model: nbsr.NBSR, h: Tensor, eta: float | None, side: Tensor | None = None, scale: Tensor | None = None
) -> nbsr.Prediction:
    """What the walk in one call says, once it is known that single steps say the same."""
    with torch.inference_mode():
        told = whole_walk(model, WalkInput(h, side, scale), eta, None)
        expected = level_by_level(model, WalkInput(h, side, scale), eta, None)
    assert told is not None
    assert torch.equal(told.node, expected.node)
    assert torch.equal(told.depth, expected.depth)
    assert torch.equal(told.alpha, expected.alpha)
    return told


@pytest.mark.parametrize("graph", ALL_GRAPHS)
@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("evidence", ["absolute", "relative"])
def test_a_walk_in_one_call_stops_where_single_steps_do(
    graph: str, sight: str, calibrated: bool, evidence: str
) -> None:
    torch.manual_seed(0)
    model = make_model(ALL_GRAPHS[graph], router=SIGHTS[sight], side_dim=3, evidence=evidence).eval()
    if calibrated:
        model.calibration.temperature.copy_(torch.linspace(0.5, 1.7, model.calibration.depth))
        model.calibration.fitted.fill_(True)
    x, side, scale = torch.randn(700, FEATURES), torch.randn(700, 3), torch.rand(700).clamp_min(1e-3)
    with torch.no_grad():
        h = model.oracle(x)
        trace = model(x, side=side, closeness=scale)
    entropy = trace.entropy[1].sort().values
    both_ways(model, h, None, side, scale)
    both_ways(model, h[:1], float(entropy[300]), side[:1], None)
    for eta in (
        *entropy[[5, 350, 690]].tolist(),
        float(entropy[0]) - 1.0,
        float(entropy[-1]) + 1.0,
    ):  # rows at eta, too
        told, expected = both_ways(model, h, eta, side, scale), trace.exit(eta)
        assert torch.equal(told.depth, expected.depth)
        assert torch.equal(told.node, expected.node)
        torch.testing.assert_close(told.alpha, expected.alpha, rtol=1e-6, atol=0.0)


def test_rows_that_the_tables_cannot_tell_are_told_by_the_exact_entropy() -> None:
    model = make_model(GRAPHS["tree"]).eval()
    h = model.oracle(torch.randn(200, FEATURES)).detach()
    eta = float(nbsr.dirichlet.entropy(both_ways(model, h, math.nextafter(1e9, 0)).alpha)[17])
    with patch("nbsr_core.model.walk.level_by_level", wraps=level_by_level) as exactly:
        told = both_ways(model, h, eta)
    assert exactly.call_count > 0, "row 17 lies at eta itself"
    assert told.depth[17] > 1, "what is not below eta goes on"


def test_thresholds_at_infinity_are_always_and_never() -> None:
    model, x = make_model(GRAPHS["tree"]).eval(), torch.randn(30, FEATURES)
    assert bool((model.predict(x, eta=math.inf).depth == 1).all())
    assert torch.equal(model.predict(x, eta=-math.inf).alpha, model.predict(x).alpha)


@pytest.mark.parametrize("classes", [2, 41, 65, 3000])
def test_an_exit_test_is_unclear_at_the_threshold_and_clear_a_little_off(classes: int) -> None:
    """The estimate is never off by more than it says, from flat beliefs to the sharpest, and does not say too much."""
    torch.manual_seed(0)
    shape = torch.rand(400, 1).mul(12).sub(6).exp() * torch.randn(400, classes).mul(torch.rand(400, 1) * 4).exp()
    shape = shape.clamp(1e-6, 1e8)
    alpha = shape[shape.sum(-1) >= 1.0]
    entropy = nbsr.dirichlet.entropy(alpha, validate_args=False)
    for row, value in zip(alpha, entropy.tolist(), strict=True):
        doubt = rows.exit_test(value, classes).doubt
        told = [int(rows.screened(row.unsqueeze(0), rows.exit_test(eta, classes))[0]) for eta in
                (value, value + 3 * doubt, value - 3 * doubt)]  # fmt: skip
        assert told == [2, 1, 0]


@pytest.mark.parametrize("shape", [(1, 2), (300, 7), (300, 8), (40, 65), (3, 5000)])
@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 20.0])
def test_calibration_is_that_of_torch_in_value_and_derivative(shape: tuple[int, int], temperature: float) -> None:
    torch.manual_seed(0)
    alpha = torch.rand(shape).mul(12).exp().mul(1e-3).requires_grad_()
    own = torch.full(shape[:1], temperature).requires_grad_()
    expected = REFERENCE.calibrated(alpha.detach().double(), own.detach().double())
    for given in (temperature, own):
        found = calibration.calibrated(alpha, given)
        torch.testing.assert_close(found.double(), expected, rtol=3e-5, atol=1e-18)
        assert torch.equal(found.argmax(-1), alpha.argmax(-1))
    weights = torch.randn(shape)
    grads = torch.autograd.grad((found.log() * weights).sum(), [alpha, own])
    in_torch = torch.autograd.grad((REFERENCE.calibrated(alpha, own).log() * weights).sum(), [alpha, own])
    for grad, other in zip(grads, in_torch, strict=True):
        torch.testing.assert_close(grad, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 7, 8, 10])
def test_what_is_no_belief_is_refused_wherever_it_stands(bad: float, place: int) -> None:
    alpha = torch.ones(20, 11)
    alpha[13, place] = bad
    with pytest.raises(InputError, match="alpha runs from"):
        calibration.calibrated(alpha, 1.5)


@pytest.mark.parametrize("size", [3, 64, 130])
@pytest.mark.parametrize("told", [False, True])
def test_distances_are_those_of_float64_in_value_and_derivative(size: int, told: bool) -> None:
    torch.manual_seed(0)
    known, kinds = torch.randn(500, size) * torch.linspace(0.1, 3, size) + 5, torch.randint(0, 9, (500,))
    density = nbsr.DensityFactor(size).fit(known, kinds)
    h, mean = (torch.randn(333, size) * 2 + 5).requires_grad_(), torch.randint(0, 9, (333,)) if told else None
    found = density.distance(h, mean=mean)
    reference = nbsr.DensityFactor(size).double().fit(known.double(), kinds)
    twin = h.detach().double().requires_grad_()
    expected = reference.distance(twin, mean=mean)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    (grad,), (other,) = torch.autograd.grad(found.sum(), h), torch.autograd.grad(expected.sum(), twin)
    torch.testing.assert_close(grad.double(), other, rtol=1e-3, atol=1e-4)
    assert torch.equal(density.distance(h.detach(), mean=mean), found.detach()), "the same with gradients and without"
    so_far = found.detach().view(-1, 9).cummax(1).values.flatten()
    least_so_far = density(h, mean=mean).view(-1, 9).cummin(1).values.flatten()
    assert torch.equal(density(h, mean=mean, length=9), least_so_far), "the factor falls as the distance grows"
    torch.testing.assert_close(density(h, mean=mean, length=9), density.of_distance(so_far), rtol=1e-6, atol=1e-12)


def test_the_structure_of_a_walk_has_the_size_that_compiled_code_expects() -> None:
    import ctypes

    from nbsr_core.kernels.native import walk

    found = build.library()
    assert found is not None
    found.nbsr_size_of_walk.restype = ctypes.c_int64
    assert found.nbsr_size_of_walk() == ctypes.sizeof(walk._Walk)
