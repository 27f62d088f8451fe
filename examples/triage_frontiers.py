"""All policies of a triage study in one picture: accuracy against mean cost, with bands over seeds.

    nbsr run studies/triage/decoupled.yaml
    python examples/triage_frontiers.py studies/triage/decoupled.yaml --out frontiers.png

Takes what is finished in the store; it trains nothing. Prints the same comparison as a table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from nbsr_platform import Study
from nbsr_platform.report.summary import short
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid

from nbsr_core.metrics import seed_interval
from nbsr_core.plots.frontier import frontier_bands

COSTS = (12.5, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0, 60.0, 80.0, 125.0)
FIGURES = (
    "noise_draws/accuracy",
    "noise_draws/peak",
    "noise_draws/area",
    "noise_draws/cost_at_peak_1",
    "noise_draws/cost_at_peak_5",
    "noise_draws/chosen_peak_1/accuracy",
    "noise_draws/chosen_peak_1/mean_cost",
)


def finished(study: Study, home: Path | None) -> dict[str, list[TrialResult]]:
    """The study's results by model, one a seed."""
    store = ResultStore(Home.of(home).trials)
    results: dict[str, list[TrialResult]] = {}
    for trial in grid(study, data_fingerprint(study)):
        if store.has(trial.key):
            results.setdefault(trial.label, []).append(store.load(trial.key))
    return results


def table(results: dict[str, list[TrialResult]]) -> str:
    """Markdown: mean and half of the 95% interval over seeds."""
    lines = [f"| policy | seeds | {' | '.join(FIGURES)} |", f"|{' --- |' * (len(FIGURES) + 2)}"]
    for name, runs in results.items():
        cells = [short(seed_interval([run.metrics[figure] for run in runs]), figure) for figure in FIGURES]
        lines.append(f"| {name} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def at_equal_cost(results: dict[str, list[TrialResult]], costs: Sequence[float]) -> str:
    """Markdown: accuracy on the noise draws at some mean costs, mean over seeds.

    Between thresholds, and from a free guess to the first of them, the frontier is a straight line: mixing gets there.
    """
    lines = [f"| mean cost | {' | '.join(f'{cost:g}' for cost in costs)} |", f"|{' --- |' * (len(costs) + 1)}"]
    for name, runs in results.items():
        curves = []
        for run in runs:
            points = [(float(row["mean_cost"] or 0), float(row["accuracy"] or 0)) for row in run.tables["frontier"]]
            spent, right = np.array(sorted([(0.0, 1 / len(run.data["class_names"])), *points])).T
            curves.append(np.interp(costs, spent, np.maximum.accumulate(right)))
        lines.append(f"| {name} | {' | '.join(f'{100 * mean:.1f}' for mean in np.mean(curves, axis=0))} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--home", type=Path, default=None)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("frontiers.png"))
    options = parser.parse_args(arguments)
    study = Study.load(options.study, options.set)
    results = finished(study, options.home)
    if not results:
        parser.exit(1, f"no finished trial of {study.name}; run `nbsr run {options.study}` first\n")
    print(table(results))
    print(f"\nAccuracy (%) at equal mean cost:\n\n{at_equal_cost(results, COSTS)}\n")
    tables = {name: [run.tables["frontier"] for run in runs] for name, runs in results.items()}
    synthetic = any(run.data.get("synthetic") for runs in results.values() for run in runs)
    title = f"{study.name}: mean and 95% interval over seeds{' (SYNTHETIC data)' if synthetic else ''}"
    bounds = [label for label, choice in study.models.items() if choice.kind in study.domain_object.unusable]
    frontier_bands(tables, title=title, upper_bounds=bounds).savefig(options.out, dpi=110)
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
