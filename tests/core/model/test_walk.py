"""The walk: beliefs only ever gain, every sample goes its own way, and who has left costs nothing any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import FEATURES, GRAPHS, ORACLE, make_model
from reference import PADDED, SHARED, WAYS, Specs, evidence_at, logits_at, mixed_specs, plain_walk, take_way
from scipy import stats
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import nbsr_core as nbsr

ALL_GRAPHS = {**GRAPHS, "padded": PADDED, "shared": SHARED}
OPTIONS: dict[str, dict[str, Any]] = {
    "sparse": {},
    "counterfactual": {"estimator": "counterfactual"},
    "exp": {"experts": nbsr.ExpertSpec(activation="exp", bound=100.0), "router": nbsr.RouterSpec(belief="log")},
    "relative": {"evidence": "relative"},
    "weak prior": {"prior_weight": 0.5, "base_rate": [0.1, 0.2, 0.3, 0.2, 0.2]},
}
models = st.tuples(st.sampled_from(list(ALL_GRAPHS)), st.sampled_from(list(OPTIONS)), st.booleans(), st.integers(0, 9))


def drawn(case: tuple[str, str, bool, int]) -> nbsr.NBSR:
    """A model of some graph and options, in training or evaluation mode."""
    name, options, training, seed = case
    return make_model(ALL_GRAPHS[name], seed=seed, **OPTIONS[options]).train(training)


# --- beliefs ----------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(case=models, scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_evidence_is_added_to_the_belief_and_to_nothing_else(case: tuple[str, str, bool, int], scale: float) -> None:
    model = drawn(case)
    trace = model(scale * torch.randn(7, FEATURES)).detach()
    assert torch.equal(trace.beliefs[0], model.prior.expand(7, -1))
    for t, step in enumerate(trace.steps):
        assert torch.equal(trace.beliefs[t + 1], trace.beliefs[t] + step.evidence)
        assert bool((step.evidence[trace.walking[t]] > 0).all())
        assert bool((step.evidence[~trace.walking[t]] == 0).all()), "who has arrived hears no more"


@settings(max_examples=25)
@given(case=models, scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_theorem_1_precision_grows_at_every_step_and_bounds_the_variance(
    case: tuple[str, str, bool, int], scale: float
) -> None:
    trace = drawn(case)(scale * torch.randn(7, FEATURES)).detach()
    grown = trace.precision.diff(dim=0)
    assert bool((grown[trace.walking] > 0).all())
    assert bool((grown[~trace.walking] == 0).all())
    precision = trace.alpha.double().sum(-1)
    torch.testing.assert_close(trace.precision, precision, rtol=1e-5, atol=0)
    variance = nbsr.dirichlet.variance(trace.alpha.double())
    assert bool((variance <= (1 + 1e-9) / (4 * (precision.unsqueeze(-1) + 1))).all())


@settings(max_examples=25)
@given(case=models)
def test_corollary_1_vacuity_falls_at_every_step(case: tuple[str, str, bool, int]) -> None:
    model = drawn(case)
    trace = model(torch.randn(7, FEATURES)).detach()
    weight = float(model.prior.sum())
    vacuity = torch.stack([nbsr.dirichlet.vacuity(trace.belief(t).double(), weight) for t in range(trace.depth + 1)])
    torch.testing.assert_close(vacuity[0], torch.ones(7, dtype=torch.float64))
    assert bool((vacuity.diff(dim=0)[trace.walking] < 0).all())


def test_entropy_may_rise_while_precision_grows() -> None:
    """Strong evidence against what was believed: surer of how much is known, less sure of what is true."""
    model = nbsr.NBSR(nn.Identity(), nbsr.DecisionGraph.chain(2), 2, 2, experts=nbsr.ExpertSpec(bias=False)).eval()
    with torch.no_grad():
        for level, favoured in enumerate((0, 1)):
            (weight,) = model.experts[level].parameters()
            weight.zero_()
            weight[0, favoured, 0], weight[0, 1 - favoured, 0] = 100.0, -100.0
    trace = model(torch.ones(1, 2)).detach()
    assert trace.beliefs[1].argmax() == 0
    assert float(trace.entropy[1, 0]) < float(trace.entropy[0, 0])
    assert float(trace.entropy[2, 0]) > float(trace.entropy[1, 0]) + 0.5
    assert trace.precision[:, 0].tolist() == pytest.approx([2, 102, 202])


def test_entropy_rises_somewhere_in_an_ordinary_batch_too() -> None:
    model = make_model(GRAPHS["tree"], experts=nbsr.ExpertSpec(activation="exp", bound=1e4)).eval()
    trace = model(5 * torch.randn(500, FEATURES)).detach()
    rises = trace.entropy.diff(dim=0) > 0
    assert 0 < float(rises.double().mean()) < 0.5
    assert bool((trace.precision.diff(dim=0) > 0).all())


@given(weight=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_the_walk_starts_from_the_prior_that_was_given(weight: float, seed: int) -> None:
    rate = np.random.default_rng(seed).dirichlet(np.ones(4)).clip(1e-3)
    rate = (rate / rate.sum()).tolist()
    model = make_model(GRAPHS["chain"], num_classes=4, prior_weight=weight, base_rate=rate).eval()
    trace = model(torch.randn(3, FEATURES)).detach()
    torch.testing.assert_close(trace.beliefs[0], (weight * torch.tensor(rate)).expand(3, -1))
    total = trace.beliefs[0] + trace.evidence.sum(0)
    torch.testing.assert_close(trace.beliefs[-1], total)
    torch.testing.assert_close(trace.exit(None).vacuity, weight / total.sum(-1))


def test_relative_evidence_is_a_product_of_experts() -> None:
    """Each expert multiplies the belief by 1 + e, whatever the prior weighs."""
    chain, x = GRAPHS["chain"], torch.randn(9, FEATURES)
    said = make_model(chain).eval()(x).evidence.detach()
    for weight in (0.5, 5.0):
        trace = make_model(chain, evidence="relative", prior_weight=weight).eval()(x).detach()
        torch.testing.assert_close(trace.beliefs[-1], weight / 5 * (1 + said).prod(0))


@pytest.mark.parametrize(("kind", "answer"), [("absolute", 0), ("relative", 1)])
def test_a_second_expert_with_little_to_say_can_turn_a_sure_first_one_only_if_it_speaks_in_multiples(
    kind: str, answer: int
) -> None:
    experts = nbsr.ExpertSpec(activation="exp")
    model = nbsr.NBSR(nn.Identity(), GRAPHS["chain"], 2, 2, experts=experts, evidence=kind).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for level, said in enumerate(([1e4, 1e3], [1.0, 20.0])):
            weight, bias = model.experts[level].parameters()
            weight.zero_()
            bias.copy_(torch.tensor([said]).log())
    assert model.predict(torch.ones(1, 2)).label.tolist() == [answer]


@pytest.mark.parametrize("evidence", ["absolute", "relative"])
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_a_normalised_belief_never_grows_surer_of_how_much_it_knows(name: str, evidence: str) -> None:
    options: dict[str, Any] = {"evidence": evidence, "prior_weight": 3.0, "experts": nbsr.ExpertSpec(activation="exp")}
    model, plain = (make_model(ALL_GRAPHS[name], normalise=on, **options).eval() for on in (True, False))
    x = torch.randn(50, FEATURES)
    trace = model(x).detach()
    torch.testing.assert_close(trace.precision, torch.full_like(trace.precision, 3.0), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(trace.probabilities(1), plain(x).detach().probabilities(1))
    for eta in (None, float(trace.entropy[1].median())):
        told, expected = model.predict(x, eta=eta), trace.exit(eta)
        assert torch.equal(told.node, expected.node)
        torch.testing.assert_close(told.alpha, expected.alpha)
        torch.testing.assert_close(told.vacuity, torch.ones(50), rtol=1e-5, atol=0.0)


def test_exits_while_training_are_those_of_a_given_eta_and_there_are_none_afterwards() -> None:
    free, x = make_model(GRAPHS["tree"], routing="argmax"), torch.randn(60, FEATURES)
    eta = float(free(x).entropy[1].detach().median())
    lazy = make_model(GRAPHS["tree"], routing="argmax", training_eta=eta)
    early = lazy(x)
    assert 20 < int((early.length == 1).sum()) < 40
    assert torch.equal(early.length, free(x, eta=eta).length)
    assert bool((lazy.eval()(x).length == 3).all())
    with pytest.raises(nbsr.InputError, match="training_eta: softmax routing takes every path at once"):
        make_model(GRAPHS["tree"], routing="softmax", training_eta=-2.0)


def test_the_prior_is_all_ones_unless_told() -> None:
    assert make_model(GRAPHS["chain"], num_classes=7).prior.tolist() == [1.0] * 7


# --- the way ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ALL_GRAPHS)
@pytest.mark.parametrize("kind", ["alike", "mixed", "side information", "density", "float32", "relative", "normalised"])
def test_a_batch_walks_like_each_sample_on_its_own_spelled_out(
    name: str, kind: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_way(monkeypatch, way)
    graph = ALL_GRAPHS[name]
    specs: Specs | None = mixed_specs(graph) if kind == "mixed" else None
    options: dict[str, Any] = {} if specs is None else {"experts": specs}
    if kind == "side information":
        options["side_dim"] = 3
    if kind in ("density", "relative"):
        options["density"] = nbsr.DensityFactor(ORACLE)
    if kind == "relative":
        options |= {"evidence": "relative", "prior_weight": 2.0}
    if kind == "normalised":
        options["normalise"] = True
    dtype = torch.float32 if kind == "float32" else torch.float64
    model = make_model(graph, seed=3, **options).to(dtype).eval()
    x = 2 * torch.randn(14, FEATURES, dtype=dtype)
    side = torch.randn(14, 3, dtype=dtype) if kind == "side information" else None
    with torch.no_grad():
        h = model.backbone(x)
        if model.density is not None:
            model.fit_density(model.backbone(torch.randn(100, FEATURES, dtype=dtype)))
        factor = model.density(h) if model.density is not None else torch.ones(14)
        trace = model(x, side=side)
        for b in range(14):
            walk = plain_walk(model, h[b], None if side is None else side[b], specs, float(factor[b]))
            steps = len(walk.evidence)
            assert trace.length[b] == steps
            assert trace.nodes[:, b].tolist() == walk.nodes + walk.nodes[-1:] * (graph.depth - steps)
            assert trace.walking[:, b].tolist() == [t < steps for t in range(graph.depth)]
            rtol, atol = (1e-4, 1e-5) if dtype == torch.float32 else (1e-7, 1e-9)
            for t in range(steps):
                logits = trace.steps[t].logits[b, : len(walk.logits[t])]
                torch.testing.assert_close(logits, walk.logits[t], rtol=rtol, atol=atol)
                torch.testing.assert_close(trace.beliefs[t + 1][b], walk.alphas[t + 1], rtol=rtol, atol=atol)
            assert all(torch.equal(trace.beliefs[t][b], trace.beliefs[steps][b]) for t in range(steps, graph.depth + 1))


@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_batches_of_any_size_walk_alike(name: str) -> None:
    """Other sizes take other ways through the banks: a sample must not notice its company."""
    model = make_model(ALL_GRAPHS[name]).double().eval()
    x = torch.randn(1500, FEATURES, dtype=torch.float64)
    with torch.no_grad():
        whole = model(x)
        for size in (1, 2, 40, 700):
            part = model(x[:size])
            assert torch.equal(part.nodes, whole.nodes[:, :size])
            torch.testing.assert_close(part.alpha, whole.alpha[:, :size], rtol=1e-9, atol=1e-9)


def test_side_information_changes_routes_and_nothing_else_does() -> None:
    model = make_model(GRAPHS["tree"], side_dim=2).eval()
    x = torch.randn(50, FEATURES)
    here, there = model(x, side=torch.zeros(50, 2)), model(x, side=20 * torch.randn(50, 2))
    moved = (here.nodes != there.nodes).any(0)
    assert 0.5 < float(moved.double().mean()) <= 1.0
    assert torch.equal(here.beliefs[-1][~moved], there.beliefs[-1][~moved])
    same_first = here.nodes[1] == there.nodes[1]
    torch.testing.assert_close(here.beliefs[1][same_first], there.beliefs[1][same_first])


def test_uneven_leaves_end_walks_at_different_depths() -> None:
    graph = GRAPHS["uneven"]
    trace = make_model(graph)(4 * torch.randn(400, FEATURES)).detach()
    level = torch.tensor([node.level for node in graph.nodes])
    leaf = torch.from_numpy(graph.is_leaf.copy())
    last = trace.nodes[-1]
    assert bool(leaf[last].all()), "without eta everybody walks to a leaf"
    assert torch.equal(trace.length, level[last])
    assert set(trace.length.tolist()) == {1, 2, 3}
    for t in range(trace.depth):
        stays = ~trace.walking[t]
        assert torch.equal(trace.nodes[t + 1][stays], trace.nodes[t][stays])
        assert bool((level[trace.nodes[t + 1][~stays]] == t + 1).all())


# --- exits during training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_a_forward_pass_never_exits_unless_asked(name: str, training: bool) -> None:
    graph = ALL_GRAPHS[name]
    model = make_model(graph, experts=nbsr.ExpertSpec(activation="exp", bound=1e6)).train(training)
    trace = model(20 * torch.randn(60, FEATURES))
    assert bool(torch.from_numpy(graph.is_leaf.copy())[trace.nodes[-1]].all())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_with_eta_a_trace_stops_where_the_full_one_falls_below(
    name: str, training: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_way(monkeypatch, way)
    model = make_model(ALL_GRAPHS[name]).double().train(training)
    x = torch.randn(80, FEATURES, dtype=torch.float64)
    torch.manual_seed(1)
    full = model(x)
    eta = float(full.entropy[1].detach().median()) + 1e-7
    torch.manual_seed(1)
    stopped = model(x, eta=eta)
    assert torch.equal(stopped.nodes[1], full.nodes[1]), "the first step happens before any exit"
    sharp = full.entropy[1] < eta
    assert torch.equal(stopped.length == 1, sharp | (full.length == 1))
    for t in range(1, stopped.depth):
        assert torch.equal(stopped.walking[t], (stopped.length > t))
        over = ~stopped.walking[t]
        assert bool((stopped.steps[t].evidence[over] == 0).all())
        assert torch.equal(stopped.nodes[t + 1][over], stopped.nodes[t][over])
    ended = stopped.entropy[stopped.length, torch.arange(80)] < eta
    at_leaf = torch.from_numpy(model.graph.is_leaf.copy())[stopped.nodes[-1]]
    assert bool((ended | at_leaf).all())
    if not training:
        assert torch.equal(stopped.length, full.exit(eta).depth)
    stopped.beliefs[-1].log().sum().backward()


@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_a_batch_that_exits_as_a_whole_is_still_a_full_trace(name: str) -> None:
    model = make_model(ALL_GRAPHS[name], experts=mixed_specs(ALL_GRAPHS[name]), estimator="counterfactual")
    trace = model(torch.randn(6, FEATURES), eta=float("inf"))
    assert trace.length.tolist() == [1] * 6
    assert trace.depth == model.graph.depth
    assert torch.equal(trace.beliefs[-1], trace.beliefs[1])
    trace.beliefs[-1].sum().backward()


# --- stopping for real ------------------------------------------------------------------------------------------------


@contextmanager
def counted_rows(model: nbsr.NBSR) -> Iterator[dict[str, list[int]]]:
    """Rows that pass the backbone and the experts and routers of each level, call by call."""
    rows: dict[str, list[int]] = {}
    watched: list[tuple[str, nn.Module, str]] = [("backbone", model.backbone, "forward")]
    watched += [(f"experts {level + 1}", bank, "forward") for level, bank in enumerate(model.experts)]
    watched += [(f"routers {level}", bank, "chosen") for level, bank in enumerate(model.routers)]

    def counting(name: str, call: Any) -> Any:
        def counted(first: Tensor, *rest: Any) -> Any:
            rows.setdefault(name, []).append(len(first))
            return call(first, *rest)

        return counted

    with ExitStack() as watching:
        for name, module, method in watched:
            watching.enter_context(patch.object(module, method, counting(name, getattr(module, method))))
        yield rows


@pytest.mark.parametrize("name", ALL_GRAPHS)
@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.8, 1.0])
def test_predict_does_no_work_for_samples_that_have_left(name: str, quantile: float) -> None:
    graph = ALL_GRAPHS[name]
    model = make_model(graph).double().eval()
    x = torch.randn(200, FEATURES, dtype=torch.float64)
    first = model(x).detach().entropy[1]
    eta = float(first.quantile(quantile)) + (1e-6 if quantile else -1e-6)
    expected = model(x).exit(eta).depth
    with counted_rows(model) as rows:
        predicted = model.predict(x, eta=eta)
    assert torch.equal(predicted.depth, expected)
    assert rows["backbone"] == [200]
    for level in range(1, graph.depth + 1):
        walkers = int((predicted.depth >= level).sum())
        assert sum(rows.get(f"experts {level}", [])) == walkers
        assert sum(rows.get(f"routers {level - 1}", [])) == walkers
    if quantile == 1.0:
        assert not any(key in rows for key in ("experts 2", "routers 1")), "nobody is left to ask"


@pytest.mark.parametrize(("chunk", "calls"), [(200, [200]), (64, [64, 64, 64, 8]), (199, [199, 1]), (10_000, [200])])
def test_predict_embeds_each_chunk_once(chunk: int, calls: list[int]) -> None:
    model = make_model(GRAPHS["tree"])
    with counted_rows(model) as rows:
        model.predict(torch.randn(200, FEATURES), eta=-4.0, chunk=chunk)
    assert rows["backbone"] == calls


@pytest.mark.parametrize("training", [True, False])
def test_predict_leaves_every_training_flag_as_it_was(training: bool) -> None:
    model = make_model(GRAPHS["tree"]).train(training)
    list(model.backbone.children())[1].train(not training)  # such as a frozen backbone in a model under training
    before = {name: module.training for name, module in model.named_modules()}
    model.predict(torch.randn(5, FEATURES))
    assert {name: module.training for name, module in model.named_modules()} == before
    with pytest.raises(nbsr.InputError):
        model.predict(torch.full((5, FEATURES), float("nan")))
    assert {name: module.training for name, module in model.named_modules()} == before


def test_predict_works_in_evaluation_mode_also_for_a_model_under_training() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(FEATURES, ORACLE), nn.BatchNorm1d(ORACLE), nn.Dropout(0.5))
    model = nbsr.NBSR(backbone, GRAPHS["tree"], 5, ORACLE).train()
    x = torch.randn(50, FEATURES)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    first, again = model.predict(x), model.predict(x)
    assert torch.equal(first.alpha, again.alpha), "no sampled routes, no dropout"
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items()), "no statistics moved"
    assert not first.alpha.requires_grad


def test_evaluation_is_repeatable_and_training_samples() -> None:
    model, x = make_model(GRAPHS["tree"]), torch.randn(100, FEATURES)
    model.eval()
    assert torch.equal(model(x).nodes, model(x).nodes)
    model.train()
    assert not torch.equal(model(x).nodes, model(x).nodes)


# --- every path at once -----------------------------------------------------------------------------------------------


def soft_reference(model: nbsr.NBSR, h: Tensor, tau: float, side: Tensor | None, specs: Specs | None) -> list[Tensor]:
    """Beliefs of one oracle: each level adds every expert's evidence times the probability of standing there."""
    graph = model.graph
    reach: dict[int, Tensor] = {0: torch.ones((), dtype=h.dtype)}
    alphas = [model.prior.to(h.dtype)]
    for nodes in graph.levels[1:]:
        here = {node: torch.zeros((), dtype=h.dtype) for node in nodes}
        for parent, probability in reach.items():
            children = graph.nodes[parent].children
            if children:
                shares = torch.softmax(logits_at(model, parent, h, alphas[-1], side) / tau, dim=-1)
                for share, child in zip(shares, children, strict=True):
                    here[child] = here[child] + probability * share
        said = torch.stack([p * evidence_at(model, node, h, specs) for node, p in here.items()]).sum(0)
        alphas.append(alphas[-1] + (said * alphas[-1] if model.evidence == "relative" else said))
        reach = here
    return alphas


@pytest.mark.parametrize("kind", ["alike", "mixed", "relative"])
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_soft_routing_adds_all_evidence_weighted_by_reach(name: str, kind: str) -> None:
    graph, tau = ALL_GRAPHS[name], 0.6
    specs: Specs | None = mixed_specs(graph) if kind == "mixed" else None
    options: dict[str, Any] = {"evidence": "relative"} if kind == "relative" else {}
    options |= {} if specs is None else {"experts": specs}
    model = make_model(graph, routing="softmax", side_dim=2, **options).double().train()
    x, side = torch.randn(4, FEATURES, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    trace, h = model(x, side=side, tau=tau), model.backbone(x)
    expected = [
        torch.stack(b) for b in zip(*(soft_reference(model, h[b], tau, side[b], specs) for b in range(4)), strict=True)
    ]
    for got, belief in zip(trace.beliefs, expected, strict=True):
        torch.testing.assert_close(got, belief, rtol=1e-7, atol=1e-9)
    names, parameters = zip(*model.named_parameters(), strict=True)
    weights = torch.randn(graph.depth + 1, 4, 5, dtype=torch.float64)
    grads = [
        torch.autograd.grad((torch.stack(list(b)).log() * weights).sum(), parameters) for b in (trace.beliefs, expected)
    ]
    for label, got, belief in zip(names, *grads, strict=True):
        torch.testing.assert_close(got, belief, rtol=1e-6, atol=1e-9, msg=label)
    for label, grad in zip(names, grads[0], strict=True):
        if label.startswith("experts."):
            assert bool((grad.flatten(1) != 0).any(1).all()), "with soft routing every expert learns"


def test_a_model_trained_softly_walks_hard_when_evaluated() -> None:
    model = make_model(GRAPHS["tree"], routing="softmax").double().eval()
    x = torch.randn(20, FEATURES, dtype=torch.float64)
    trace = model(x)
    for b in range(20):
        walk = plain_walk(model, model.backbone(x)[b])
        assert trace.nodes[:, b].tolist() == walk.nodes
        torch.testing.assert_close(trace.beliefs[-1][b], walk.alphas[-1])
    assert torch.equal(model.predict(x).node, trace.nodes[-1])


def test_a_cold_soft_walk_is_the_hard_one() -> None:
    model = make_model(GRAPHS["tree"], routing="softmax").double()
    x = torch.randn(30, FEATURES, dtype=torch.float64)
    soft, hard = model.train()(x, tau=1e-6), model.eval()(x)
    assert torch.equal(soft.nodes, hard.nodes)
    torch.testing.assert_close(soft.alpha, hard.alpha)


# --- large graphs -----------------------------------------------------------------------------------------------------

LARGE = nbsr.DecisionGraph.uniform(depth=6, width=4)


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest storage that any operation made, parameters aside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.known = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in self.known:
                self.largest = max(self.largest, value.untyped_storage().nbytes() // value.element_size())
        return out


def test_a_graph_of_thousands_of_nodes_trains_and_predicts() -> None:
    model = make_model(LARGE, router=nbsr.RouterSpec(hidden=(8,)))
    assert LARGE.num_experts == 5460
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.randn(64, FEATURES), torch.randint(5, (64,))
    trace = model(x)
    loss = nbsr.objectives.nll(trace.beliefs[-1], y)
    loss.backward()
    visited = trace.usage > 0
    for node in range(1, len(LARGE), 97):
        level = LARGE.nodes[node].level
        for parameter in model.experts[level - 1].parameters():
            assert parameter.grad is not None
            moved = bool((parameter.grad[node - LARGE.levels[level].start] != 0).any())
            assert moved == bool(visited[node])
    optimizer.step()
    predicted = model.predict(x, eta=-6.0, max_vacuity=0.9)
    assert len(predicted) == 64
    assert int(predicted.depth.max()) <= 6


@pytest.mark.parametrize("crowded", [False, True], ids=["spread", "half at one leaf"])
@pytest.mark.parametrize("mode", ["predict", "forward", "train"])
def test_memory_grows_with_the_batch_not_with_the_nodes(mode: str, crowded: bool) -> None:
    batch, classes, hidden = 4096, 5, 16
    undistracted = nbsr.RouterSpec(hidden=(hidden,), bias=False, belief="none")
    model = nbsr.NBSR(nn.Identity(), LARGE, classes, ORACLE, router=undistracted).train(mode == "train")
    h = 1e3 * torch.randn(batch, ORACLE)  # large: routers are decided, so that crowds stay together in training too
    if crowded:
        h[: batch // 2] = h[0]
    with LargestTensor(model) as seen, torch.set_grad_enabled(mode == "train"):
        leaves = model.predict(h, chunk=batch).node if mode == "predict" else model(h).steps[-1].node
    counts = leaves.bincount()
    assert int((counts > 0).sum()) > 300
    assert (int(counts.max()) >= batch // 2) == crowded
    assert seen.largest >= batch * ORACLE, "the measurement must see the oracle at least"
    assert seen.largest <= 16 * batch * max(ORACLE, classes, hidden)
    assert seen.largest < batch * len(LARGE) * classes / 20


def test_memory_of_predict_is_bounded_by_its_chunk() -> None:
    model = make_model(GRAPHS["layered"])
    x = torch.randn(20_000, FEATURES)
    with LargestTensor(model) as seen:
        model.predict(x, chunk=500)
    assert seen.largest <= x.numel(), "nothing larger than what came in"


# --- against an independent entropy -----------------------------------------------------------------------------------


@settings(max_examples=10)
@given(name=st.sampled_from(list(ALL_GRAPHS)), seed=st.integers(0, 99), eta=st.floats(-9.0, -2.0))
def test_predict_stops_by_scipys_entropy_of_the_plain_walk(name: str, seed: int, eta: float) -> None:
    model = make_model(ALL_GRAPHS[name], seed=seed).double().eval()
    torch.manual_seed(seed)
    x = 3 * torch.randn(8, FEATURES, dtype=torch.float64)
    predicted = model.predict(x, eta=eta)
    with torch.no_grad():
        for b, row in enumerate(model.backbone(x)):
            walk = plain_walk(model, row)
            entropies = [float(stats.dirichlet(alpha.numpy()).entropy()) for alpha in walk.alphas[1:]]
            depth = next((t for t, value in enumerate(entropies, 1) if value < eta), len(entropies))
            assert int(predicted.depth[b]) == depth
            assert int(predicted.node[b]) == walk.nodes[depth]
            torch.testing.assert_close(predicted.alpha[b], walk.alphas[depth], rtol=1e-7, atol=1e-9)
            assert int(predicted.label[b]) == int(walk.alphas[depth].argmax())
            assert float(predicted.vacuity[b]) == pytest.approx(5 / float(walk.alphas[depth].sum()), rel=1e-6)
