"""Routing: children are drawn with the router's own probabilities; gradients are those of the paper's formula."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import FEATURES, GRAPHS, make_model
from reference import PADDED, SHARED, WAYS, Specs, expert_slot, mixed_specs, router_slot, take_way, taught_beliefs
from scipy import stats
from torch import Tensor

import nbsr_core as nbsr
from nbsr_core.kernels import availability, choose, gated, gumbel_noise, selection

ALL_GRAPHS = {**GRAPHS, "padded": PADDED, "shared": SHARED}
ESTIMATORS = ["sparse", "counterfactual"]
finite = st.floats(-1e6, 1e6, allow_subnormal=False)


# --- choosing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("logits", [[0.0, 0.0, 0.0], [2.0, 0.0, -1.0, 0.5], [-3.0, 1.0], [1000.0, 999.0]])
def test_sampled_children_follow_the_softmax_of_the_logits_at_any_temperature(logits: list[float], tau: float) -> None:
    draws = 20_000
    routes = choose(torch.tensor(logits).expand(draws, -1), "gumbel", tau)
    seen = torch.bincount(routes.choice, minlength=len(logits)).numpy()
    expected = torch.tensor(logits, dtype=torch.float64).softmax(-1).numpy() * draws
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_gumbel_noise_is_gumbel_and_always_finite() -> None:
    noise = gumbel_noise(torch.empty(200_000))
    assert bool(torch.isfinite(noise).all())
    assert stats.kstest(noise[:20_000].numpy(), stats.gumbel_r.cdf).pvalue > 1e-3


def test_the_same_seed_draws_the_same_routes() -> None:
    model, x = make_model(GRAPHS["tree"]), torch.randn(64, FEATURES)
    walks = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        walks.append(model(x).nodes)
    assert torch.equal(walks[0], walks[1])
    assert not torch.equal(walks[0], walks[2])


@given(tau=st.floats(1e-2, 1e2), rows=st.integers(1, 20), children=st.integers(1, 6), seed=st.integers(0, 999))
def test_the_child_taken_is_the_one_the_relaxed_probabilities_favour(
    tau: float, rows: int, children: int, seed: int
) -> None:
    torch.manual_seed(seed)
    routes = choose(torch.randn(rows, children, dtype=torch.float64), "gumbel", tau)
    assert routes.relaxed is not None
    torch.testing.assert_close(routes.relaxed.sum(-1), torch.ones(rows, dtype=torch.float64))
    assert torch.equal(routes.relaxed.argmax(-1), routes.choice)


def test_a_small_temperature_relaxes_hardly_and_a_large_one_to_uniform() -> None:
    logits = torch.randn(500, 4)
    cold, hot = choose(logits, "gumbel", 1e-4), choose(logits, "gumbel", 1e4)
    assert cold.relaxed is not None
    assert hot.relaxed is not None
    onehot = torch.nn.functional.one_hot(cold.choice, 4).float()
    nearly = (cold.relaxed - onehot).abs().amax(-1) < 1e-3
    assert float(nearly.float().mean()) > 0.99
    torch.testing.assert_close(hot.relaxed, torch.full((500, 4), 0.25), atol=0.01, rtol=0)


def test_argmax_takes_the_best_child_without_noise_or_relaxation() -> None:
    logits = torch.randn(50, 4)
    routes = choose(logits, "argmax", 1.0)
    assert routes.relaxed is None
    assert torch.equal(routes.choice, logits.argmax(-1))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", ["padded", "uneven"])
def test_children_that_do_not_exist_are_never_taken_nor_given_probability(name: str, estimator: str) -> None:
    graph = ALL_GRAPHS[name]
    model = make_model(graph, estimator=estimator)
    trace = model(3 * torch.randn(600, FEATURES))
    for t, step in enumerate(trace.steps):
        assert step.relaxed is not None
        for b in trace.walking[t].nonzero().flatten().tolist():
            children = graph.nodes[int(trace.nodes[t, b])].children
            assert int(step.node[b]) == children[int(step.choice[b])]
            assert float(step.relaxed[b, len(children) :].detach().sum()) == 0.0
    assert {int(i) for i in trace.usage.nonzero()} == set(range(len(graph))), "every node is drawn sooner or later"


# --- the straight-through gradient ------------------------------------------------------------------------------------


@st.composite
def decisions(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, every child's evidence [b, children, K], and the choices."""
    rows, children, classes = draw(st.integers(1, 5)), draw(st.integers(2, 4)), draw(st.integers(2, 4))
    torch.manual_seed(draw(st.integers(0, 999)))
    logits = torch.randn(rows, children, dtype=torch.float64, requires_grad=True)
    evidence = torch.rand(rows, children, classes, dtype=torch.float64).mul(9).requires_grad_()
    return logits, evidence, torch.randint(children, (rows,))


def test_counterfactual_credit_goes_to_every_gate_and_sparse_credit_to_the_chosen_one() -> None:
    grad, evidence = torch.tensor([[1.0, 2.0]]), torch.tensor([[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]])
    relaxed, choice = torch.tensor([[0.2, 0.3, 0.5]], requires_grad=True), torch.tensor([1])
    for siblings, credit in ((None, [[0.0, 42.0, 0.0]]), (evidence, [[21.0, 42.0, 63.0]])):
        passed = gated(evidence[:, 1], relaxed, choice, siblings)
        assert torch.equal(passed, evidence[:, 1]), "the gate is 1"
        (of_relaxed,) = torch.autograd.grad(passed, relaxed, grad)
        assert of_relaxed.tolist() == credit


@pytest.mark.skipif(not availability()[0], reason="not compiled: autograd can do it")
def test_second_derivatives_of_a_compiled_walk_are_refused_rather_than_wrong() -> None:
    model = make_model(GRAPHS["tree"])
    belief = model(torch.randn(7, FEATURES)).beliefs[-1]
    (slope,) = torch.autograd.grad(belief.square().sum(), model.get_parameter("backbone.0.weight"), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


@pytest.mark.parametrize("way", WAYS)
def test_weights_that_change_before_the_backward_pass_are_noticed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_way(monkeypatch, way)
    model = make_model(GRAPHS["tree"])
    loss = model(torch.randn(40, FEATURES)).beliefs[-1].sum()
    with torch.no_grad():
        model.experts[1].banks[0].layers[0].weight.mul_(0.5)
    with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
        loss.backward()


def test_a_walk_can_be_differentiated_again_and_frees_its_memory() -> None:
    model = make_model(GRAPHS["tree"])
    loss = model(torch.randn(40, FEATURES)).beliefs[-1].square().sum()
    parameters = list(model.parameters())
    first: tuple[Tensor | None, ...] = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    again: tuple[Tensor | None, ...] = torch.autograd.grad(loss, parameters, allow_unused=True)
    for one, two in zip(first, again, strict=True):
        assert one is two is None or (one is not None and two is not None and torch.equal(one, two))
    gc.collect()
    gc.disable()
    try:
        evidence = model(torch.randn(40, FEATURES)).steps[-1].evidence
        gone = weakref.ref(evidence)
        del evidence
        assert gone() is None, "no cycle keeps a walk alive until the collector comes"
    finally:
        gc.enable()


@given(case=decisions())
def test_selection_is_one_hot_in_value_and_relaxed_in_gradient(case: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, _, choice = case
    relaxed = logits.softmax(-1)
    chosen = selection(relaxed, choice)
    onehot = torch.nn.functional.one_hot(choice, logits.shape[1]).double()
    assert torch.equal(chosen, onehot)
    weights = torch.randn_like(chosen)
    (got,) = torch.autograd.grad((chosen * weights).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad((relaxed * weights).sum(), logits)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", ["alike", "mixed", "relative"])
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_a_whole_training_walk_has_the_gradients_of_the_formula(
    name: str, kind: str, estimator: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_way(monkeypatch, way)
    graph, tau = ALL_GRAPHS[name], 0.7
    specs: Specs | None = mixed_specs(graph) if kind == "mixed" else None
    options: dict[str, Any] = {"evidence": "relative"} if kind == "relative" else {}
    options |= {} if specs is None else {"experts": specs}
    model = make_model(graph, estimator=estimator, side_dim=2, **options).double()
    x, side = torch.randn(9, FEATURES, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    weights = torch.randn(graph.depth + 1, 9, 5, dtype=torch.float64)
    trace = model(x, side=side, tau=tau)
    beliefs = taught_beliefs(model, trace, model.backbone(x), tau, side, specs)
    _assert_same_beliefs_and_gradients(model, trace, beliefs, weights)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_density_factor_scales_all_evidence_and_teaches_nothing_by_itself(
    estimator: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_way(monkeypatch, way)
    model = make_model(GRAPHS["tree"], estimator=estimator, density=nbsr.DensityFactor(8)).double()
    x = torch.randn(12, FEATURES, dtype=torch.float64)
    model.fit_density(model.backbone(torch.randn(200, FEATURES, dtype=torch.float64)).detach())
    x[6:] *= 4
    trace = model(x)
    h = model.backbone(x)
    assert trace.density is not None
    assert float(trace.density.min()) < 0.9
    assert float(trace.density.max()) == 1.0
    beliefs = taught_beliefs(model, trace, h, 1.0, factor=trace.density)
    _assert_same_beliefs_and_gradients(model, trace, beliefs, torch.randn(4, 12, 5, dtype=torch.float64))


def _assert_same_beliefs_and_gradients(
    model: nbsr.NBSR, trace: nbsr.BeliefTrace, beliefs: list[Tensor], weights: Tensor
) -> None:
    for got, expected in zip(trace.beliefs, beliefs, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-12)
    names, parameters = zip(*model.named_parameters(), strict=True)
    grads = [
        torch.autograd.grad((torch.stack(list(b)).log() * weights).sum(), parameters, allow_unused=True)
        for b in (trace.beliefs, beliefs)
    ]
    for name, parameter, got, expected in zip(names, parameters, *grads, strict=True):
        zero = torch.zeros_like(parameter)
        torch.testing.assert_close(
            zero if got is None else got, zero if expected is None else expected, rtol=1e-6, atol=1e-9, msg=name
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("mixed", [False, True], ids=["alike", "mixed"])
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_nodes_off_the_path_get_a_gradient_of_exactly_zero(
    name: str, mixed: bool, estimator: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_way(monkeypatch, way)
    graph = ALL_GRAPHS[name]
    specs = mixed_specs(graph) if mixed else None
    options: dict[str, Any] = {} if specs is None else {"experts": specs}
    model = make_model(graph, estimator=estimator, **options)
    for seed in range(2):
        torch.manual_seed(seed)
        model.zero_grad()
        trace = model(torch.randn(1, FEATURES))
        nbsr.objectives.nll(trace.beliefs[-1], torch.tensor([seed])).backward()
        path = trace.nodes[: int(trace.length) + 1, 0].tolist()
        for node in range(1, len(graph)):
            parameters, slot = expert_slot(model, node, specs)
            moved = [p.grad is not None and bool((p.grad[slot] != 0).any()) for p in parameters]
            assert any(moved) == (node in path), f"expert of {graph.name(node)}, path {path}"
        for node in range(len(graph)):
            if not graph.nodes[node].children:
                continue
            parameters, slot = router_slot(model, node)
            moved = [p.grad is not None and bool((p.grad[slot] != 0).any()) for p in parameters]
            learns = node in path and len(graph.nodes[node].children) > 1
            assert any(moved) == learns, f"router of {graph.name(node)}, path {path}"


# --- the temperature --------------------------------------------------------------------------------------------------


@given(start=st.floats(0.01, 10), decay=st.floats(0.01, 1), floor=st.floats(0.01, 10), epoch=st.integers(0, 500))
def test_the_schedule_falls_exponentially_to_its_floor(start: float, decay: float, floor: float, epoch: int) -> None:
    schedule = nbsr.TemperatureSchedule(start, decay, floor)
    assert schedule(epoch) == pytest.approx(max(floor, start * math.exp(epoch * math.log(decay))), rel=1e-9)
    assert schedule(epoch + 1) <= schedule(epoch)
    assert schedule(0) == max(start, floor)


def test_the_temperature_of_a_call_goes_before_that_of_the_model() -> None:
    model, x = make_model(GRAPHS["layered"]), torch.randn(40, FEATURES)

    def sharpness(tau: float | None) -> float:
        torch.manual_seed(1)
        relaxed = model(x, tau=tau).steps[0].relaxed
        assert relaxed is not None
        return float(relaxed.detach().amax(-1).mean())

    at_one = sharpness(None)
    model.set_temperature(0.01)
    assert sharpness(None) > 0.97
    assert sharpness(1.0) == at_one
    assert sharpness(100.0) < 0.3
