"""A backbone in stages: what is read where, what is left uncomputed, and what it costs."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import FEATURES, GRAPHS, ORACLE, make_model
from torch import Tensor, nn

import nbsr_core as nbsr
from nbsr_core.model.costs import multiply_adds, stage_macs
from nbsr_core.model.stages import cut

CLASSES, WIDTHS = 5, (7, 6, 4)
DEEP = {name: graph for name, graph in GRAPHS.items() if graph.depth >= 3}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "relative": {"evidence": "relative", "experts": nbsr.ExpertSpec(activation="exp", bound=100.0)},
    "normalised": {"normalise": True},
    "mixed experts": {"experts": [nbsr.ExpertSpec(hidden=(3,)), nbsr.ExpertSpec()]},
}


def dense(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with a bend after each, all side by side: layer i is "2i", its bend "2i + 1"."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip((FEATURES, *sizes), sizes, strict=False):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers)


def staged(graph: nbsr.DecisionGraph, sizes: tuple[int, ...] = WIDTHS, seed: int = 0, **options: Any) -> nbsr.NBSR:
    torch.manual_seed(seed)
    stages = nbsr.Stages.cut(dense(sizes), [str(2 * i + 1) for i in range(len(sizes))])
    return nbsr.NBSR(stages, graph, CLASSES, sizes, **options).double()


def fitted(model: nbsr.NBSR, seed: int = 0) -> nbsr.NBSR:
    """With a density factor at every stage and a temperature at every depth."""
    torch.manual_seed(seed)
    x, y = torch.randn(200, FEATURES).double(), torch.randint(CLASSES, (200,))
    model.eval()
    with torch.no_grad():
        if model.density is not None:
            model.fit_density(model.oracles(x), fresh=model.oracles(torch.randn(100, FEATURES).double()))
        trace = model(x)
        model.calibrate(trace, torch.where(torch.rand(200) < 0.6, trace.exit(None).label, y))
    return model


def factors(sizes: tuple[int, ...] = WIDTHS) -> list[nbsr.DensityFactor]:
    return [nbsr.DensityFactor(size) for size in sizes]


class Rows:
    """How many rows each stage has been asked for."""

    def __init__(self, model: nbsr.NBSR) -> None:
        self.seen: Counter[int] = Counter()
        assert isinstance(model.backbone, nbsr.Stages)
        for index, stage in enumerate(model.backbone.stages):
            stage.register_forward_hook(lambda _, given, __, index=index: self.seen.update({index: len(given[0])}))


# --- walks ------------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(list(DEEP)),
    options=st.sampled_from(list(OPTIONS)),
    stages=st.integers(1, 3),
    close=st.booleans(),
    seed=st.integers(0, 5),
)
def test_predict_equals_the_exits_of_one_walk_at_every_threshold(
    name: str, options: str, stages: int, close: bool, seed: int
) -> None:
    sizes = WIDTHS[:stages]
    given_factors = {"density": factors(sizes)} if close else {}
    model = fitted(staged(DEEP[name], sizes, seed, **OPTIONS[options], **given_factors), seed)
    x = 2 * torch.randn(40, FEATURES).double()
    with torch.no_grad():
        trace = model(x)
    doubts = trace.entropy[1:-1].flatten().sort().values
    clear = ((doubts[1:] + doubts[:-1]) / 2)[doubts.diff() > 1e-6]
    for eta in (None, -torch.inf, *clear[:: max(1, len(clear) // 8)].tolist(), torch.inf):
        told, read = model.predict(x, eta=eta, chunk=16), trace.exit(eta)
        assert torch.equal(told.depth, read.depth)
        assert torch.equal(told.node, read.node)
        torch.testing.assert_close(told.alpha, read.alpha, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["tree", "generalist"])
def test_only_rows_that_go_on_are_seen_by_the_next_stage(name: str) -> None:
    model = staged(DEEP[name]).eval()
    x = 2 * torch.randn(50, FEATURES).double()
    with torch.no_grad():
        trace = model(x)
    eta = float(trace.entropy[1].median())
    rows, depth = Rows(model), trace.exit(eta).depth
    model.predict(x, eta=eta)
    deep = {index: int((depth > index).sum()) for index in range(3)}
    assert 0 < deep[1] < 50
    assert rows.seen == Counter({index: count for index, count in deep.items() if count})


def test_no_further_stage_is_computed_when_everybody_has_left() -> None:
    model = staged(GRAPHS["tree"]).eval()
    rows = Rows(model)
    model.predict(torch.randn(9, FEATURES).double(), eta=torch.inf)
    assert rows.seen == {0: 9}
    model.predict(torch.randn(9, FEATURES).double())
    assert rows.seen == {0: 18, 1: 9, 2: 9}


def test_who_walks_to_the_end_of_a_short_branch_needs_no_deeper_stage() -> None:
    graph = nbsr.DecisionGraph.taxonomy(
        {"left": {"more": {"yet more": ["a", "b"], "some": ["c"]}}, "right": ["d", "e"]}
    )
    model = staged(graph).eval()
    x = torch.randn(80, FEATURES).double()
    with torch.no_grad():
        length = model(x).length
    rows = Rows(model)
    model.predict(x)
    assert [rows.seen[stage] for stage in range(3)] == [int((length > stage).sum()) for stage in range(3)]
    assert rows.seen[1] < 80


@pytest.mark.parametrize("routing", ["gumbel", "softmax"])
@pytest.mark.parametrize("name", GRAPHS)
def test_one_stage_is_the_single_oracle_to_the_last_bit(name: str, routing: Any) -> None:
    single = make_model(GRAPHS[name], routing=routing)
    one = nbsr.NBSR(nbsr.Stages([copy.deepcopy(single.backbone)]), GRAPHS[name], CLASSES, ORACLE, routing=routing)
    one.load_state_dict({k.replace("backbone.", "backbone.stages.0."): v for k, v in single.state_dict().items()})
    x, y = torch.randn(30, FEATURES), torch.randint(CLASSES, (30,))
    found = []
    for model in (single, one):
        torch.manual_seed(0)
        trace = model.train()(x)
        nbsr.Objective(every_depth=0.5)(trace, y)["loss"].backward()
        told = [model.eval().predict(x, eta=eta) for eta in (None, -3.0)]
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([*trace.beliefs, *(part for said in told for part in (said.alpha, said.depth)), *gradients])
    assert len(found[0]) == len(found[1])
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))


def test_a_level_reads_its_own_stage_and_deeper_levels_the_last() -> None:
    model = staged(nbsr.DecisionGraph.uniform(depth=4, width=2), (7, 6)).eval()
    x = torch.randn(20, FEATURES).double()
    first, last = model.oracles(x)
    assert (first.shape[1], last.shape[1]) == (7, 6)
    assert torch.equal(model.oracle(x), last)
    with torch.no_grad():
        trace = model(x)
        for depth, h in enumerate((first, last, last, last), start=1):
            position = trace.nodes[depth] - model.levels[depth - 1].first_node
            said = model.experts[depth - 1](h, position)
            torch.testing.assert_close(trace.steps[depth - 1].evidence, said)


@pytest.mark.parametrize("routing", ["gumbel", "softmax"])
def test_one_backward_pass_reaches_every_stage_and_no_shallow_belief_asks_a_deeper_one(routing: Any) -> None:
    model = staged(GRAPHS["tree"], routing=routing)
    trace = model(torch.randn(12, FEATURES).double())
    weights = [model.get_parameter(f"backbone.stages.{index}.{2 * index}.weight") for index in range(3)]
    for depth in (1, 2, 3):
        asked = torch.autograd.grad(trace.beliefs[depth].log().sum(), weights, retain_graph=True, allow_unused=True)
        assert [gradient is not None for gradient in asked] == [index < depth for index in range(3)]


def test_gradients_through_all_stages_are_those_of_finite_differences() -> None:
    model = staged(nbsr.DecisionGraph.uniform(depth=3, width=2), routing="softmax")
    x, y = torch.randn(4, FEATURES).double(), torch.randint(CLASSES, (4,))
    first = model.get_parameter("backbone.stages.0.0.weight")

    def loss(weight: Tensor) -> Tensor:
        trace = torch.func.functional_call(model, {"backbone.stages.0.0.weight": weight}, (x,))
        return nbsr.Objective(every_depth=1.0)(trace, y)["loss"]

    assert torch.autograd.gradcheck(loss, (first.detach().clone().requires_grad_(),))


def test_it_learns_in_training_mode_with_exits_too() -> None:
    model = staged(GRAPHS["tree"], training_eta=-3.0)
    trace = model(2 * torch.randn(40, FEATURES).double())
    assert bool((~trace.walking[-1]).any()), "somebody has left"
    trace.beliefs[-1].log().sum().backward()
    assert all(p.grad is not None for p in model.backbone.parameters())


# --- what is read off a trace -----------------------------------------------------------------------------------------


def test_each_stage_has_a_density_factor_of_its_own() -> None:
    model = fitted(staged(GRAPHS["tree"], density=factors()))
    known = torch.randn(30, FEATURES).double()
    with torch.no_grad():
        trace, plain = model(torch.cat([known, 50 * known])), staged(GRAPHS["tree"]).eval()
        plain.load_state_dict(model.state_dict(), strict=False)
        unscaled = plain(torch.cat([known, 50 * known]))
    assert len(trace.closeness) == 3
    oracles = model.oracles(torch.cat([known, 50 * known]))
    judges = [*model.earlier_density, model.density]
    for stage, (judge, h, factor) in enumerate(zip(judges, oracles, trace.closeness, strict=True)):
        assert judge is not None
        assert torch.equal(judge(h), factor)
        same = trace.nodes[stage + 1] == unscaled.nodes[stage + 1]  # routers see another belief, and may go another way
        assert bool(same.any())
        whole = unscaled.steps[stage].evidence * factor.unsqueeze(1)
        torch.testing.assert_close(trace.steps[stage].evidence[same], whole[same])
    assert trace.density is not None
    assert torch.equal(trace.density, trace.closeness[-1])
    trail = trace.audit(0)
    assert trail.closeness == tuple(float(factor[0]) for factor in trace.closeness)
    assert ", then " in trail.render().splitlines()[0]
    assert trail.density == trail.closeness[-1]


def test_a_model_with_its_factors_and_temperatures_survives_its_state_dict() -> None:
    model = fitted(staged(GRAPHS["uneven"], density=factors()))
    again = staged(GRAPHS["uneven"], seed=1, density=factors())
    again.load_state_dict(model.state_dict())
    x = 2 * torch.randn(30, FEATURES).double()
    for eta in (None, -4.0):
        told, expected = again.eval().predict(x, eta=eta), model.predict(x, eta=eta)
        assert torch.equal(told.alpha, expected.alpha)
        assert torch.equal(told.depth, expected.depth)


def test_pruning_keeps_the_predictions_of_a_staged_model() -> None:
    model = staged(GRAPHS["tree"]).eval()
    x = torch.randn(60, FEATURES).double()
    with torch.no_grad():
        smaller = model.pruned(model(x).usage, 1e-6)
    assert len(smaller.graph) < len(model.graph)
    torch.testing.assert_close(smaller.predict(x).alpha, model.predict(x).alpha)


# --- multiply-adds ----------------------------------------------------------------------------------------------------


def test_multiply_adds_of_dense_walks_are_those_counted_by_hand() -> None:
    graph = nbsr.DecisionGraph.uniform(depth=3, width=2)
    experts = [nbsr.ExpertSpec(hidden=(3,)), nbsr.ExpertSpec()]
    model = staged(graph, (7, 6), experts=experts, router=nbsr.RouterSpec(hidden=(32,))).eval()
    x = torch.randn(25, FEATURES).double()
    by_depth = [
        FEATURES * 7 + (7 + CLASSES) * 32 + 32 * 2 + 7 * 3 + 3 * CLASSES,  # stage 1, router, expert with a layer of 3
        7 * 6 + (6 + CLASSES) * 32 + 32 * 2 + 6 * CLASSES,
        (6 + CLASSES) * 32 + 32 * 2 + 6 * CLASSES,  # the second stage is there already
    ]
    with torch.no_grad():
        trace = replace(model(x), node_macs=model.node_macs(x))
    assert trace.macs is not None
    assert [trace.macs[depth].unique().tolist() for depth in range(4)] == [
        [sum(by_depth[:depth])] for depth in range(4)
    ]
    eta = float(trace.entropy[1].median())
    (row,) = trace.frontier(torch.zeros(25, dtype=torch.int64), [eta]).rows()
    stopped = model.predict(x, eta=eta).depth
    assert row["mean_macs"] == pytest.approx(sum(sum(by_depth[:depth]) for depth in stopped.tolist()) / 25)
    assert "mean_macs" not in model(x).frontier(torch.zeros(25, dtype=torch.int64)).rows()[0], "nobody counted them"


def test_multiply_adds_of_convolutions_are_those_counted_by_hand() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    expected = (8 * 3 * 9 * 10 * 10, 12 * 2 * 9 * 3 * 3)
    x = torch.randn(4, 3, 10, 10)
    assert stage_macs(nbsr.Stages.cut(network, ["2", "4"]), x) == expected
    assert stage_macs(network, x) == (sum(expected),)
    assert multiply_adds(network, x) == 4 * sum(expected)
    with torch.inference_mode():
        assert multiply_adds(nn.Linear(5, 3), torch.zeros(1, 5)) == 15


def test_rows_that_are_several_samples_are_not_counted() -> None:
    assert stage_macs(nn.Flatten(0, 1), torch.randn(2, 5, 3)) is None


# --- cutting ----------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Submodules that are called one after another, among functions; and one that reaches back."""

    def __init__(self, reaches_back: bool = False) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 6)
        self.reaches_back = reaches_back

    def forward(self, x: Tensor) -> Tensor:
        early = self.stem(x).relu()
        x = self.body(early)
        x = x + early if self.reaches_back else x
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def test_the_stages_of_a_network_give_what_it_gives() -> None:
    network, x = Residual().eval(), torch.randn(5, 3, 9, 9)
    stem, body, head = nbsr.Stages.cut(network, ["stem", "body", "head"])(x)
    torch.testing.assert_close(stem, network.stem(x).mean((2, 3)))
    torch.testing.assert_close(body, network.body(network.stem(x).relu()).mean((2, 3)))
    assert torch.equal(head, network(x))
    assert {id(p) for p in nbsr.Stages.cut(network, ["body", "head"]).parameters()} == {
        id(p) for p in network.parameters()
    }


def test_a_stage_may_end_inside_a_part_of_the_network() -> None:
    network = nn.Sequential(dense((7, 6)), dense((6,))[1])
    first, last = nbsr.Stages.cut(network, ["0.1", "1"])(torch.randn(3, FEATURES))
    assert (first.shape[1], last.shape[1]) == (7, 6)


@pytest.mark.parametrize(
    ("network", "ends", "message"),
    [
        (dense((7, 6)), [], "at least one submodule"),
        (dense((7, 6)), ["1", "conv"], "Sequential has no submodule 'conv'; it has '0', '1', '2', '3'"),
        (dense((7, 6)), ["3", "1"], "in the order in which they are called"),
        (dense((7, 6)), ["0", "0", "3"], "named once each"),
        (dense((7, 6)), ["1"], "'2' comes after the last stage, '1', and has weights"),
        (Residual(reaches_back=True), ["body", "head"], "only the output of 'body' is handed on"),
        (nn.Bilinear(2, 2, 2), ["x"], "no submodule 'x'; it has none"),
    ],
)
def test_a_network_that_cannot_be_cut_so_is_told_why(network: nn.Module, ends: list[str], message: str) -> None:
    with pytest.raises(nbsr.InputError, match=message):
        cut(network, ends)


def test_sizes_factors_and_levels_must_fit_the_stages() -> None:
    stages = nbsr.Stages.cut(dense((7, 6)), ["1", "3"])
    graph = nbsr.DecisionGraph.uniform(depth=2, width=2)
    with pytest.raises(nbsr.InputError, match="a size for each of the backbone's 2 stages, got 6"):
        nbsr.NBSR(stages, graph, CLASSES, 6)
    with pytest.raises(nbsr.InputError, match=r"must return \[B, oracle_dim=5\], got \[3, 7\]"):
        nbsr.NBSR(stages, graph, CLASSES, [5, 6]).predict(torch.randn(3, FEATURES))
    with pytest.raises(nbsr.InputError, match="graph of at least as many levels, got 1"):
        nbsr.NBSR(stages, nbsr.DecisionGraph.chain(1), CLASSES, [7, 6])
    with pytest.raises(nbsr.InputError, match="one factor per stage, 2 of them, got 1"):
        nbsr.NBSR(stages, graph, CLASSES, [7, 6], density=nbsr.DensityFactor(6))
    model = nbsr.NBSR(stages, graph, CLASSES, [7, 6], density=factors((7, 6)))
    with pytest.raises(nbsr.InputError, match="the oracles of 2 stages, got those of 1"):
        model.fit_density(torch.randn(40, 6))
