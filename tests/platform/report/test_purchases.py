"""What is bought, as a report shows it: read off the tables of the first seed, in words that need no model."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.report.groups import Group
from nbsr_platform.report.purchases import accuracy_for, purchases
from nbsr_platform.trials.results import TrialResult
from toys import make_trial

ORDERS = [
    {"step": 1, "panel": "blood <1>", "share": 0.75},
    {"step": 1, "panel": "scan", "share": 0.25},
    {"step": 2, "panel": "scan", "share": 0.6},
]
FRONTIER = [
    {"eta": 0.1, "accuracy": 0.9, "mean_cost": 40.0, "mean_depth": 2.0},
    {"eta": 0.5, "accuracy": 0.7, "mean_cost": 20.0, "mean_depth": 1.2},
]


def group(family: str, **tables: list[dict[str, Any]]) -> Group:
    return Group("ours", family, [(make_trial(), TrialResult("key", "finished", 1.0, tables=dict(tables)))])


def stop(number: int) -> dict[str, Any]:
    spent = float(100 - number)
    return {"name": f"d{number}", "cases": 7, "mean_cost": spent, "stopped_early": 0.5, "accuracy": 0.8}


def test_a_page_says_what_is_bought_for_whom_and_what_it_is_worth() -> None:
    text = purchases([group("nbsr", orders=ORDERS, frontier=FRONTIER, stops=[stop(1), stop(2)])])
    plain = re.sub(r"<[^>]+>", " ", text)
    assert "blood &lt;1&gt; (75%); scan (25%)" in text  # names come from files: they are escaped
    assert "for 20" in plain
    assert "70.0%" in plain
    assert "90.0%" in plain
    assert text.index("d2") < text.index("d1"), "the cheapest first"


def test_of_many_classes_the_cheapest_and_the_dearest_are_shown() -> None:
    text = purchases([group("nbsr", orders=ORDERS, frontier=FRONTIER, stops=[stop(n) for n in range(41)])])
    assert "the 6 cheapest and dearest of 41" in text
    assert "d40<" in text
    assert "d0<" in text
    assert "d20<" not in text


def test_models_that_buy_nothing_have_no_such_section() -> None:
    assert purchases([group("nbsr", frontier=FRONTIER)]) == ""


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=8), st.floats(0, 100))
def test_accuracy_for_money_is_the_best_that_it_pays(points: list[tuple[float, float]], money: float) -> None:
    rows = [{"mean_cost": cost, "accuracy": right} for cost, right in points]
    paid = [right for cost, right in points if cost <= money + 1e-9]
    assert accuracy_for(money, rows) == (max(paid) if paid else None)
