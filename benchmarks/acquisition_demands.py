"""What was demanded of the planner on CUBE-NM, CUBE and CUBE with prices, beside what stored results say.

    python -m benchmarks.acquisition_demands [--home .nbsr]

Nothing is run. A demand is met where the mean over seeds reaches it; a difference of two models is paired over seeds,
with a 95% interval, and counts as one only where that leaves out 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from nbsr_platform.report.differences import Asked, Line, compared
from nbsr_platform.report.find import of_study
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.study.study import load
from nbsr_platform.trials.home import Home

from nbsr_core.metrics import seed_interval
from nbsr_core.metrics.names import CEILING

STUDIES = ("acquisition/cube_nm", "acquisition/cube", "acquisition/cube_prices")
AT_LEAST = {3: 0.57, 5: 0.88, 7: 0.94}
"""Accuracy at each budget on CUBE-NM with deviation 0.1."""
SHARE_OF_EXACT = 0.9
PLANNER, GREEDY = "planner", "greedy"


def accuracy(budget: float) -> str:
    return f"budget/{budget:g}/accuracy"


def rows(results: StudyResults) -> Iterator[list[str]]:
    """The demands on one study."""
    name, lines = results.study.name, {line.group.name: line for line in results.lines if line.config != "fast"}
    budgets = [float(budget) for budget in results.study.data.budgets]
    planner = lines[PLANNER]
    for budget in budgets:
        found = seed_interval(list(planner.by_seed(accuracy(budget)).values()))
        said = f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"
        if name.endswith("-sharp") and budget in AT_LEAST:
            yield judged(
                name, budget, f"at least {AT_LEAST[int(budget)]:.2f}", said, found.estimate - AT_LEAST[int(budget)]
            )
        if name.endswith("-noisy"):
            exact = ceiling(results, budget)
            least = SHARE_OF_EXACT * exact
            yield judged(name, budget, f"at least {least:.3f} (90% of {exact:.3f})", said, found.estimate - least)
        if "-nm-" in name:
            others = [GREEDY] if budget <= max(AT_LEAST) else []
            wanted = "above learned greedy"
        else:
            others = [max((other for other in lines if other != PLANNER), key=lambda other: mean(lines[other], budget))]
            wanted = f"not below the best other, {others[0]}"
        for other in others:
            (gap,) = compared([Asked(planner, lines[other], accuracy(budget))])
            assert gap is not None
            low, high = gap.interval.low, gap.interval.high
            met = low > 0 if other == GREEDY and "-nm-" in name else high >= 0
            said = f"{gap.interval.estimate:+.3f} [{low:+.3f}, {high:+.3f}]"
            yield [name, f"{budget:g}", wanted, said, "met" if met else "missed"]


def mean(line: Line, budget: float) -> float:
    found = line.by_seed(accuracy(budget))
    return sum(found.values()) / len(found)


def ceiling(results: StudyResults, budget: float) -> float:
    """What exact posteriors reach with the context first, mean over seeds."""
    found = {trial.seed: result.metrics[f"{CEILING}/{accuracy(budget)}"] for trial, result in results.finished}
    return sum(found.values()) / len(found)


def judged(name: str, budget: float, wanted: str, said: str, above: float) -> list[str]:
    return [name, f"{budget:g}", wanted, said, "met" if above >= 0 else f"missed by {-above:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", help="folder with the results; $NBSR_HOME or .nbsr by default")
    home = Home.of(parser.parse_args().home)
    print("| study | budget | demanded of the planner | measured | |\n| --- | --- | --- | --- | --- |")
    for study in (study for name in STUDIES for study in load(name).studies):
        for row in rows(of_study(home, study)):
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
