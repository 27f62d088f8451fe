"""The trace: one walk that knows the outcome of every threshold, and can account for every step of it."""

from __future__ import annotations

import copy
import math
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import FEATURES, GRAPHS, ORACLE, make_model
from reference import PADDED, SHARED, WAYS, mixed_specs, take_way
from torch import Tensor

import nbsr_core as nbsr

ALL_GRAPHS = {**GRAPHS, "padded": PADDED, "shared": SHARED}
del ALL_GRAPHS["chain"]  # always the same way: nothing to tell apart
VARIANTS = ["plain", "mixed", "calibrated", "density", "all of it"]
CLASSES = 5


def with_costs(graph: nbsr.DecisionGraph) -> nbsr.DecisionGraph:
    """The same graph with costs in quarters, so that sums of them are exact."""
    plain = graph.to_dict()
    for i, node in enumerate(graph.nodes[1:]):
        plain["nodes"][node.name]["cost"] = 0.25 * (1 + i % 7)
    return nbsr.DecisionGraph.from_dict(plain)


Case = tuple[nbsr.NBSR, Tensor, Tensor | None]


def prepared(name: str, variant: str, dtype: torch.dtype = torch.float64) -> Case:
    """A model of that kind in evaluation mode, 60 inputs, and their side information if it wants any."""
    return copy.deepcopy(_prepared(name, variant, dtype))


@cache
def _prepared(name: str, variant: str, dtype: torch.dtype) -> Case:
    """The first of some random models whose walks end at every depth where the graph has leaves."""
    graph = with_costs(ALL_GRAPHS[name])
    depths = {node.level for node in graph.nodes if not node.children}
    for seed in range(60):
        model, x, side = _random_case(graph, variant, dtype, seed)
        with torch.no_grad():
            trace = model(x, side=side)
        counts = trace.length.bincount(minlength=graph.depth + 1)
        if all(int(counts[depth]) >= 3 for depth in depths):
            return model, x, side
    raise AssertionError("no random model walks to all depths")


def _random_case(graph: nbsr.DecisionGraph, variant: str, dtype: torch.dtype, seed: int) -> Case:
    everything = variant == "all of it"
    options: dict[str, Any] = {}
    if variant == "mixed" or everything:
        options["experts"] = mixed_specs(graph)
    if variant == "density" or everything:
        options["density"] = nbsr.DensityFactor(ORACLE)
    if everything:
        options |= {"estimator": "counterfactual", "side_dim": 2, "prior_weight": 3.0}
    model = make_model(graph, CLASSES, seed=seed, **options).to(dtype).eval()
    torch.manual_seed(seed)
    x, fresh = 2 * torch.randn(60, FEATURES, dtype=dtype), 2 * torch.randn(200, FEATURES, dtype=dtype)
    x[:5] *= 3  # some stranger than anything that the density factor sees
    side = torch.randn(60, 2, dtype=dtype) if model.side_dim else None
    with torch.no_grad():
        if model.density is not None:
            model.fit_density(model.backbone(fresh))
        if variant == "calibrated" or everything:
            trace = model(fresh, side=torch.randn(200, 2, dtype=dtype) if model.side_dim else None)
            guess = trace.exit(None).label
            model.calibrate(trace, torch.where(torch.rand(200) < 0.6, guess, torch.randint(CLASSES, (200,))))
    return model, x, side


def separating_etas(trace: nbsr.BeliefTrace, most: int = 4) -> list[float]:
    """Thresholds clear of every entropy, so that rounding cannot decide, spread over all of them."""
    values = trace.entropy[1:].detach().flatten().sort().values
    gaps = values.diff()
    wide = (gaps > 1e-4).nonzero().flatten()
    wide = wide[torch.linspace(0, len(wide) - 1, most).long()].unique()
    return [float(values[i] + gaps[i] / 2) for i in wide]


def assert_same(left: nbsr.Prediction, right: nbsr.Prediction, rtol: float = 1e-9) -> None:
    for name in ("label", "depth", "node", "abstained"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name
    for name in ("alpha", "vacuity", "probs"):
        torch.testing.assert_close(getattr(left, name), getattr(right, name), rtol=rtol, atol=rtol, msg=name)


# --- exits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_predict_equals_the_exit_of_a_full_walk_at_every_threshold(
    name: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, side = prepared(name, variant)
    with torch.no_grad():
        trace = model(x, side=side)
    etas = separating_etas(trace)
    depths = {tuple(trace.exit(eta).depth.tolist()) for eta in etas}
    assert len(depths) > 1, "the thresholds must make a difference"
    vacuities = trace.exit(etas[len(etas) // 2]).vacuity.sort().values
    limit = float((vacuities[29] + vacuities[30]) / 2)
    for i, eta in enumerate([None, *etas, float("inf")]):
        take_way(monkeypatch, WAYS[i % len(WAYS)])
        expected = trace.exit(eta, limit)
        assert_same(model.predict(x, eta=eta, max_vacuity=limit, side=side), expected)
        assert torch.equal(expected.abstained, expected.vacuity > limit)


@pytest.mark.parametrize("chunk", [1, 7, 14, 15, 16])
@pytest.mark.parametrize("name", ["tree", "padded"])
def test_predict_in_chunks_of_any_size_gives_the_same(name: str, chunk: int) -> None:
    model, x, side = prepared(name, "all of it")
    assert side is not None
    x, side = x[:15], side[:15]
    eta = separating_etas(model(x, side=side), most=3)[1]
    whole = model.predict(x, eta=eta, max_vacuity=0.5, side=side)
    assert_same(model.predict(x, eta=eta, max_vacuity=0.5, side=side, chunk=chunk), whole)


@pytest.mark.parametrize("variant", ["plain", "all of it"])
@pytest.mark.parametrize("name", ["layered", "padded"])
def test_predict_equals_the_exit_in_float32_too(name: str, variant: str) -> None:
    model, x, side = prepared(name, variant, torch.float32)
    with torch.no_grad():
        trace = model(x, side=side)
    for eta in [None, *separating_etas(trace, most=3)]:
        assert_same(model.predict(x, eta=eta, side=side, chunk=23), trace.exit(eta), rtol=1e-4)


def test_infinite_thresholds_mean_always_and_never() -> None:
    model, x, _ = prepared("uneven", "plain")
    trace = model(x)
    assert torch.equal(trace.exit(float("-inf")).depth, trace.length)
    assert torch.equal(trace.exit(None).depth, trace.length)
    assert torch.equal(model.predict(x, eta=float("-inf")).depth, trace.length)
    assert trace.exit(float("inf")).depth.tolist() == [1] * 60


@pytest.mark.parametrize("name", ALL_GRAPHS)
@settings(max_examples=8)
@given(etas=st.lists(st.floats(-40, 5), min_size=2, max_size=6))
def test_a_larger_threshold_never_walks_deeper(name: str, etas: list[float]) -> None:
    model, x, _ = prepared(name, "plain")
    with torch.no_grad():
        trace = model(x)
    depths = torch.stack([trace.exit_depth(eta) for eta in sorted(etas)])
    assert bool((depths.diff(dim=0) <= 0).all())
    assert bool((depths >= 1).all())
    assert bool((depths <= trace.length).all())


def test_the_exit_is_the_first_depth_below_the_threshold() -> None:
    model, x, _ = prepared("tree", "calibrated")
    trace = model(x).detach()
    for eta in separating_etas(trace):
        for b, depth in enumerate(trace.exit_depth(eta).tolist()):
            entropy = [float(nbsr.dirichlet.entropy(trace.alpha[t, b])) for t in range(1, trace.depth + 1)]
            below = [t for t, value in enumerate(entropy, 1) if value < eta]
            assert depth == (below[0] if below else trace.depth)


def test_predictions_carry_probabilities_that_sum_to_one_and_labels_also_when_abstaining() -> None:
    model, x, _ = prepared("tree", "plain")
    predicted = model.predict(x, max_vacuity=1e-9)
    assert bool(predicted.abstained.all())
    assert torch.equal(predicted.label, predicted.alpha.argmax(-1))
    torch.testing.assert_close(predicted.probs.sum(-1), torch.ones(60, dtype=torch.float64))
    assert not bool(model.predict(x).abstained.any())
    assert not bool(model.predict(x, max_vacuity=1.0).abstained.any()), "evidence leaves vacuity below 1"


def test_calibration_changes_probabilities_and_no_label() -> None:
    model, x, _ = prepared("tree", "calibrated")
    shown = model.predict(x)
    temperature = model.calibration.temperature.clone()
    model.calibration.reset()
    raw = model.predict(x)
    assert torch.equal(shown.label, raw.label)
    torch.testing.assert_close(shown.vacuity, raw.vacuity)
    power = raw.probs ** (1 / temperature[-1])
    torch.testing.assert_close(shown.probs, power / power.sum(-1, keepdim=True))


@pytest.mark.parametrize("name", ["tree", "uneven", "padded"])
def test_probabilities_of_the_whole_walk_are_those_of_predict(name: str) -> None:
    """Also where walks of a calibrated model end at different depths: each keeps the temperature of its last one."""
    model, x, _ = prepared(name, "calibrated")
    with torch.no_grad():
        trace = model(x)
    torch.testing.assert_close(trace.probabilities(), model.predict(x).probs)


def test_a_kept_trace_does_not_change_when_the_model_is_calibrated_again() -> None:
    model, x, _ = prepared("tree", "calibrated")
    with torch.no_grad():
        kept, same = model(x), model(x)
    before = kept.belief(2).clone()
    model.calibration.reset()
    assert torch.equal(same.belief(2), before)


def test_calibration_is_for_evaluation_only() -> None:
    model, x, _ = prepared("layered", "calibrated")
    trace = model.train()(x)
    assert torch.equal(trace.alpha, torch.stack(trace.beliefs))


# --- the frontier -----------------------------------------------------------------------------------------------------


def spent(graph: nbsr.DecisionGraph, trace: nbsr.BeliefTrace, depth: Tensor) -> Tensor:
    """What each walk has paid when it stops at `depth`, summed node by node."""
    return torch.tensor(
        [
            sum(graph.nodes[node].cost for node in trace.nodes[1 : d + 1, b].tolist())
            for b, d in enumerate(depth.tolist())
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("variant", ["plain", "all of it"])
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_the_frontier_equals_separate_evaluations_to_the_last_bit(name: str, variant: str) -> None:
    model, x, side = prepared(name, variant)
    y = torch.randint(CLASSES, (60,))
    with torch.no_grad():
        trace = model(x, side=side)
    etas = [float("-inf"), *separating_etas(trace), float("inf")]
    for frontier, walk_again in ((trace.frontier(y, etas), True), (trace.frontier(y), False)):
        assert len(frontier) == len(frontier.rows())
        for row in frontier.rows():
            predicted = trace.exit(row["eta"])
            if walk_again:
                assert_same(model.predict(x, eta=row["eta"], side=side), predicted)
            assert row["accuracy"] == float((predicted.label == y).double().mean())
            assert row["mean_depth"] == float(predicted.depth.double().mean())
            assert row["exited"] == float((predicted.depth < trace.length).double().mean())
            assert row["mean_cost"] == float(spent(model.graph, trace, predicted.depth).mean())
    assert trace.frontier(y, etas).eta.tolist() == etas
    for depth in range(trace.depth + 1):
        reached = trace.length.clamp(max=depth)
        assert torch.equal(trace.cost[depth], spent(model.graph, trace, reached)), "a walk that is over pays no more"


@pytest.mark.parametrize("name", ALL_GRAPHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_etas_the_frontier_misses_no_outcome(name: str, dtype: torch.dtype) -> None:
    model, x, _ = prepared(name, "plain", dtype)
    x, y = x[:12], torch.randint(CLASSES, (12,))
    with torch.no_grad():
        trace = model(x)
    values = sorted({float(v) for v in trace.entropy.flatten()})
    brute = [float("-inf"), *values, *((a + b) / 2 for a, b in pairwise(values)), float("inf")]

    def outcomes(frontier: nbsr.Frontier) -> set[tuple[float, ...]]:
        return {(r["accuracy"], r["mean_depth"], r["mean_cost"], r["exited"]) for r in frontier.rows()}

    assert outcomes(trace.frontier(y)) == outcomes(trace.frontier(y, brute))


def test_the_frontier_rises_in_eta_and_falls_in_depth() -> None:
    model, x, _ = prepared("tree", "plain")
    frontier = model(x).frontier(torch.randint(CLASSES, (60,)))
    assert bool((frontier.eta.diff() > 0).all())
    assert bool((frontier.mean_depth.diff() <= 0).all())
    assert bool((frontier.mean_cost.diff() <= 0).all())
    assert bool((frontier.exited.diff() >= 0).all())
    assert frontier.mean_depth[0] == 3
    assert frontier.mean_depth[-1] == 1
    assert (float(frontier.exited[0]), float(frontier.exited[-1])) == (0.0, 1.0)


def test_a_large_trace_is_thinned_but_keeps_both_ends() -> None:
    model = make_model(GRAPHS["tree"]).eval()
    frontier = model(torch.randn(3000, FEATURES)).frontier(torch.randint(CLASSES, (3000,)))
    assert 100 < len(frontier) < 1000
    assert frontier.mean_depth[0] == 3
    assert frontier.mean_depth[-1] == 1


@settings(max_examples=8)
@given(loss=st.floats(0, 1), seed=st.integers(0, 99))
def test_the_cheapest_threshold_is_the_shallowest_that_loses_no_more_than_allowed(loss: float, seed: int) -> None:
    model, x, _ = prepared("tree", "plain")
    torch.manual_seed(seed)
    with torch.no_grad():
        trace = model(x)
    y = torch.where(torch.rand(60) < 0.5, trace.exit(None).label, torch.randint(CLASSES, (60,)))
    frontier = trace.frontier(y)
    best = max(float((trace.exit(eta).label == y).double().mean()) for eta in frontier.eta.tolist())
    assert frontier.peak == best >= float((trace.exit(None).label == y).double().mean())
    eta = frontier.cheapest(loss)
    chosen = trace.exit(eta)
    assert float((chosen.label == y).double().mean()) >= best - loss
    allowed = [row["mean_depth"] for row in frontier.rows() if row["accuracy"] >= best - loss]
    assert float(chosen.depth.double().mean()) == min(allowed)


def test_never_exiting_is_the_cheapest_where_every_exit_costs_too_much() -> None:
    model, x, _ = prepared("tree", "plain")
    trace = model(x).detach()
    wrong_before_the_end = (trace.alpha[1:3].argmax(-1) != trace.alpha[3].argmax(-1)).all(0)
    assert int(wrong_before_the_end.sum()) > 2
    picky = model(x[wrong_before_the_end])
    assert picky.frontier(picky.exit(None).label).cheapest(0.0) == float("-inf")


def test_an_end_that_spoils_the_walk_is_no_measure_of_what_may_be_lost() -> None:
    frontier = nbsr.Frontier(
        eta=torch.tensor([-math.inf, -3.0, -2.0, -1.0], dtype=torch.float64),
        accuracy=torch.tensor([0.7, 0.91, 0.905, 0.7], dtype=torch.float64),
        nll=torch.tensor([0.9, 0.4, 0.41, 0.8], dtype=torch.float64),
        mean_depth=torch.tensor([5.0, 3.0, 2.0, 1.0], dtype=torch.float64),
        mean_cost=torch.tensor([125.0, 40.0, 28.0, 10.0], dtype=torch.float64),
        exited=torch.tensor([0.0, 0.8, 0.9, 1.0], dtype=torch.float64),
    )
    assert frontier.cheapest(0.01) == -2.0
    assert frontier.cheapest(0.0, max_nll_loss=0.005) == -3.0
    assert frontier.cost_within(0.01) == 28.0


def test_a_threshold_that_the_prior_passes_is_recognised() -> None:
    prior = nbsr.dirichlet.prior(4)
    assert nbsr.is_vacuous(-1.7, prior)
    assert not nbsr.is_vacuous(-1.8, prior)


# --- the audit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_an_audit_accounts_for_every_step(name: str, variant: str, training: bool) -> None:
    model, x, side = prepared(name, variant)
    trace = model.train(training)(x, side=side)
    graph = model.graph
    index = 59
    audit = trace.audit(index)
    assert len(audit.steps) == int(trace.length[index])
    torch.testing.assert_close(audit.accumulated, trace.beliefs[-1][index].detach())
    shown = [trace.belief(t)[index].detach() for t in range(trace.depth + 1)]
    for t, step in enumerate(audit.steps):
        parent, node = graph.nodes[int(trace.nodes[t, index])], graph.nodes[int(trace.nodes[t + 1, index])]
        assert (step.depth, step.node) == (t + 1, node.name)
        assert list(step.alternatives) == [graph.name(child) for child in parent.children]
        assert sum(step.alternatives.values()) == pytest.approx(1.0)
        assert step.route_probability == step.alternatives[step.node]
        if not training:
            assert step.route_probability == max(step.alternatives.values())
        before, raw = (torch.distributions.Dirichlet(trace.beliefs[d][index].detach()) for d in (t, t + 1))
        after = torch.distributions.Dirichlet(shown[t + 1])
        shift = float(torch.distributions.kl_divergence(raw, before))
        assert step.belief_shift == pytest.approx(shift, rel=1e-6, abs=1e-9)
        assert step.belief_shift >= 0
        assert step.entropy == pytest.approx(float(after.entropy()), rel=1e-6)
        assert step.vacuity == pytest.approx(float(model.prior.sum()) / float(shown[t + 1].sum()))
        assert step.prediction == int(shown[t + 1].argmax())
        assert step.confidence == pytest.approx(float(after.mean.max()))
        assert torch.equal(step.evidence, trace.steps[t].evidence[index])
    assert (audit.density is None) == (trace.density is None)


def test_an_audit_reads_as_text_with_the_names_of_nodes_and_classes() -> None:
    model, x, _ = prepared("uneven", "density")
    names = ["cat", "dog", "bird", "deer", "truck"]
    trace = model(x)
    for index in range(0, 60, 6):
        audit = trace.audit(index)
        text = audit.render(names, top=2)
        assert text == trace.audit(index, names).render(top=2)
        assert [step.node for step in audit.steps] == [
            line.split()[1] for line in text.splitlines() if "route p=" in line
        ]
        assert f"{names[audit.steps[-1].prediction]}  (" in text
        for step in audit.steps:
            assert f"+{float(step.evidence.max()):.2f}" in text
        assert text.count("others") == len(audit.steps)
        assert "closeness to the training data" in text
        assert f"class {audit.steps[-1].prediction}" in audit.render()
    assert trace.audit(-1).render() == trace.audit(59).render()


# --- usage and pruning ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_GRAPHS)
@pytest.mark.parametrize("eta", [None, -4.0])
def test_usage_is_the_share_of_samples_that_visit_a_node(name: str, eta: float | None) -> None:
    model = make_model(ALL_GRAPHS[name])
    trace = model(torch.randn(200, FEATURES), eta=eta)
    visits = [0] * len(model.graph)
    for b, length in enumerate(trace.length.tolist()):
        for node in trace.nodes[: length + 1, b].tolist():
            visits[node] += 1
    assert trace.usage.tolist() == pytest.approx([count / 200 for count in visits])
    for level, nodes in enumerate(model.graph.levels):
        reached = float((trace.length >= level).double().mean())
        assert float(trace.usage[nodes.start : nodes.stop].sum()) == pytest.approx(reached)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_a_pruned_model_predicts_alike_where_the_path_survives(name: str, variant: str) -> None:
    model, x, side = prepared(name, variant)
    with torch.no_grad():
        trace = model(x, side=side)
        for share in (1e-9, 0.25):
            smaller = model.pruned(trace.usage, share)
            assert smaller.graph == model.graph.pruned(trace.usage.numpy(), share)
            assert not smaller.training
            kept = {node.name for node in smaller.graph.nodes}
            edges = {(a.name, smaller.graph.name(b)) for a in smaller.graph.nodes for b in a.children}
            paths = [
                [model.graph.name(n) for n in trace.nodes[: int(trace.length[b]) + 1, b].tolist()] for b in range(60)
            ]
            survives = torch.tensor([set(path) <= kept and set(pairwise(path)) <= edges for path in paths])
            assert bool(survives.any())
            if share == 1e-9:
                assert bool(survives.all()), "nodes that nobody visits are nobody's loss"
            for eta in (None, separating_etas(trace, most=3)[1]):
                full, small = trace.exit(eta), smaller.predict(x, eta=eta, side=side)
                assert torch.equal(small.label[survives], full.label[survives])
                assert torch.equal(small.depth[survives], full.depth[survives])
                torch.testing.assert_close(small.alpha[survives], full.alpha[survives], rtol=1e-9, atol=1e-9)
                for b in survives.nonzero().flatten().tolist():
                    assert smaller.graph.name(int(small.node[b])) == model.graph.name(int(full.node[b]))


def test_a_pruned_model_is_smaller_trains_and_leaves_the_first_alone() -> None:
    model, x, _ = prepared("tree", "plain", torch.float32)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    smaller = model.train().pruned(model(x).usage, 0.2)
    assert smaller.training
    assert len(smaller.graph) < len(model.graph)
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.SGD(smaller.parameters(), lr=0.5)
    nbsr.objectives.nll(smaller(x).beliefs[-1], torch.randint(CLASSES, (60,))).backward()
    optimizer.step()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_linear_routers_can_be_pruned_too() -> None:
    model = make_model(PADDED, router=nbsr.RouterSpec(hidden=(), belief="mean"), side_dim=1).double().eval()
    x, side = 3 * torch.randn(100, FEATURES).double(), torch.randn(100, 1).double()
    trace = model(x, side=side).detach()
    smaller = model.pruned(trace.usage, 1e-9)
    torch.testing.assert_close(smaller.predict(x, side=side).alpha, trace.exit(None).alpha)


# --- keeping traces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("variant", ["plain", "all of it"])
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_batches_join_into_the_trace_of_the_whole(name: str, variant: str, training: bool) -> None:
    model, x, side = prepared(name, variant)
    model.train(training)
    parts = [model(x[i : i + 25], side=None if side is None else side[i : i + 25]) for i in range(0, 60, 25)]
    joined = nbsr.BeliefTrace.concat(parts)
    assert len(joined) == 60
    for attribute, dim in (("alpha", 1), ("evidence", 1), ("nodes", 1), ("walking", 1), ("entropy", 1), ("cost", 1)):
        expected = torch.cat([getattr(part, attribute) for part in parts], dim=dim)
        torch.testing.assert_close(getattr(joined, attribute), expected, rtol=1e-9, atol=1e-9)
    for t, step in enumerate(joined.steps):
        assert torch.equal(step.choice, torch.cat([part.steps[t].choice for part in parts]))
        assert torch.equal(step.logits, torch.cat([part.steps[t].logits for part in parts]))
        assert (step.relaxed is not None) == training
    if not training:
        whole = model(x, side=side)
        assert_same(joined.exit(-5.0), whole.exit(-5.0))
        assert joined.audit(40).render() == whole.audit(40).render()
    assert nbsr.BeliefTrace.concat(parts[:1]) is parts[0]


def test_batches_of_which_only_some_end_early_join_too() -> None:
    model, x, _ = prepared("uneven", "plain")
    length = model(x).length
    long, short = x[length == 3], x[length == 1]
    joined = nbsr.BeliefTrace.concat([model(long), model(short), model(long)])
    assert joined.length.tolist() == [3] * len(long) + [1] * len(short) + [3] * len(long)


@pytest.mark.parametrize("variant", ["plain", "all of it"])
def test_a_detached_trace_keeps_values_and_drops_the_computation_graph(variant: str) -> None:
    model, x, side = prepared("padded", variant)
    model.train()
    trace = model(x.requires_grad_(), side=side)
    kept = trace.detach()
    assert trace.beliefs[-1].requires_grad
    tensors = [*kept.beliefs, kept.alpha, kept.evidence, kept.entropy, kept.precision]
    for step in kept.steps:
        tensors += [value for field in fields(step) if (value := getattr(step, field.name)) is not None]
    tensors += [] if kept.density is None else [kept.density]
    assert not any(tensor.requires_grad for tensor in tensors)
    assert torch.equal(kept.alpha, trace.alpha)
    assert torch.equal(kept.nodes, trace.nodes)
    assert_same(kept.exit(-4.0), trace.detach().exit(-4.0))


def test_probabilities_at_any_depth_count_from_either_end() -> None:
    model, x, _ = prepared("tree", "plain")
    trace = model(x).detach()
    for depth in range(4):
        expected = trace.alpha[depth] / trace.alpha[depth].sum(-1, keepdim=True)
        torch.testing.assert_close(trace.probabilities(depth), expected)
        assert torch.equal(trace.probabilities(depth - 4), trace.probabilities(depth))
    assert torch.equal(trace.probabilities(), trace.probabilities(3))
