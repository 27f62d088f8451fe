"""The tables of docs/results, from the finished trials of a study: nothing is run, nothing is typed by hand.

    python -m benchmarks.results studies/medical/best.yaml --home .nbsr --figures accuracy noise_draws/accuracy \
        --against mlp [--set data.source=embedded]

Means with 95% intervals over seeds, a paper's figure below where the study has one; and, seed by seed, how far each
model lies from the one named by `--against`, which is a narrower question than whether two intervals overlap.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from nbsr_platform.report.summary import ComparisonRow, figures_over_seeds, summarise
from nbsr_platform.study.study import Study, load
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid

from nbsr_core.errors import InputError
from nbsr_core.metrics import Interval, seed_interval
from nbsr_core.metrics.names import Line

Ended = list[tuple[Trial, TrialResult]]
USES: dict[str, Line] = {"deep": "test", "fast": "fast"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--home")
    parser.add_argument("--figures", nargs="+", required=True)
    parser.add_argument("--against")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    asked = parser.parse_args()
    what = load(asked.study, asked.overrides)
    for study in what.studies:
        ended = finished(study, ResultStore(Home.of(asked.home).trials))
        print("\n".join(comparison(summarise(ended, study.paper), asked.figures)), end="\n\n")
        if asked.against:
            print("\n".join(differences(ended, asked.against, asked.figures)), end="\n\n")


def finished(study: Study, store: ResultStore) -> Ended:
    """All trials of a study in the order of its file; raises where one is missing."""
    labels = list(study.models)
    trials = sorted(grid(study, data_fingerprint(study)), key=lambda trial: (labels.index(trial.label), trial.seed))
    missing = [trial.name for trial in trials if not store.has(trial.key)]
    if missing:
        raise InputError(f"{study.name}: not run yet with this code and data: {', '.join(missing)}")
    return [(trial, store.load(trial.key)) for trial in trials]


def comparison(rows: Sequence[ComparisonRow], figures: Sequence[str]) -> Iterator[str]:
    yield f"| {rows[0].study}, {rows[0].n} seeds | {' | '.join(figures)} |"
    yield f"| --- {'| ---: ' * len(figures)}|"
    for row in rows:
        cells = []
        for name in figures:
            text = spelt(row.metrics.get(name), name)
            if name in row.paper:
                text += f"<br>paper {spelt(Interval(row.paper[name], float('nan'), float('nan')), name)}"
            cells.append(text)
        line = f"{row.model} {row.config}".strip()
        yield f"| {line} | {' | '.join(cells)} |"


def differences(ended: Ended, against: str, figures: Sequence[str]) -> Iterator[str]:
    """Mean over seeds of (model - other), both with the same seed and so on the same rows with the same noise."""
    yield f"| minus {against}, seed by seed | {' | '.join(figures)} |"
    yield f"| --- {'| ---: ' * len(figures)}|"
    results = {(trial.label, trial.seed): result for trial, result in ended}
    families = {trial.label: trial.family for trial, _ in ended}
    for label, family in families.items():
        for config, line in USES.items() if family == "nbsr" else ():
            cells = []
            for name in figures:
                gaps = [
                    one_seed(result, line, name) - one_seed(results[against, seed], "test", name)
                    for (owner, seed), result in results.items()
                    if owner == label
                ]
                cells.append("-" if any(gap != gap for gap in gaps) else spelt(seed_interval(gaps), name, "+"))
            yield f"| {label} {config} | {' | '.join(cells)} |"


def one_seed(result: TrialResult, line: Line, name: str) -> float:
    found = figures_over_seeds([result], line).get(name)
    return float("nan") if found is None else found.estimate


def spelt(interval: Interval | None, name: str, sign: str = "") -> str:
    """Shares of right answers in percent, all else as it is; with the bounds of the interval where there is one."""
    if interval is None:
        return "-"
    scale, digits = (100, 2) if name.endswith(("accuracy", "agreement", "usage", "exited")) else (1, 4)
    text = f"{interval.estimate * scale:{sign}.{digits}f}"
    if interval.low == interval.low:
        text += f" [{interval.low * scale:{sign}.{digits}f}, {interval.high * scale:{sign}.{digits}f}]"
    return text


if __name__ == "__main__":
    main()
