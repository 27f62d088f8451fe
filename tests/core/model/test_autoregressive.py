"""AR-NBSR: nobody sees what was not bought, nothing is bought twice, and one rollout tells every threshold."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nbsr_core as nbsr
from nbsr_core.errors import InputError
from nbsr_core.learning.objectives import Objective
from nbsr_core.model.acquisition import Known, doubt_of
from nbsr_core.model.experts import ExpertSpec

COSTS = (10.0, 15.0, 20.0, 30.0)
PANELS = nbsr.Panels(("blood", "liver", "lungs", "scan"), COSTS, free=3, width=5)
CLASSES = 6


def model_of(seed: int = 0, **options: object) -> nbsr.AutoregressiveNBSR:
    torch.manual_seed(seed)
    experts = ExpertSpec(hidden=(16, 16), activation="exp")
    return nbsr.AutoregressiveNBSR(PANELS, CLASSES, experts=experts, **options).eval()  # type: ignore[arg-type]


def cases(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, PANELS.num_features, generator=generator) < 0.4).float()


def columns_of(panel: int) -> slice:
    return slice(PANELS.free + PANELS.width * panel, PANELS.free + PANELS.width * (panel + 1))


@given(seed=st.integers(0, 20), training=st.booleans())
def test_every_panel_is_bought_exactly_once(seed: int, training: bool) -> None:
    model = model_of(seed).train(training)
    bought = model(cases(32, seed)).bought
    assert (bought.sort(0).values == torch.arange(4)[:, None]).all()


@pytest.mark.parametrize("sight", ["panel", "bought"])
def test_what_is_not_bought_changes_nothing(sight: str) -> None:
    model, x = model_of(sight=sight), cases(64)
    trace = model(x)
    for step in range(1, 5):
        hidden = x.clone()
        for case in range(len(x)):
            for panel in trace.bought[step:, case].tolist():
                hidden[case, columns_of(panel)] = 1 - hidden[case, columns_of(panel)]
        other = model(hidden)
        # The first `step` purchases, and the choice of the next, rest on what those unveiled.
        assert torch.equal(other.bought[:step], trace.bought[:step])
        assert torch.equal(other.beliefs[step], trace.beliefs[step])
        if step < 4:
            assert torch.equal(other.steps[step].logits, trace.steps[step].logits)


def test_the_policy_is_shown_the_masked_features_only() -> None:
    model, x = model_of(), cases(16)
    seen: list[Known] = []

    def policy(known: Known) -> Tensor:
        seen.append(known)
        return torch.rand(len(x), 4)

    trace = model(x, policy)
    for t, known in enumerate(seen):
        visible = torch.zeros_like(x, dtype=torch.bool)
        visible[:, : PANELS.free] = True
        for case in range(len(x)):
            for panel in trace.bought[:t, case].tolist():
                visible[case, columns_of(panel)] = True
        assert torch.equal(known.features, torch.where(visible, x, 0.0))
        assert known.bought.sum(1).eq(t).all()


def test_what_is_bought_does_change_the_belief() -> None:
    model, x = model_of(), cases(64)
    trace = model(x)
    other = x.clone()
    for case in range(len(x)):
        where = columns_of(int(trace.bought[0, case]))
        other[case, where] = 1 - other[case, where]
    assert not torch.equal(model(other).beliefs[1], trace.beliefs[1])


def test_costs_add_up() -> None:
    model, x = model_of(), cases(32)
    trace = model(x)
    spent = torch.tensor(COSTS, dtype=torch.float64)[trace.bought].cumsum(0)
    assert torch.equal(trace.cost[1:], spent)
    assert trace.cost[0].eq(0).all()


def test_evidence_is_positive_and_beliefs_are_its_sum() -> None:
    trace = model_of()(cases(32))
    assert (trace.evidence > 0).all()
    assert (trace.precision.diff(dim=0) > 0).all()
    torch.testing.assert_close(trace.beliefs[-1], trace.prior + trace.evidence.sum(0))


def test_order_does_not_matter_to_experts_that_see_their_panel_alone() -> None:
    model, x = model_of(sight="panel"), cases(8)
    ends = [model(x, order=torch.tensor(order).expand(8, -1)).beliefs[-1] for order in itertools.permutations(range(4))]
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0])


@pytest.mark.parametrize("stop", ["dirichlet", "categorical"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_frontier_is_what_separate_evaluations_give(stop: str, calibrated: bool) -> None:
    model, x = model_of(stop=stop), cases(200)
    y = torch.randint(CLASSES, (200,), generator=torch.Generator().manual_seed(3))
    if calibrated:
        model.calibration.fit(torch.stack(model(x).beliefs).detach(), y)
    trace = model(x)
    doubts = trace.doubt[1:].detach().flatten().double().sort().values
    etas = ((doubts[1:] + doubts[:-1]) / 2)[torch.linspace(0, len(doubts) - 2, 30).long()].tolist()
    frontier = trace.frontier(y, etas)
    for index, eta in enumerate(etas):
        stopped, spent = model.predict(x, eta)
        assert float((stopped.label == y).double().mean()) == float(frontier.accuracy[index])
        assert float(stopped.depth.double().mean()) == float(frontier.mean_depth[index])
        assert float(spent.mean()) == float(frontier.mean_cost[index])
    assert frontier.mean_cost.min() < frontier.mean_cost.max() == sum(COSTS)


def test_doubt_is_the_entropy_that_the_rule_names() -> None:
    alpha = torch.rand(16, CLASSES) * 5 + 0.1
    reference = torch.distributions.Dirichlet(alpha)
    torch.testing.assert_close(doubt_of("dirichlet", alpha), reference.entropy(), rtol=1e-4, atol=1e-4)
    expected = torch.distributions.Categorical(probs=reference.mean).entropy()
    torch.testing.assert_close(doubt_of("categorical", alpha), expected)


def test_the_gradient_reaches_router_and_experts_end_to_end() -> None:
    model = model_of().train()
    y = torch.randint(CLASSES, (64,))
    Objective(entropy=1e-3, cost=0.01)(model(cases(64)), y)["loss"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_training_rollouts_end_below_the_threshold() -> None:
    always, never = model_of(training_eta=1e9).train(), model_of(training_eta=-1e9).train()
    x = cases(32)
    ended, full = always(x), never(x)
    assert ended.length.eq(1).all()  # everything is below the threshold after the first panel
    assert torch.equal(ended.beliefs[-1], ended.beliefs[1])
    assert torch.equal(ended.cost[-1], ended.cost[1])
    assert full.length.eq(4).all()


def test_a_given_order_trains_the_router_alone() -> None:
    model, x = model_of(), cases(16)
    trace = model(x, order=torch.tensor([2, 0, 3, 1]).expand(16, -1))
    assert torch.equal(trace.bought, torch.tensor([2, 0, 3, 1])[:, None].expand(-1, 16))
    trace.steps[2].logits[:, 1].sum().backward()
    assert all(p.grad is None or p.grad.eq(0).all() for p in model.experts.parameters())
    assert any(p.grad is not None and p.grad.ne(0).any() for p in model.router.parameters())


def test_bad_input() -> None:
    with pytest.raises(InputError, match="one cost each"):
        nbsr.Panels(("a", "b"), (1.0,), free=1, width=1)
    with pytest.raises(InputError, match="finite and > 0"):
        nbsr.Panels(("a",), (0.0,), free=1, width=1)
    with pytest.raises(InputError, match="23"):
        model_of()(torch.zeros(4, 7))
    with pytest.raises(InputError, match="hidden layer"):
        nbsr.AutoregressiveNBSR(PANELS, CLASSES, experts=ExpertSpec())
