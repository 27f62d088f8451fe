"""The planner: near exact dynamic programming, signposts first, never over budget, the same for the same seed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.exact_plans import INSTANCES, SMALL, accuracy, splits_of, trained
from nbsr_core.domains.acquisition.buyers import FixedOrder
from nbsr_core.domains.acquisition.cubes import cube_prices
from nbsr_core.domains.acquisition.exact import Table, signpost
from nbsr_core.domains.acquisition.learners import AcquisitionLearner
from nbsr_core.domains.acquisition.models import MODELS
from nbsr_core.domains.acquisition.planner import ONE_ORDER, Planner
from nbsr_core.domains.domain import Signature
from nbsr_core.learning import seed_everything
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.acquisition import Panels


@cache
def at_a_signpost() -> tuple[Table, Splits, AcquisitionLearner]:
    table = signpost()
    splits = splits_of(table, 4000, (2, 3, 5))
    return table, splits, trained(splits)


def test_the_planner_buys_the_signpost_first_and_reaches_exact_dynamic_programming() -> None:
    table, splits, learner = at_a_signpost()
    for budget in (2, 3, 5):
        # half a point for 20,000 rows
        assert accuracy(learner, splits.test, budget) > 0.98 * table.best(budget) - 0.005, budget
        assert learner.trace(splits.test.x, float(budget)).bought[0].eq(0).all(), budget
    assert table.best(3) > 1.4 * table.greedy(3)


def test_the_same_seed_gives_the_same_planner() -> None:
    splits = splits_of(signpost(contexts=2, features=1), 600, (2,))
    first, second = (trained(splits, epochs=6) for _ in range(2))
    known = first.model.start(splits.test.x[:200])
    one, two = (learner.buyer.scores(known, splits.test.x[:200]) for learner in (first, second))
    assert torch.equal(one, two)


def test_a_saved_planner_plans_as_before() -> None:
    _, splits, learner = at_a_signpost()
    again = MODELS["planner"].build(SMALL, Signature.of(splits))
    again.load_state(learner.state())
    assert isinstance(again, AcquisitionLearner)
    for budget in (2.0, 5.0):
        assert torch.equal(
            again.trace(splits.test.x[:300], budget).bought, learner.trace(splits.test.x[:300], budget).bought
        )


@cache
def untrained_with_prices() -> tuple[AcquisitionLearner, torch.Tensor]:
    table = cube_prices()
    x, y = table.rows(64, seed=0)
    columns, prices = zip(*table.panels.values(), strict=True)
    panels = Panels.of(tuple(table.panels), prices, columns, 20)
    part = Split(x, y)
    splits = Splits(
        part, part, part, [str(k) for k in range(8)], table.feature_names, "drawn", True,
        structure={"panels": panels.to_json(), "budgets": [2.0, 4.0, 7.0, 10.0, 14.0]},
    )  # fmt: skip
    seed_everything(0)
    learner = MODELS["planner"].build(SMALL, Signature.of(splits))
    assert isinstance(learner, AcquisitionLearner)
    return learner, x


@settings(max_examples=20, deadline=None)
@given(st.floats(1.0, 14.0), st.lists(st.sampled_from([ONE_ORDER, 0.0, 2.0, 4.0, math.inf]), min_size=5, max_size=5))
def test_no_plan_spends_more_than_the_budget(budget: float, horizons: list[float]) -> None:
    """However far ahead it looks, and whatever it has learned."""
    learner, x = untrained_with_prices()
    learner.model.get_buffer("plan_horizon").copy_(torch.tensor(horizons))
    trace, prices = learner.trace(x, budget), learner.model.costs
    assert bool((trace.cost[-1] <= budget + 1e-9).all())
    for spent, bought in zip(trace.cost[-1].tolist(), trace.bought.T.tolist(), strict=True):
        others = [price for panel, price in enumerate(prices.tolist()) if panel not in bought]
        assert spent + min(others) > budget  # what is left buys nothing


def test_tours_end_with_the_budget_and_never_buy_twice() -> None:
    learner, x = untrained_with_prices()
    buyer, prices = learner.buyer, learner.model.costs
    assert isinstance(buyer, Planner)
    seed_everything(1)
    tour = buyer.tour(x)
    assert bool((tour >= 0).any(0).all())
    for case in tour.T.tolist():
        bought = [panel for panel in case if panel >= 0]
        assert case == bought + [-1] * (len(case) - len(bought))
        assert len(set(bought)) == len(bought)
        assert float(prices[bought].sum()) <= 14


def test_with_money_for_one_panel_its_worth_is_what_it_tells() -> None:
    """The recursion begins at greedy: nothing can follow, so nothing else counts."""
    learner, x = untrained_with_prices()
    buyer = learner.buyer
    assert isinstance(buyer, Planner)
    known = learner.model.start(x)
    panel = torch.full((len(x),), 13)
    known = replace(known, left=known.left.new_full((len(x),), 2.0))
    with torch.no_grad():
        then = learner.model.bought_also(known, x, panel)
        worth = buyer.worth(known, then)
    before, after = (torch.distributions.Categorical(alpha).entropy() for alpha in (known.alpha, then.alpha))
    torch.testing.assert_close(worth, before - after, rtol=1e-4, atol=1e-5)


def test_validation_keeps_greedy_where_planning_is_worse() -> None:
    _, splits, learner = at_a_signpost()
    buyer = learner.buyer
    assert isinstance(buyer, Planner)
    kept = {name: value.clone() for name, value in learner.model.state_dict().items()}
    try:
        with torch.no_grad():  # a plan that takes the worst panel for the best
            list(buyer.slow.parameters())[-2][1:] *= -1
        buyer.finish(splits)
        upside_down = learner.trace(splits.valid.x, 5.0)
        for horizon in buyer.horizons(5.0):
            other = learner.model(splits.valid.x, buyer.looking(horizon), budget=5.0)
            scores = [
                torch.nn.functional.cross_entropy(t.beliefs[-1].log(), splits.valid.y) for t in (upside_down, other)
            ]
            assert scores[0] <= scores[1] + 1e-6
    finally:
        learner.model.load_state_dict(kept)


def test_one_order_serves_all_where_networks_err() -> None:
    _, splits, learner = at_a_signpost()
    buyer, x = learner.buyer, splits.test.x[:300]
    assert isinstance(buyer, Planner)
    kept = {name: value.clone() for name, value in learner.model.state_dict().items()}
    try:
        with torch.no_grad():  # both take the worst panel for the best
            list(buyer.slow.parameters())[-2][1:] *= -1
            for last in list(learner.model.router.parameters())[-2:]:
                last.mul_(-1)
        buyer.finish(splits)
        assert learner.model.get_buffer("plan_horizon")[-1] == ONE_ORDER
        fixed = FixedOrder(learner.model, SMALL, learner.budgets)
        fixed.finish(splits)
        alike = learner.model(x, lambda known: fixed.scores(known, x), budget=5.0)
        assert torch.equal(learner.trace(x, 5.0).bought, alike.bought)
    finally:
        learner.model.load_state_dict(kept, strict=False)


@pytest.mark.slow
def test_the_planner_is_within_two_percent_of_exact_dynamic_programming_at_unequal_prices() -> None:
    """A signpost at price 2, features at 1: from a budget of 3 on it is worth its price, though it tells nothing."""
    table, rows, budgets, epochs = INSTANCES["signpost at price 2"]
    splits = splits_of(table, rows, budgets)
    learner = trained(splits, epochs=epochs)
    for budget in budgets:
        assert accuracy(learner, splits.test, budget) > 0.98 * table.best(budget) - 0.005, budget
