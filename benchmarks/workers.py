"""Two workers of Ray Train against one: the same study from scratch, its speed and what it learns.

    python -m benchmarks.workers [--study studies/vision/workers.yaml] [--home out/workers] [--set data.subset=2000]

Both ways run one trial at a time, so that they have the machine for themselves, and keep their results in the home: a
run that was stopped goes on. Speed is that of the training alone, over all epochs but the first of a trial.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.execution.runner import run
from nbsr_platform.study.study import Study
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid
from scipy.stats import t as student_t

WAYS = (1, 2)
Ended = list[tuple[Trial, TrialResult]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="studies/vision/workers.yaml")
    parser.add_argument("--home", type=Path, default=Path("out/workers"))
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    asked = parser.parse_args()
    found = {workers: finished(asked.study, asked.overrides, asked.home, workers) for workers in WAYS}
    print("| model | workers | samples/s | loss of the first epoch | of the last | test accuracy by seed |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for label in dict.fromkeys(trial.label for trial, _ in found[1]):
        for workers in WAYS:
            results = [result for trial, result in found[workers] if trial.label == label]
            ends = " | ".join(f"{mean(r.epochs[end]['train/loss'] for r in results):.3f}" for end in (0, -1))
            accuracies = ", ".join(f"{result.metrics['test/accuracy']:.3f}" for result in results)
            print(f"| {label} | {workers} | {speed(results):.0f} | {ends} | {accuracies} |")
    one, two = ([result for _, result in found[workers]] for workers in WAYS)
    print(f"\nsamples/s, {WAYS[1]} workers : {WAYS[0]}: {speed(two) / speed(one):.2f}")
    gaps = [b.metrics["test/accuracy"] - a.metrics["test/accuracy"] for a, b in zip(one, two, strict=True)]
    print(f"test accuracy, {WAYS[1]} workers minus {WAYS[0]}, by trial: {', '.join(f'{gap:+.3f}' for gap in gaps)}")
    half = float(student_t.ppf(0.975, len(gaps) - 1)) * stdev(gaps) / len(gaps) ** 0.5
    print(f"on average {mean(gaps):+.3f}, 95% interval [{mean(gaps) - half:+.3f}, {mean(gaps) + half:+.3f}]")


def finished(study_file: str, overrides: Sequence[str], home: Path, workers: int) -> Ended:
    """All trials of the study with so many workers, run if they are not there, in the order of the grid."""
    study = Study.load(study_file, [*overrides, f"resources.workers={workers}", "resources.concurrency=1"])
    place = home / f"{workers}-workers"
    outcome = run(study, home=place, console=Terminal(stderr=True)).parts[0].ended_trials
    if outcome.failed:
        raise SystemExit(f"{study.name} with {workers} workers: {len(outcome.failed)} trials failed")
    store = ResultStore(place / "trials")
    return [(trial, store.load(trial.key)) for trial in grid(study, data_fingerprint(study))]


def speed(results: Sequence[TrialResult]) -> float:
    """Samples a second; an epoch that starts everything up says nothing of the others."""
    return median(epoch["train/samples_per_second"] for result in results for epoch in result.epochs[1:])


if __name__ == "__main__":
    main()
