"""What is bought, as pages show it: means over seeds, in words that need no model, the same as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import pytest
from nbsr_platform.report import page
from nbsr_platform.report.groups import Group
from nbsr_platform.report.markdown_page import markdown, plain
from nbsr_platform.report.purchases import Part, purchases
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.verdicts import answer
from nbsr_platform.study.study import Study
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import grid
from toys import make_trial

ORDERS = [
    {"step": 1, "panel": "blood <1>", "share": 0.75},
    {"step": 1, "panel": "scan", "share": 0.25},
    {"step": 2, "panel": "scan", "share": 0.6},
]
OTHER_ORDERS = [{"step": 1, "panel": "scan", "share": 1.0}]
FRONTIER = [{"eta": 0.1, "accuracy": 0.99, "mean_cost": 20.0, "mean_depth": 1.2}]


def result(metrics: dict[str, float], audits: Sequence[dict[str, Any]] = (), **tables: Any) -> TrialResult:
    return TrialResult(
        "key", "finished", 1.0, metrics=metrics, audits=list(audits), tables={"orders": ORDERS, **tables}
    )


def group(*results: TrialResult, family: str = "nbsr") -> Group:
    return Group("ours", family, [(make_trial(seed=seed), one) for seed, one in enumerate(results)])


def stop(number: int, accuracy: float = 0.8) -> dict[str, Any]:
    spent = float(100 - number)
    return {"name": f"d{number}", "cases": 7, "mean_cost": spent, "stopped_early": 0.5, "accuracy": accuracy}


def option(panel: str, diagnosis: str, confidence: float) -> dict[str, Any]:
    return {"panel": panel, "cost": 10.0, "score": 1.0, "doubt": 0.5, "diagnosis": diagnosis, "confidence": confidence}


def story(sample: int, predicted: str = "flu", *, bought: int = 1) -> dict[str, Any]:
    """As results of earlier code have it: two panels, of which some were bought."""
    options = [option("blood", "flu", 0.8), option("scan", "flu", 0.95)]
    steps = [
        {"step": n, "bought": own, "shown": "high", "spent": 10.0 * n, "needed": n <= bought, "instead": []}
        for n, own in enumerate(options, 1)
    ]
    return {
        **{"case": "patient", "sample": sample, "true": "flu", "predicted": predicted, "confidence": 0.8},
        **{"stop": "categorical", "eta": 1.012, "doubt_at_start": 1.1, "spent": 10.0 * bought, "price_of_all": 20.0},
        **{"steps": steps, "next_best": options[1] if bought < 2 else None, "text": "categorical entropy 1.1"},
    }


def captioned(parts: Sequence[Part], beginning: str) -> Part:
    (found,) = [part for part in parts if part.caption.startswith(beginning)]
    return found


def test_accuracy_under_budgets_is_the_mean_over_seeds_and_never_picked_on_test_rows() -> None:
    right = [0.6, 0.7, 0.8]
    seeds = [
        result({"budget/10/accuracy": value + 0.1, "budget/5/accuracy": value, "valid/budget/5/accuracy": 0.1})
        for value in right
    ]
    for one in seeds:
        one.tables["frontier"] = FRONTIER
    part = captioned(purchases([group(*seeds)]), "Accuracy against money")
    assert "at most so much may be spent" in part.caption
    assert "means over 3 seeds with 95% intervals" in part.caption
    assert part.heads == ["model", "at most 5", "at most 10"], "in the order of the money"
    ((name, first, second),) = part.rows
    assert name == "ours"
    assert first.startswith("70.0% (")
    assert second.startswith("80.0% (")
    assert not [part for part in purchases([group(*seeds)]) if "AUROC" in part.caption]


def test_two_classes_have_their_auroc_beside_it() -> None:
    part = captioned(purchases([group(result({"budget/5/accuracy": 0.9, "budget/5/auroc": 0.81}))]), "AUROC")
    assert part.rows == [["ours", "0.810"]]
    assert "of one seed" in part.caption


def test_without_budgets_noise_draws_tell_what_is_right_where_so_much_is_spent_on_average() -> None:
    metrics = {"spending/20/accuracy": 0.5, "valid/spending/20/accuracy": 0.4, "noise_draws/spending/20/accuracy": 0.6}
    part = captioned(purchases([group(result(metrics), result(metrics))]), "Accuracy")
    assert part.heads == ["model", "20 on average"]
    assert part.rows == [["ours", "60.0%"]]
    assert "noise draws" in part.caption
    del metrics["noise_draws/spending/20/accuracy"]
    assert captioned(purchases([group(result(metrics))]), "Accuracy").rows == [["ours", "50.0%"]]


def test_what_a_model_costs_that_stops_by_itself() -> None:
    figures = {"fast/accuracy": 0.9, "fast/mean_cost": 12.34, "fast/exited": 0.5}
    part = captioned(purchases([group(result(figures))]), "Right answers and cost")
    assert part.rows == [["ours", "90.0%", "12.3", "50%"]]
    assert "the threshold that validation chose" in part.caption
    trial, one = make_trial(evaluation={"eta": 0.3}), result(figures)
    given = captioned(purchases([Group("ours", "nbsr", [(trial, one)])]), "Right answers and cost")
    assert "the threshold that was given" in given.caption


def test_first_purchases_are_shares_over_all_seeds() -> None:
    seeds = result({}), result({}, orders=OTHER_ORDERS)
    part = captioned(purchases([group(*seeds)]), "What is bought first")
    assert part.rows == [["ours", "scan (62%); blood <1> (38%)", "scan (30%)"]]
    assert "as if nobody stopped early" in part.caption
    assert "means over 2 seeds" in part.caption


def test_newer_results_tell_what_is_bought_before_a_model_stops() -> None:
    orders = [{"step": 1, "panel": "scan", "share": 1.0, "paid": 0.9}, {"step": 2, "panel": "x", "share": 1, "paid": 0}]
    part = captioned(purchases([group(result({}, orders=orders))]), "What is bought first")
    assert part.rows == [["ours", "scan (90%)", "-"]]
    assert "the threshold that validation chose" in part.caption


def test_for_whom_it_stops_early_is_the_mean_over_seeds_the_cheapest_first() -> None:
    seeds = result({}, stops=[stop(1), stop(2, 0.6)]), result({}, stops=[stop(1), stop(2, 1.0)])
    part = captioned(purchases([group(*seeds)]), "ours: for whom it stops early")
    assert [row[0] for row in part.rows] == ["d2", "d1"]
    assert part.rows[0][-1] == "80.0%"
    assert "means over 2 seeds" in part.caption
    assert not [one for one in purchases([group(*seeds, family="baseline")]) if "for whom" in one.caption]


def test_of_many_classes_the_cheapest_and_the_dearest_are_shown() -> None:
    part = captioned(purchases([group(result({}, stops=[stop(n) for n in range(41)]))]), "ours: for whom")
    assert "the 6 cheapest and dearest of 41" in part.caption
    names = [row[0] for row in part.rows]
    assert "d40" in names
    assert "d0" in names
    assert "d20" not in names


@pytest.mark.parametrize(
    ("audits", "sample"),
    [
        ([story(0, "cold"), story(1, bought=2), story(2)], 2),
        ([story(0, "cold"), story(1, bought=2)], 0),
    ],
    ids=["stopped early and right", "the first where there is none"],
)
def test_one_story_of_earlier_code_is_told_in_plain_words(audits: list[dict[str, Any]], sample: int) -> None:
    part = captioned(purchases([group(result({}, audits))]), "The story of one patient")
    text = " ".join(part.lines)
    assert f"test patient {sample} of seed 0" in part.caption
    assert "Purchase 1: blood for 10, 10 spent so far" in text
    assert "entropy" not in text
    assert ("sure enough" in text) == (sample == 2 or audits[0]["steps"][1]["needed"] is False)


def test_models_that_buy_nothing_and_strange_stories_have_no_such_part() -> None:
    nothing = TrialResult("key", "finished", 1.0, tables={"frontier": FRONTIER})
    assert purchases([group(nothing)]) == []
    strange = [{"sample": 1, "true": "a", "text": "went left"}, {**story(2), "steps": [{"step": 1}]}]
    assert not [part for part in purchases([group(result({}, strange))]) if part.lines]


STUDY = {
    "name": "prices",
    "domain": "acquisition",
    "data": {"source": "cube", "budgets": [3], "train_rows": 100, "valid_rows": 50, "test_rows": 50},
    "seeds": 3,
    "models": {"planner": {}, "greedy": {}, "oracle": {"kind": "oracle_peeking"}},
}


def bought(values: dict[str, float], **changes: Any) -> StudyResults:
    """A study of models that buy, each with its accuracy at a budget of 3."""
    study = Study.from_dict({**STUDY, **changes})
    finished = []
    for trial in grid(study, "none"):
        right = values[trial.label] + 0.001 * trial.seed
        one = result({"budget/3/accuracy": right, "test/accuracy": right, "fast/accuracy": right}, [story(trial.seed)])
        finished.append((trial, one))
    return StudyResults(study, finished, wanted=len(finished), command="nbsr run prices.yaml")


def test_html_and_markdown_say_the_same() -> None:
    results = bought({"planner": 0.9, "greedy": 0.8, "oracle": 0.95})
    html, text = page([results], "prices"), markdown([results], "prices", made_by="this")
    parts = purchases(results.shown)
    assert {bool(part.rows) for part in parts} == {True, False}
    for part in parts:
        for said in (part.caption, *part.lines, *(cell for row in part.rows for cell in row)):
            assert escape(said) in html
            assert plain(said) in text
    assert "blood <1>" not in html, "names come from files: they are escaped"


def test_who_peeks_is_marked_and_neither_best_nor_compared() -> None:
    results = bought({"planner": 0.9, "greedy": 0.8, "oracle": 0.99})
    said = answer(results)
    assert "oracle (peeks: no policy)" in said[0]
    assert said[1].startswith("Best budget, 3, accuracy: planner deep")
    assert "Best baseline: greedy" in said[1]
    assert "oracle" not in " ".join(said[1:])
    assert {gap.other for gap in results.comparisons} == {"greedy deep", "greedy fast"}
    html, text = page([results], "prices"), markdown([results], "prices", made_by="this")
    assert "<td class=best>99.1%" not in html
    assert "**99.1%" not in text
    assert "| oracle deep (peeks: no policy) | 3 |" in text
    assert "(peeks: no policy): nobody could use it" in text
    assert [row.to_json().get("unusable") for row in results.rows if row.model == "oracle"] == ["peeks: no policy"] * 2


def test_who_peeks_is_compared_with_no_reference_either() -> None:
    results = bought({"planner": 0.9, "greedy": 0.8, "oracle": 0.99}, reference="planner")
    assert {gap.line for gap in results.comparisons} == {"greedy deep"}
    assert bought({"planner": 0.9, "greedy": 0.8, "oracle": 0.99}, reference="oracle").comparisons == []


def test_a_study_of_nobody_but_who_peeks_has_no_winner() -> None:
    alone = bought({"oracle": 0.99}, models={"oracle": {"kind": "oracle_peeking"}})
    assert answer(alone)[1] == "No figure that one could win by."


def test_a_ceiling_is_explained_only_where_there_is_one() -> None:
    results = bought({"planner": 0.9, "greedy": 0.8, "oracle": 0.99})
    assert not [line for line in results.legend if line.startswith("ceiling")]
    for _, one in results.finished:
        one.metrics["ceiling/budget/3/accuracy"] = 0.97
    again = StudyResults(results.study, results.finished)
    assert [line for line in again.legend if line.startswith("ceiling: of tables that are drawn")]
