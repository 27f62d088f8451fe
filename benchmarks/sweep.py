"""What the platform costs: the same 40 medical trials of 5 epochs, in several ways, as ratios.

    python -m benchmarks.sweep [--trials 40] [--ways plain threads nbsr tune]

1. *plain*: an Optuna loop in one process with one thread, nothing recorded; *threads*: the same with torch's own choice
   of threads;
2. *nbsr*: `nbsr run` of the same search with 2 workers in a new store: every epoch reported, every trial stored, told
   to Optuna and recorded in MLflow, a report at the end;
3. *tune*: Ray Tune with a function trainable and its own Optuna search, 2 at once, as its tutorial has it: one figure a
   trial is reported, nothing else recorded.

Each way is a process of its own. Its *whole* time runs from the start of that process to its end, imports, Ray, workers
and new stores included. *Once warm* is what as many trials take at the pace after every worker's first result. All
ways propose the same learning rates, and the benchmark fails unless they find the same accuracies.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbsr_platform.study.study import Study
    from nbsr_platform.trials.trial import Trial

EPOCHS, WORKERS = 5, 2
WAYS = {
    "plain": "plain Optuna, one process, one thread",
    "threads": "plain Optuna, one process, torch's threads",
    "nbsr": f"nbsr run, {WORKERS} workers, all recorded",
    "tune": f"Ray Tune, function trainable, {WORKERS} at once",
}


@dataclass(frozen=True)
class Sweep:
    """What one way took.

    Attributes:
        at_once: trials that run side by side.
        whole: seconds of its process.
        ended: when each result was there, in order; empty where that is not known.
        accuracy: by learning rate.
    """

    at_once: int
    whole: float
    ended: list[float]
    accuracy: dict[str, float]

    @property
    def warm(self) -> float:
        """At the pace after every worker's first result: those that end with the first one are no pace."""
        rest = self.ended[self.at_once - 1 :]
        return (rest[-1] - rest[0]) / (len(rest) - 1) * len(self.ended)


def study_of(trials: int) -> Study:
    from nbsr_platform.study.study import Study

    return Study.from_dict(
        {
            "name": "sweep",
            "domain": "medical",
            "data": {"draws": 1},
            "training": {"epochs": EPOCHS},
            "models": {"nbsr": {"experts": {"activation": "exp"}, "objective": {"every_depth": 1.0}}},
            "resources": {"concurrency": WORKERS},
            "search": {
                "trials": trials,
                "objectives": {"valid/accuracy": "maximize"},
                "sampler": {"name": "random", "seed": 0},
                "pruner": "none",
                "space": {"training.learning_rate": {"float": [1e-4, 1e-2], "log": True}},
            },
        }
    )


def trial_at(study: Study, fingerprint: str, learning_rate: float) -> Trial:
    from nbsr_platform.trials.trial import make_trial

    training = replace(study.models["nbsr"].training, learning_rate=learning_rate)
    return make_trial(study, "nbsr", 0, fingerprint, training=training)


def accuracy_of(trial: Trial) -> float:
    """The whole trial in this process: what every way does for its living."""
    from nbsr_platform.execution.worker import run_trial

    *_, result = run_trial(trial, "cpu")
    return float(result.metrics["valid/accuracy"])  # type: ignore[union-attr]


def proposals(study: Study, trials: int) -> Iterator[tuple[Any, Any, float]]:
    """An Optuna study, its trial and the learning rate that it proposes: those of the platform's search."""
    import optuna
    from nbsr_platform.search.feed import sampler_of

    assert study.search is not None
    search = optuna.create_study(direction="maximize")
    for number in range(trials):
        search.sampler = sampler_of(study.search, number)
        asked = search.ask()
        yield search, asked, asked.suggest_float("training.learning_rate", 1e-4, 1e-2, log=True)


def plain(trials: int, threads: int | None) -> tuple[list[float], dict[str, float]]:
    import torch
    from nbsr_platform.trials.trial import data_fingerprint

    if threads is not None:
        torch.set_num_threads(threads)
    study = study_of(trials)
    fingerprint = data_fingerprint(study)
    ended, found = [], {}
    for search, asked, rate in proposals(study, trials):
        found[repr(rate)] = accuracy_of(trial_at(study, fingerprint, rate))
        search.tell(asked, found[repr(rate)])
        ended.append(time.monotonic())
    return ended, found


def ours(trials: int) -> tuple[list[float], dict[str, float]]:
    from nbsr_platform.execution.runner import run

    with tempfile.TemporaryDirectory() as home:
        outcome = run(study_of(trials), home=home).parts[0].ended_trials
    return outcome.ended_at, {
        repr(trial.training["learning_rate"]): result.metrics["valid/accuracy"]
        for trial, result in outcome.finished.values()
    }


def tune_tutorial(trials: int) -> tuple[list[float], dict[str, float]]:
    import nbsr_platform  # noqa: F401  (quiet settings for Ray, before it is imported)
    import ray
    import torch
    from nbsr_platform.trials.trial import data_fingerprint
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    study = study_of(trials)
    fingerprint = data_fingerprint(study)

    def objective(config: dict[str, Any]) -> dict[str, float]:
        torch.set_num_threads(1)
        return {"accuracy": accuracy_of(trial_at(study, fingerprint, config["rate"]))}

    same = [{"rate": rate} for _, _, rate in proposals(study, trials)]
    ray.init(address="local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as folder:
        done = tune.Tuner(
            tune.with_resources(objective, {"cpu": 1}),
            param_space={"rate": tune.loguniform(1e-4, 1e-2)},
            tune_config=tune.TuneConfig(
                metric="accuracy",
                mode="max",
                search_alg=OptunaSearch(points_to_evaluate=same, seed=0),
                num_samples=trials,
            ),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
    ray.shutdown()
    return [], {repr(result.config["rate"]): result.metrics["accuracy"] for result in done}


def child(way: str, trials: int, answer: Path) -> None:
    """One way, in this process; what it found goes to a file."""
    if way == "nbsr":
        ended, found = ours(trials)
    elif way == "tune":
        ended, found = tune_tutorial(trials)
    else:
        ended, found = plain(trials, 1 if way == "plain" else None)
    answer.write_text(json.dumps([ended, found]))


def measure(way: str, trials: int) -> Sweep:
    """One way, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "benchmarks.sweep", "--trials", str(trials), "--child", way, str(answer)]
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        began = time.perf_counter()
        subprocess.run(command, check=True, env=environment)
        whole = time.perf_counter() - began
        return Sweep(WORKERS if way in ("nbsr", "tune") else 1, whole, *json.loads(answer.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trials <= WORKERS:
        parser.error(f"--trials must be more than {WORKERS}, got {options.trials}")
    if options.child:
        child(options.child[0], options.trials, Path(options.child[1]))
        return
    print(f"{options.trials} medical trials of {EPOCHS} epochs, {os.cpu_count()} cores")
    print(f"  {'':<48}  whole s   warm s")
    found: dict[str, Sweep] = {}
    for way in options.ways:
        sweep = found[way] = measure(way, options.trials)
        pace = f"{sweep.warm:8.1f}" if sweep.ended else "       -"
        print(f"  {WAYS[way]:<48} {sweep.whole:8.1f} {pace}", flush=True)
        if way != "threads":  # whose sums differ in the last bits
            first = next(name for name in found if name != "threads")
            if sweep.accuracy != found[first].accuracy:
                raise SystemExit(f"{way} and {first} differ: {sweep.accuracy} {found[first].accuracy}")
    loops = [found[way] for way in ("plain", "threads") if way in found]
    if loops and "nbsr" in found:
        whole, warm = min(loop.whole for loop in loops), min(loop.warm for loop in loops)
        print("against the faster of the plain loops:")
        print(f"  once warm, nbsr is {warm / found['nbsr'].warm:.2f}x as fast")
        print(f"  start-up included, nbsr takes {found['nbsr'].whole / whole:.2f}x the time")
    if {"nbsr", "tune"} <= found.keys():
        print(f"start-up included, nbsr is {found['tune'].whole / found['nbsr'].whole:.1f}x as fast as Ray Tune")


if __name__ == "__main__":
    main()
