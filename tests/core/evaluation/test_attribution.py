"""Attribution: exactly the gradient of the raw belief, exactly split by expert."""

from __future__ import annotations

import pytest
import torch
from captum.attr import InputXGradient
from models import FEATURES, GRAPHS, ORACLE, make_model
from reference import PADDED, mixed_specs
from torch import Tensor, nn

import nbsr_core as nbsr

ALL_GRAPHS = {**GRAPHS, "padded": PADDED}


def explained(name: str, *, density: bool = False, calibrated: bool = False) -> tuple[nbsr.NBSR, Tensor]:
    """A model in float64 with experts of all kinds, and inputs of which some are doubtful."""
    graph = ALL_GRAPHS[name]
    factor = nbsr.DensityFactor(ORACLE) if density else None
    model = make_model(graph, experts=mixed_specs(graph), density=factor).double().eval()
    x = torch.randn(300, FEATURES, dtype=torch.float64)
    with torch.no_grad():
        if density:
            model.fit_density(model.oracle(x))
        if calibrated:
            model.calibrate(model(x), torch.arange(300) % 5)
    return model, 2.5 * x[:12]


CASES = [
    *[(name, False, False) for name in ALL_GRAPHS],
    ("tree", True, False),
    ("padded", True, False),
    ("tree", False, True),
    ("uneven", True, True),
]
all_cases = pytest.mark.parametrize(("name", "density", "calibrated"), CASES)


@all_cases
def test_the_whole_is_captums_input_times_gradient(name: str, density: bool, calibrated: bool) -> None:
    model, x = explained(name, density=density, calibrated=calibrated)
    found = nbsr.attribute(model, x)
    reference = InputXGradient(lambda probe: model(probe).beliefs[-1])
    wanted = reference.attribute(x.clone().requires_grad_(True), target=found.label)
    torch.testing.assert_close(found.total, wanted)
    if density:
        doubted = model(x).density.detach()
        assert 0 < float(doubted.min()) < 1


@all_cases
def test_each_part_is_the_gradient_of_one_experts_evidence(name: str, density: bool, calibrated: bool) -> None:
    model, x = explained(name, density=density, calibrated=calibrated)
    found = nbsr.attribute(model, x)
    with torch.no_grad():
        trace = model(x)
    assert torch.equal(found.nodes, trace.nodes[1:])
    assert torch.equal(found.label, trace.probabilities().argmax(-1))
    assert torch.equal(found.by_expert.sum(0), found.total)
    for t in range(trace.depth):
        reference = InputXGradient(lambda probe, t=t: model(probe).evidence[t])
        wanted = reference.attribute(x.clone().requires_grad_(True), target=found.label)
        torch.testing.assert_close(found.by_expert[t], wanted)
    assert bool((found.by_expert[~trace.walking] == 0).all())


@pytest.mark.parametrize(("name", "density"), [("tree", False), ("layered", True), ("uneven", True)])
def test_it_is_what_finite_differences_say(name: str, density: bool) -> None:
    model, x = explained(name, density=density)
    label = torch.arange(len(x)) % 5
    found = nbsr.attribute(model, x, label).total
    rows, step = torch.arange(len(x)), 1e-6
    with torch.no_grad():
        for i in range(FEATURES):
            nudge = step * torch.eye(FEATURES, dtype=torch.float64)[i]
            above, below = model(x + nudge), model(x - nudge)
            slope = (above.beliefs[-1] - below.beliefs[-1])[rows, label] / (2 * step)
            same_path = (above.nodes == below.nodes).all(0)
            assert int(same_path.sum()) > 9
            torch.testing.assert_close(found[same_path, i], (x[:, i] * slope)[same_path], rtol=1e-5, atol=1e-7)


def test_calibration_changes_nothing_but_what_is_shown() -> None:
    plain, x = explained("tree")
    calibrated, _ = explained("tree", calibrated=True)
    assert not torch.allclose(plain(x).belief(3), calibrated(x).belief(3))
    torch.testing.assert_close(nbsr.attribute(plain, x).by_expert, nbsr.attribute(calibrated, x).by_expert)


def test_inputs_of_any_shape_and_side_information() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(18, ORACLE))
    model = nbsr.NBSR(backbone, GRAPHS["tree"], 5, ORACLE, side_dim=2).train()
    x, side = torch.randn(4, 1, 5, 5), torch.randn(4, 2)
    found = nbsr.attribute(model, x, side=side)
    assert found.by_expert.shape == (3, 4, 1, 5, 5)
    assert found.total.shape == x.shape
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not found.total.requires_grad
    again = nbsr.attribute(model, x, side=side)  # explained is the model in use: no dropout, no sampled routes
    assert torch.equal(found.by_expert, again.by_expert)


def test_it_works_where_gradients_are_switched_off() -> None:
    model, x = explained("chain")
    wanted = nbsr.attribute(model, x).total
    with torch.no_grad():
        torch.testing.assert_close(nbsr.attribute(model, x).total, wanted)


def test_what_cannot_be_explained_is_refused(without_shape_checks: None) -> None:
    model, x = explained("chain")
    with pytest.raises(nbsr.InputError, match=r"floating-point input.*torch\.int64"):
        nbsr.attribute(model, torch.ones(3, FEATURES, dtype=torch.int64))
    with pytest.raises(nbsr.InputError, match=r"within 0 \.\. 4"):
        nbsr.attribute(model, x, torch.full((len(x),), 5))
    with pytest.raises(nbsr.InputError, match="labels have shape"):
        nbsr.attribute(model, x, torch.zeros(3, dtype=torch.int64))
