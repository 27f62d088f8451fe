"""Tables that are drawn: their distribution, and what exact posteriors make of it."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nbsr_core.domains.acquisition.cubes import Cube, cube, cube_nm, cube_prices
from nbsr_core.domains.acquisition.data import AcquisitionData
from nbsr_core.domains.acquisition.exact import CubePosterior, Table, cube_reference, exact_figures, signpost
from nbsr_core.domains.acquisition.tables import load
from nbsr_core.errors import InputError


@pytest.mark.parametrize(("deviation", "label"), [(0.1, 0), (0.1, 5), (0.3, 7)])
def test_a_class_shows_its_code_and_everything_else_is_noise(deviation: float, label: int) -> None:
    x, y = cube(deviation).rows(20_000, seed=1)
    own = x[y == label].double()
    for feature in range(20):
        bit = feature - label
        shows = 0 <= bit < 3
        mean, spread = (float(label >> bit & 1), deviation) if shows else (0.5, 0.3)
        assert stats.kstest(own[:, feature].numpy(), "norm", args=(mean, spread)).pvalue > 1e-4, feature


def test_classes_and_contexts_are_alike_likely() -> None:
    x, y = cube_nm().rows(20_000, seed=2)
    context = x[:, :5].argmax(1)
    counts = torch.bincount(context * 8 + y, minlength=40)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


def test_only_the_block_of_the_context_shows_the_class() -> None:
    x, y = cube_nm().rows(20_000, seed=3)
    context, blocks = x[:, :5].argmax(1), x[:, 5:].view(-1, 5, 10)
    for block in range(5):
        inside = blocks[(context == block) & (y == 7), block, 7:].double()  # class 7 shows 1, 1, 1 at features 7, 8, 9
        outside = blocks[(context != block) & (y == 7), block, 7:].double()
        assert stats.kstest(inside.flatten().numpy(), "norm", args=(1.0, 0.1)).pvalue > 1e-4
        assert stats.kstest(outside.flatten().numpy(), "norm", args=(0.5, 0.3)).pvalue > 1e-4


def test_the_context_is_one_panel_of_five_noisy_values_at_price_one() -> None:
    panels = cube_nm().panels
    assert len(panels) == 51
    assert panels["context"] == ((0, 1, 2, 3, 4), 1.0)
    assert sorted(column for columns, _ in panels.values() for column in columns) == list(range(55))
    assert {price for _, price in panels.values()} == {1.0}
    x, _ = cube_nm().rows(5000, seed=4)
    told = x[:, :5] - torch.nn.functional.one_hot(x[:, :5].argmax(1), 5)
    assert stats.kstest(told.flatten().double().numpy(), "norm", args=(0.0, 0.1)).pvalue > 1e-4


def test_the_second_block_tells_the_same_at_twice_the_price() -> None:
    table = cube_prices()
    assert [price for _, price in table.panels.values()] == [1.0] * 10 + [2.0] * 10
    x, y = table.rows(20_000, seed=5)
    for block in (x[:, :10], x[:, 10:]):
        assert stats.kstest(block[y == 2, 3].double().numpy(), "norm", args=(1.0, 0.1)).pvalue > 1e-4


def test_rows_follow_from_the_seed() -> None:
    (x, y), (again, y_again), (other, _) = (cube_nm().rows(50, seed) for seed in (6, 6, 7))
    assert torch.equal(x, again)
    assert torch.equal(y, y_again)
    assert not torch.equal(x, other)


def test_impossible_tables_are_refused() -> None:
    with pytest.raises(InputError, match="deviation must be a finite number > 0, got 0"):
        cube(0.0)
    with pytest.raises(InputError, match="at least 2 contexts, got 1"):
        cube_nm(contexts=1)
    with pytest.raises(InputError, match="at least one row, got 0"):
        cube().rows(0, seed=0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 50), max_size=6, unique=True), st.sampled_from([0.1, 0.3]))
def test_posteriors_are_those_of_bayes_by_hand(seed: int, bought: list[int], deviation: float) -> None:
    table = cube_nm(deviation)
    x, _ = table.rows(1, seed)
    mask = torch.zeros(1, 51)
    mask[0, bought] = 1.0
    weights = torch.zeros(8, dtype=torch.float64)
    for context, label in product(range(5), range(8)):
        log = 0.0
        for panel in bought:
            if panel == 0:
                told = [float(k == context) for k in range(5)]
                log += stats.norm(told, 0.1).logpdf(x[0, :5].numpy()).sum()
                continue
            block, feature = divmod(panel - 1, 10)
            shows = block == context and 0 <= feature - label < 3
            mean, spread = (float(label >> feature - label & 1), deviation) if shows else (0.5, 0.3)
            log += stats.norm(mean, spread).logpdf(float(x[0, 4 + panel]))
        weights[label] += math.exp(log)
    found = CubePosterior(table, x).classes(mask)[0]
    torch.testing.assert_close(found, weights / weights.sum(), rtol=1e-4, atol=1e-9)


def test_the_context_tells_nothing_at_first_and_features_tell_as_much_as_sampling_says() -> None:
    table = cube_nm(0.3)
    x, y = table.rows(60_000, seed=8)
    posterior = CubePosterior(table, x)
    nothing = torch.zeros(1, 51)
    gains = CubePosterior(table, x[:1]).gains(nothing)[0]
    assert abs(float(gains[0])) < 1e-5
    for panel in (1, 4):
        bought = torch.zeros(len(x), 51)
        bought[:, panel] = 1.0
        scores = posterior.classes(bought).log().gather(1, y[:, None]) + math.log(8)
        assert abs(float(gains[panel]) - float(scores.mean())) < 4 * float(scores.std()) / math.sqrt(len(x))


def test_exact_greedy_misses_the_context_and_pays_for_it() -> None:
    table = cube_nm(0.1)
    x, y = table.rows(400, seed=9)
    greedy = cube_reference(table, x, y, (3.0, 5.0))
    planned = cube_reference(table, x, y, (3.0, 5.0), context_first=True)
    for budget, by_greedy, by_plan in ((3.0, 0.34, 0.64), (5.0, 0.78, 0.92)):  # 1,200 draws, computed elsewhere
        assert abs(greedy[budget] - by_greedy) < 0.1
        assert abs(planned[budget] - by_plan) < 0.08
        assert planned[budget] > greedy[budget] + 0.05


def test_references_spend_no_more_than_the_budget() -> None:
    table = cube_prices()
    x, y = table.rows(100, seed=10)
    found = cube_reference(table, x, y, (0.5, 1.0, 30.0))
    assert found[0.5] < 0.3  # nothing can be bought: a guess
    assert found[1.0] < found[30.0]
    with pytest.raises(InputError, match="no context"):
        cube_reference(table, x, y, (1.0,), context_first=True)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.tuples(*[st.integers(1, 3)] * 3), st.integers(0, 7))
def test_dynamic_programming_finds_the_best_of_all_plans(seed: int, prices: tuple[int, int, int], budget: int) -> None:
    weights = torch.rand(2, 3, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3
    table = Table(weights / weights.sum(), prices)

    def best(part: torch.Tensor, open_: tuple[int, ...], money: int) -> float:
        """All plans, one by one: stop, or buy any panel and go on in each of its outcomes."""
        found = float(part.flatten(0, -2).sum(0).max())
        for axis in open_:
            if prices[axis] <= money:
                outcomes = [part.narrow(axis, value, 1) for value in range(part.shape[axis])]
                rest = tuple(other for other in open_ if other != axis)
                found = max(found, sum(best(outcome, rest, money - prices[axis]) for outcome in outcomes))
        return found

    assert math.isclose(table.best(budget), best(table.probability, (0, 1, 2), budget), abs_tol=1e-12)
    assert table.greedy(budget) <= table.best(budget) + 1e-12


def test_a_signpost_is_worth_more_to_a_plan_than_to_greedy() -> None:
    table = signpost(contexts=3, features=2, noise=0.05)
    assert math.isclose(table.best(3), 0.95**2)  # the context, then both bits of its block
    assert table.greedy(3) < 0.7
    assert math.isclose(table.best(0), 0.25)
    x, y = table.rows(50_000, seed=0)
    block = torch.stack([x[:, 1:].view(-1, 3, 2)[torch.arange(len(x)), x[:, 0], k] for k in range(2)], dim=1)
    right = (block[:, 0] + 2 * block[:, 1] == y).double().mean()
    assert abs(float(right) - 0.95**2) < 0.01


def test_tables_that_are_no_distributions_are_refused() -> None:
    with pytest.raises(InputError, match="add up to 1"):
        Table(torch.ones(2, 2), (1,))
    with pytest.raises(InputError, match="1 prices need as many axes and one for the class, got 3 axes"):
        Table(torch.ones(2, 2, 2) / 8, (1,))
    with pytest.raises(InputError, match="whole numbers > 0"):
        Table(torch.ones(2, 2) / 4, (0,))


def test_a_table_of_another_family_is_refused() -> None:
    x, _ = cube().rows(3, seed=0)
    with pytest.raises(InputError, match="rows must have 55 columns, got 20"):
        CubePosterior(cube_nm(), x)
    assert isinstance(cube(), Cube)


def test_references_stand_beside_drawn_tables_only() -> None:
    few = AcquisitionData(source="cube_nm", train_rows=10, valid_rows=10, test_rows=60, budgets=(1.0, 3.0))
    drawn = load(few, seed=0)
    cube_, part = cube_nm(), drawn.test
    found = exact_figures(drawn)
    by_greedy = cube_reference(cube_, part.x, part.y, (1.0, 3.0))
    planned = cube_reference(cube_, part.x, part.y, (1.0, 3.0), context_first=True)
    expected = {f"greedy/budget/{budget:g}/accuracy": value for budget, value in by_greedy.items()}
    assert found == expected | {f"budget/{budget:g}/accuracy": value for budget, value in planned.items()}
    assert exact_figures(load(AcquisitionData(source="digits", budgets=(2.0,)), seed=0)) == {}
