"""Panels of any columns at any prices: budgets hold, nothing is bought twice, and rollouts equal a plain loop."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import nbsr_core as nbsr
from nbsr_core.errors import InputError
from nbsr_core.model.acquisition import Panels
from nbsr_core.model.autoregressive import frozen
from nbsr_core.model.experts import ExpertSpec
from nbsr_core.model.preprocessing import Knots

CLASSES = 3


@st.composite
def plain_panels(draw: st.DrawFn) -> tuple[list[float], list[list[int]], int]:
    """Some features in panels of unequal width, in any order; the others are free: prices, columns, features."""
    features = draw(st.integers(3, 9))
    places = draw(st.permutations(range(features)))
    columns, start = [], 0
    for _ in range(draw(st.integers(1, 4))):
        width = draw(st.integers(1, 3))
        if start + width <= features:
            columns.append(places[start : start + width])
            start += width
    costs = [draw(st.integers(1, 40)) / 10 for _ in columns]
    return costs, columns, features


def panels_of(plain: tuple[list[float], list[list[int]], int]) -> Panels:
    """Made in the test: the types of arguments are checked at random places, which strategies must not do."""
    costs, columns, features = plain
    return Panels.of([f"panel {i}" for i in range(len(columns))], costs, columns, features)


def model_of(bought: Panels, seed: int = 0, **options: object) -> nbsr.AutoregressiveNBSR:
    torch.manual_seed(seed)
    experts = ExpertSpec(hidden=(8, 8), activation="exp")
    return nbsr.AutoregressiveNBSR(bought, CLASSES, experts=experts, **options).eval()  # type: ignore[arg-type]


def plain_rollout(
    model: nbsr.AutoregressiveNBSR, x: Tensor, budget: float, eta: float | None = None
) -> list[tuple[list[int], Tensor]]:
    """Case by case, step by step, with lists: what each buys and what it believes in the end."""
    ends = []
    names, costs, columns = model.panels.names, model.panels.costs, model.panels.columns
    taken = {column for own in columns for column in own}
    for row in x:
        bought: list[int] = []
        alpha, left = model.prior.clone(), budget
        while True:
            shown = {*range(len(row))} - taken | {column for panel in bought for column in columns[panel]}
            features = torch.tensor([float(v) if i in shown else 0.0 for i, v in enumerate(row)])
            history = torch.tensor([float(i in bought) for i in range(len(names))])
            if bought:
                free = [float(row[i]) for i in range(len(row)) if i not in taken]
                own = [float(row[i]) for i in columns[bought[-1]]]
                padded = own + [0.0] * (model.panels.width - len(own))
                seen = torch.tensor(free + padded) if model.sight == "panel" else torch.cat([features, history])
                evidence = model.experts(seen[None], torch.tensor([bought[-1]]))[0]
                alpha = alpha + model.grown(alpha[None], evidence[None])[0]
            affordable = [i for i in range(len(names)) if i not in bought and costs[i] <= left + 1e-9]
            doubt = nbsr.dirichlet.entropy(alpha) if bought and eta is not None else None
            if not affordable or (doubt is not None and float(doubt) < (eta or 0.0)):
                break
            scores = model.router(torch.cat([features, alpha, history])[None])[0]
            panel = max(affordable, key=lambda i: float(scores[i]))
            bought, left = [*bought, panel], left - costs[panel]
        ends.append((bought, alpha))
    return ends


@settings(max_examples=25)
@given(
    plain=plain_panels(),
    seed=st.integers(0, 5),
    sight=st.sampled_from(["panel", "bought", "shared"]),
    growth=st.sampled_from(["absolute", "consistent"]),
    share=st.floats(0.0, 1.1),
)
def test_a_rollout_under_a_budget_is_what_a_plain_loop_does(
    plain: tuple[list[float], list[list[int]], int], seed: int, sight: str, growth: str, share: float
) -> None:
    bought = panels_of(plain)
    model = model_of(bought, seed, sight=sight, growth=growth)
    budget = min(bought.costs) + share * sum(bought.costs)
    x = torch.randn(6, bought.num_features, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        trace, expected = model(x, budget=budget), plain_rollout(model, x, budget)
        stopped, spent = model.predict(x, budget=budget)
    for case, (panels_bought, alpha) in enumerate(expected):
        assert [panel for panel in trace.bought[:, case].tolist() if panel >= 0] == panels_bought
        torch.testing.assert_close(trace.beliefs[-1][case], alpha, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(stopped.alpha[case], trace.beliefs[-1][case], rtol=1e-4, atol=1e-6)
        assert float(spent[case]) == pytest.approx(sum(bought.costs[panel] for panel in panels_bought))
    assert (spent <= budget + 1e-6).all()


@settings(max_examples=25)
@given(plain=plain_panels(), seed=st.integers(0, 5), growth=st.sampled_from(["absolute", "consistent"]))
def test_precision_grows_with_every_purchase_and_no_panel_is_bought_twice(
    plain: tuple[list[float], list[list[int]], int], seed: int, growth: str
) -> None:
    bought = panels_of(plain)
    model = model_of(bought, seed, growth=growth).train(seed % 2 == 0)
    x = torch.randn(16, bought.num_features, generator=torch.Generator().manual_seed(seed))
    trace = model(x, budget=0.7 * sum(bought.costs) + min(bought.costs))
    grew = trace.precision.diff(dim=0) > 0
    assert torch.equal(grew, trace.walking)
    for order in trace.bought.T.tolist():
        made = [panel for panel in order if panel >= 0]
        assert len(set(made)) == len(made)


@settings(max_examples=15)
@given(plain=plain_panels(), seed=st.integers(0, 5), sight=st.sampled_from(["bought", "shared"]))
def test_a_consistent_belief_is_its_last_experts_answer_in_whatever_order(
    plain: tuple[list[float], list[list[int]], int], seed: int, sight: str
) -> None:
    bought = panels_of(plain)
    model = model_of(bought, seed, sight=sight, growth="consistent")
    x = torch.randn(5, bought.num_features, generator=torch.Generator().manual_seed(seed))
    forward = torch.arange(len(bought)).expand(5, -1)
    with torch.no_grad():
        ends = [model(x, order=order).beliefs[-1] for order in (forward, forward.flip(1))]
        everything = torch.ones(5, len(bought))
        seen = model.unveiled(x, everything)
        answers = [model.evidence(seen, everything, order[:, -1]) for order in (forward, forward.flip(1))]
    for end, answer in zip(ends, answers, strict=True):
        mean = end / end.sum(1, keepdim=True)
        expected = 0.999 * answer / answer.sum(1, keepdim=True) + 0.001 / CLASSES
        torch.testing.assert_close(mean, expected, rtol=1e-3, atol=1e-5)
    if sight == "shared":
        means = [end / end.sum(1, keepdim=True) for end in ends]
        torch.testing.assert_close(means[0], means[1], rtol=1e-3, atol=1e-5)


def test_a_given_order_is_the_rollout_that_a_policy_in_that_order_makes() -> None:
    bought = Panels.of(("a", "b", "c"), (1.0, 2.0, 0.5), ((4,), (0, 2), (1,)), 5)
    model, x = model_of(bought, sight="bought"), torch.randn(7, 5)
    order = torch.tensor([2, 0, 1])
    rank = -order.argsort().float()
    with torch.no_grad():
        given_order = model(x, order=order.expand(7, -1))
        by_policy = model(x, lambda known: rank.expand(len(known), -1))
    for one, other in zip(given_order.beliefs, by_policy.beliefs, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(given_order.bought, by_policy.bought)
    known = model.visited(x, order.expand(7, -1), given_order)
    assert known.case.tolist() == [case for case in range(7) for _ in range(3)]
    torch.testing.assert_close(known.alpha[2::3], given_order.beliefs[2])
    assert known.bought[1::3].tolist() == [[0.0, 0.0, 1.0]] * 7


def test_fifty_one_panels_cost_no_more_than_their_number() -> None:
    bought = Panels.of([f"x{i}" for i in range(51)], [1.0] * 51, [(i,) for i in range(51)], 51)
    assert len(bought.graph) == 52
    assert bought.steps_within(14.0) == 14
    trace = model_of(bought, sight="shared", growth="consistent", budget=14.0)(torch.randn(4, 51))
    assert trace.depth == 14
    assert trace.cost[-1].eq(14).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 40))
def test_steps_within_a_budget_are_the_cheapest_panels_that_it_pays(costs: list[int], budget: int) -> None:
    bought = Panels.of(
        [str(i) for i in range(len(costs))], list(map(float, costs)), [(i,) for i in range(len(costs))], len(costs)
    )
    paid = [total for total in accumulate(sorted(costs)) if total <= budget]
    assert bought.steps_within(float(budget)) == len(paid)


def test_panels_come_back_from_plain_values() -> None:
    bought = Panels.of(("a", "root"), (1.0, 2.5), ((3,), (0, 2)), 5)
    assert Panels.from_json(bought.to_json()) == bought
    assert bought.free_columns == (1, 4)
    assert bought.graph.num_experts == 2  # a panel may well be called root


def test_a_relaxed_purchase_of_one_panel_is_that_purchase() -> None:
    bought = Panels.of(("a", "b", "c"), (1.0, 2.0, 0.5), ((4,), (0, 2), (1,)), 5)
    for sight in ("bought", "shared"):
        model, x = model_of(bought, sight=sight, growth="consistent"), torch.randn(7, 5)
        known, panel = model.start(x), torch.tensor([0, 1, 2, 0, 1, 2, 0])
        share = torch.nn.functional.one_hot(panel, 3).float().requires_grad_()
        after = model.relaxed(known, x, share)
        torch.testing.assert_close(after, model.bought_also(known, x, panel).alpha)
        with frozen(model.experts):
            (model.relaxed(known, x, share)[:, 0] / model.relaxed(known, x, share).sum(1)).sum().backward()
        assert share.grad is not None
        assert all(parameter.grad is None for parameter in model.experts.parameters())
        assert all(parameter.requires_grad for parameter in model.experts.parameters())


def test_knots_are_quantiles_and_see_no_hidden_feature() -> None:
    rows = torch.arange(9.0)[:, None].repeat(1, 2)
    knots = Knots(2, 3).fit(rows)
    assert knots(torch.tensor([[3.0, 8.0]])).tolist() == [[[2.0, 7.0], [0.0, 4.0], [0.0, 1.0]]]  # at 1, 4 and 7
    bought = Panels.of(("a", "b"), (1.0, 1.0), ((0,), (1,)), 2)
    model = model_of(bought, sight="shared", knots=3, standardise=True)
    assert model.knots is not None
    assert model.standardise is not None
    model.knots.fit(rows)
    model.standardise.fit(rows)
    one, cases = torch.tensor([[1.0, 0.0]]), [torch.tensor([[4.0, hidden]]) for hidden in (0.0, 9.0)]
    said = [model.evidence(model.unveiled(case, one), one, torch.tensor([0])) for case in cases]
    assert torch.equal(*said)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="different names"):
        Panels.of(("a", "a"), (1.0, 1.0), ((0,), (1,)), 2)
    with pytest.raises(InputError, match="one panel at most"):
        Panels.of(("a", "b"), (1.0, 1.0), ((0,), (0, 1)), 3)
    with pytest.raises(InputError, match="one panel at most"):
        Panels.of(("a",), (1.0,), ((5,),), 2)
    with pytest.raises(InputError, match="finite and > 0"):
        Panels.of(("a",), (math.inf,), ((0,),), 2)
    bought = Panels.of(("a", "b"), (1.0, 1.0), ((0,), (1,)), 2)
    with pytest.raises(InputError, match="up to 1, got 2"):
        model_of(bought, budget=1.0)(torch.zeros(1, 2), budget=2.0)
    with pytest.raises(InputError, match=r"0\.5 buys nothing: the cheapest panel costs 1"):
        model_of(bought)(torch.zeros(1, 2), budget=0.5)
