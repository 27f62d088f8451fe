"""What was demanded of the planner, beside what stored results say: the overview of two pages of results.

A demand on a mean is met where the mean over seeds reaches it. A difference of two models is paired over seeds, with a
95% interval: "above" is met where all of it is above 0, "not below" unless all of it is below 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nbsr_platform.report.differences import Asked, Line, compared
from nbsr_platform.report.groups import UNUSABLE
from nbsr_platform.report.markdown_page import plain, table
from nbsr_platform.report.study_results import StudyResults

from nbsr_core.metrics import seed_interval
from nbsr_core.metrics.names import CEILING

AT_LEAST = {3: 0.57, 5: 0.88, 7: 0.94}
"""Accuracy at each budget on CUBE-NM with deviation 0.1; up to the last of them the planner is to be above greedy."""
SHARE_OF_EXACT = 0.9
PLANNER, GREEDY = "planner", "greedy"
ABOVE = "above learned greedy"
HEADS = ("study", "at most spent", "figure", "demanded of the planner", "measured", "demand")


def of_budgets(all_results: Sequence[StudyResults]) -> str:
    """The demands on all studies with hard budgets."""
    return _overview(row for results in all_results for row in _at_budgets(results))


def against_greedy(all_results: Sequence[StudyResults]) -> str:
    """In studies where money is spent on average: as good as greedy at every mean cost, and in the area under them."""
    return _overview(row for results in all_results for row in _at_spendings(results))


def _overview(rows: Iterator[list[str]]) -> str:
    """Below a heading of its own, like a study."""
    return f"## What was demanded\n\n{table(HEADS, [map(plain, row) for row in rows])}"


def _at_budgets(results: StudyResults) -> Iterator[list[str]]:
    name, lines = results.study.name, _lines(results)
    planner, cubes_nm = lines[PLANNER], "-nm-" in name
    for budget in (float(budget) for budget in results.study.data.budgets):
        where = [name, f"{budget:g}"]
        accuracy = f"budget/{budget:g}/accuracy"
        if name.endswith("-sharp") and budget in AT_LEAST:
            yield _reached([*where, "accuracy"], planner, accuracy, AT_LEAST[int(budget)], "")
        if name.endswith("-noisy"):
            exact = _ceiling(results, accuracy)
            said = f" (90% of {exact:.3f}, exact with the context first)"
            yield _reached([*where, "accuracy"], planner, accuracy, SHARE_OF_EXACT * exact, said)
        if cubes_nm and budget <= max(AT_LEAST):
            yield _compared([*where, "accuracy"], planner, lines[GREEDY], accuracy, ABOVE)
        if not cubes_nm:
            for figure in (accuracy, f"budget/{budget:g}/auroc"):
                others = [line for label, line in lines.items() if label != PLANNER and line.family != UNUSABLE]
                if planner.by_seed(figure):
                    best = max(others, key=lambda line: _mean(line, figure))
                    wanted = f"not below the best other, {best.group.name}"
                    yield _compared([*where, figure.rpartition("/")[2]], planner, best, figure, wanted)


def _at_spendings(results: StudyResults) -> Iterator[list[str]]:
    lines = _lines(results)
    if PLANNER in lines:
        figures = [name for name in results.rows[0].metrics if name.startswith("noise_draws/spending/")]
        for figure in (*figures, "noise_draws/area"):
            spent = figure.split("/")[2] if figure in figures else "any amount"
            where = [results.study.name, f"{spent} on average", figure.rpartition("/")[2]]
            yield _compared(where, lines[PLANNER], lines[GREEDY], figure, "not below learned greedy")


def _lines(results: StudyResults) -> dict[str, Line]:
    """Each model with all that it may buy."""
    return {line.group.name: line for line in results.lines if line.config != "fast"}


def _reached(where: list[str], line: Line, figure: str, least: float, why: str) -> list[str]:
    found = seed_interval(list(line.by_seed(figure).values()))
    missed = least - found.estimate
    said = f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"
    return [*where, f"at least {least:.3f}{why}", said, "met" if missed <= 0 else f"missed by {missed:.3f}"]


def _compared(where: list[str], line: Line, other: Line, figure: str, wanted: str) -> list[str]:
    (gap,) = compared([Asked(line, other, figure)])
    assert gap is not None
    low, high = gap.interval.low, gap.interval.high
    said = f"{gap.interval.estimate:+.3f} [{low:+.3f}, {high:+.3f}]"
    return [*where, wanted, said, "met" if (low > 0 if wanted == ABOVE else high >= 0) else "missed"]


def _mean(line: Line, figure: str) -> float:
    found = line.by_seed(figure)
    return sum(found.values()) / len(found)


def _ceiling(results: StudyResults, figure: str) -> float:
    """What exact posteriors reach with the context first, mean over seeds."""
    found = {trial.seed: result.metrics[f"{CEILING}/{figure}"] for trial, result in results.finished}
    return sum(found.values()) / len(found)
