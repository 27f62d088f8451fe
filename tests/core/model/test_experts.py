"""Experts: evidence is always above 0 and within its budget, and each node's expert is its own, however held."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import GRAPHS, ORACLE
from reference import PADDED, evidence_at, logits_at, mixed_specs
from torch import nn

import nbsr_core as nbsr
from nbsr_core.kernels import activate
from nbsr_core.model.experts import LevelExperts

SPECS = {
    "softplus": nbsr.ExpertSpec(),
    "softplus without bias": nbsr.ExpertSpec(bias=False),
    "softplus MLP": nbsr.ExpertSpec(hidden=(9, 5)),
    "sigmoid": nbsr.ExpertSpec(activation="sigmoid", bound=2.5),
    "sigmoid MLP without bias": nbsr.ExpertSpec(hidden=(7,), bias=False, activation="sigmoid", bound=0.01),
    "exp": nbsr.ExpertSpec(activation="exp"),
    "exp with a bound": nbsr.ExpertSpec(activation="exp", bound=40.0),
    "exp MLP": nbsr.ExpertSpec(hidden=(7,), activation="exp", bound=0.7),
}
ALL_GRAPHS = {**GRAPHS, "padded": PADDED}


def oracle_model(graph: nbsr.DecisionGraph, **options: object) -> nbsr.NBSR:
    """A model whose input is the oracle itself."""
    torch.manual_seed(0)
    return nbsr.NBSR(nn.Identity(), graph, 5, ORACLE, **options).eval()  # type: ignore[arg-type]


def largest(spec: nbsr.ExpertSpec) -> float:
    if spec.bound is not None:
        return spec.bound
    return math.exp(15) if spec.activation == "exp" else math.inf


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@settings(max_examples=12)
@given(
    signs=st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=ORACLE, max_size=ORACLE),
    size=st.sampled_from([1.0, 1e4]),
)
def test_evidence_is_above_zero_finite_and_within_its_bound(
    spec: nbsr.ExpertSpec, signs: list[float], size: float
) -> None:
    model = oracle_model(GRAPHS["layered"], experts=spec)
    evidence = model(size * torch.tensor([signs, signs[::-1]])).evidence.detach()
    assert evidence.dtype == torch.float32
    assert bool((evidence > 0).all())
    assert bool(torch.isfinite(evidence).all())
    assert float(evidence.max()) <= largest(spec) * (1 + 1e-6)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_raw_outputs_keep_positive_evidence_and_finite_gradients(
    spec: nbsr.ExpertSpec, dtype: torch.dtype
) -> None:
    z = torch.tensor([-1e4, -200.0, -100.0, -1.0, 0.0, 1.0, 100.0, 1e4], dtype=dtype, requires_grad=True)
    evidence = activate(spec, z)
    assert evidence.dtype == dtype
    assert bool((evidence > 0).all())
    assert bool((evidence.diff() >= 0).all()), "a larger output never means less evidence"
    evidence.sum().backward()
    assert z.grad is not None
    assert bool(torch.isfinite(z.grad).all())
    assert bool((z.grad >= 0).all())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@given(values=st.lists(st.floats(-30, 30), min_size=1, max_size=20))
def test_activations_follow_their_formulas(spec: nbsr.ExpertSpec, values: list[float]) -> None:
    z = np.array(values)
    expected = {
        "softplus": np.logaddexp(0, z),
        "sigmoid": largest(spec) / (1 + np.exp(-z)),
        "exp": np.exp(z) / (1 + np.exp(z) / largest(spec)),
    }[spec.activation]
    np.testing.assert_allclose(activate(spec, torch.from_numpy(z)).numpy(), expected, rtol=1e-7)


@pytest.mark.parametrize("activation", ["sigmoid", "exp"])
def test_an_expert_that_has_spent_its_budget_can_still_learn(activation: str) -> None:
    spec = nbsr.ExpertSpec(activation=activation, bound=5.0)  # type: ignore[arg-type]
    z = torch.linspace(-10, 15, 200, requires_grad=True)
    evidence = activate(spec, z)
    assert 4.99 < float(evidence.max().detach()) <= 5.0
    (slope,) = torch.autograd.grad(evidence.sum(), z)
    assert bool((slope > 0).all())
    slowest = evidence.detach() * (1 - evidence.detach() / 5)
    torch.testing.assert_close(slope, slowest, rtol=1e-3, atol=1e-6)


def test_a_budget_is_one_pseudo_count_at_first_if_it_is_exponential() -> None:
    zero = torch.zeros(1)
    assert float(activate(nbsr.ExpertSpec(activation="exp", bound=1e6), zero)) == pytest.approx(1.0, rel=1e-5)
    assert float(activate(nbsr.ExpertSpec(activation="sigmoid", bound=1e6), zero)) == pytest.approx(5e5)


def test_what_a_bounded_generalist_says_can_be_outweighed_below() -> None:
    graph = GRAPHS["generalist"]
    budget, rest = nbsr.ExpertSpec(activation="exp", bound=5.0), nbsr.ExpertSpec(activation="exp")
    trace = oracle_model(graph, experts=[budget, rest])(30 * torch.randn(200, ORACLE))
    assert float(trace.evidence[0].detach().max()) <= 5.0
    assert float(trace.evidence[1:].detach().amax(-1).min()) < 5.0 < 1e3 < float(trace.evidence[1:].detach().max())


def test_the_root_above_a_generalist_has_no_router() -> None:
    model = oracle_model(GRAPHS["generalist"])
    assert not list(model.routers[0].parameters())
    assert list(model.routers[1].parameters())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_autocast_still_gives_float32_evidence_above_zero(spec: nbsr.ExpertSpec) -> None:
    model = oracle_model(GRAPHS["layered"], experts=spec)
    h = torch.cat([torch.randn(6, ORACLE), torch.full((1, ORACLE), -1e4)])
    with torch.autocast("cpu", torch.bfloat16):
        trace = model(h)
    assert trace.evidence.dtype == torch.float32
    assert bool((trace.evidence > 0).all())


def test_without_bias_a_zero_oracle_says_nothing_about_any_class() -> None:
    for hidden in [(), (4,)]:
        model = oracle_model(GRAPHS["tree"], experts=nbsr.ExpertSpec(hidden=hidden, bias=False))
        evidence = model(torch.zeros(1, ORACLE)).evidence
        torch.testing.assert_close(evidence, torch.full_like(evidence, math.log(2)))
    with_bias = oracle_model(GRAPHS["tree"])(torch.zeros(1, ORACLE)).evidence
    assert float(with_bias.detach().std()) > 0.01


@pytest.mark.parametrize("graph", ALL_GRAPHS.values(), ids=ALL_GRAPHS)
@pytest.mark.parametrize(
    "kind", ["one", "by level", "the first level, and all below", "by node", "default and one node", "mixed"]
)
def test_each_node_has_the_expert_that_was_asked_for(graph: nbsr.DecisionGraph, kind: str) -> None:
    choices = list(SPECS.values())
    names = [node.name for node in graph.nodes[1:]]
    last = names[-1]
    experts: object
    if kind == "one":
        experts = choices[2]
        specs = dict.fromkeys(names, choices[2])
    elif kind == "by level":
        experts = choices[: graph.depth]
        specs = {node.name: choices[node.level - 1] for node in graph.nodes[1:]}
    elif kind == "the first level, and all below":
        experts = choices[3:5]
        specs = {node.name: choices[3 if node.level == 1 else 4] for node in graph.nodes[1:]}
    elif kind == "by node":
        experts = specs = {name: choices[i % len(choices)] for i, name in enumerate(names)}
    elif kind == "default and one node":
        experts = {"default": choices[3], last: choices[5]}
        specs = {**dict.fromkeys(names, choices[3]), last: choices[5]}
    else:
        experts = specs = mixed_specs(graph)
    model = oracle_model(graph, experts=experts).double()
    h = torch.randn(12, ORACLE, dtype=torch.float64)
    for level, nodes in enumerate(graph.levels[1:]):
        bank = model.experts[level]
        assert isinstance(bank, LevelExperts)
        position = torch.randint(len(nodes), (12,))
        expected = torch.stack([evidence_at(model, nodes[p], h[b], specs) for b, p in enumerate(position.tolist())])
        torch.testing.assert_close(bank(h, position), expected, rtol=1e-7, atol=1e-12)
        everyone = torch.stack([torch.stack([evidence_at(model, node, row, specs) for node in nodes]) for row in h])
        torch.testing.assert_close(bank.every_expert(h), everyone, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", ["tree", "layered", "padded"])
def test_mixed_experts_learn_like_separate_ones(name: str) -> None:
    graph = ALL_GRAPHS[name]
    specs = mixed_specs(graph)
    model = oracle_model(graph, experts=specs).double()
    h = torch.randn(10, ORACLE, dtype=torch.float64, requires_grad=True)
    for level, nodes in enumerate(graph.levels[1:]):
        bank = model.experts[level]
        assert isinstance(bank, LevelExperts)
        position = torch.randint(len(nodes), (10,))
        separate = torch.stack([evidence_at(model, nodes[p], h[b], specs) for b, p in enumerate(position.tolist())])
        weights = torch.randn_like(separate)
        inputs = [h, *bank.parameters()]
        got = torch.autograd.grad((bank(h, position) * weights).sum(), inputs, allow_unused=True)
        expected = torch.autograd.grad((separate * weights).sum(), inputs, allow_unused=True)
        for mine, theirs in zip(got, expected, strict=True):
            mine = torch.zeros(()) if mine is None else mine
            theirs = torch.zeros_like(mine) if theirs is None else theirs
            torch.testing.assert_close(mine, theirs.expand_as(mine), rtol=1e-6, atol=1e-9, check_dtype=False)


def test_experts_of_different_kinds_at_one_level_keep_their_budgets() -> None:
    graph = nbsr.DecisionGraph.uniform(depth=1, width=2)
    experts = {"1": nbsr.ExpertSpec(activation="sigmoid", bound=0.5), "2": nbsr.ExpertSpec(activation="exp")}
    trace = oracle_model(graph, experts=experts)(30 * torch.randn(200, ORACLE))
    most = trace.evidence[0].detach().amax(-1)
    assert set(trace.nodes[1].tolist()) == {1, 2}
    assert float(most[trace.nodes[1] == 1].max()) <= 0.5
    assert float(most[trace.nodes[1] == 2].max()) > 100


@pytest.mark.parametrize("belief", ["alpha", "log", "mean", "none"])
@pytest.mark.parametrize("hidden", [(), (6,), (6, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_routers_see_what_they_are_told_to_see(belief: str, hidden: tuple[int, ...], bias: bool) -> None:
    spec = nbsr.RouterSpec(hidden=hidden, bias=bias, belief=belief)  # type: ignore[arg-type]
    model = oracle_model(PADDED, router=spec, side_dim=2, prior_weight=2.0).double()
    h, side = torch.randn(20, ORACLE, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    trace = model(h, side=side)
    for t, step in enumerate(trace.steps):
        for b in trace.walking[t].nonzero().flatten().tolist():
            node = int(trace.nodes[t, b])
            expected = logits_at(model, node, h[b], trace.beliefs[t][b], side[b])
            torch.testing.assert_close(step.logits[b, : len(expected)], expected, rtol=1e-9, atol=1e-12)
            assert bool((step.logits[b, len(expected) :] == -math.inf).all()), "missing children are out of reach"


def test_a_router_that_sees_no_belief_has_no_parameters_for_it() -> None:
    sizes = {}
    for belief in ("alpha", "log", "mean", "none"):
        model = oracle_model(GRAPHS["tree"], router=nbsr.RouterSpec(belief=belief))
        sizes[belief] = sum(parameter.numel() for parameter in model.parameters())
    assert sizes["alpha"] == sizes["log"] == sizes["mean"] > sizes["none"]


def test_a_level_of_only_children_has_no_routers() -> None:
    model = oracle_model(GRAPHS["chain"])
    assert not list(model.routers.parameters())
    trace = model(torch.randn(3, ORACLE))
    assert trace.nodes.tolist() == [[0] * 3, [1] * 3, [2] * 3]
    assert trace.audit(0).steps[0].route_probability == 1.0
