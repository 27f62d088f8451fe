"""What the platform costs: 40 medical trials of 5 epochs, three ways, in one run, as ratios.

    python -m benchmarks.sweep [--trials 40] [--without-tune]

1. *plain*: an Optuna loop in one process, nothing recorded;
2. *nbsr*: `nbsr run` of the same search with 2 workers, every trial stored, told to Optuna and recorded in MLflow;
   measured with its start-up, and once warm (at the pace between the first result and the last);
3. *tune*: Ray Tune with a function trainable and its own Optuna search, as its tutorial has it.

All three train the same model on the same data for as many epochs; each trial uses one thread.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import nbsr_platform  # noqa: F401  (settings for Ray, before it is imported)
import optuna
import ray
import torch
from nbsr_platform.run import run
from nbsr_platform.study import Study
from nbsr_platform.trial import Trial, data_fingerprint, make_trial
from nbsr_platform.worker import run_trial

EPOCHS = 5


def study_of(trials: int) -> Study:
    return Study.from_dict(
        {
            "name": "sweep",
            "domain": "medical",
            "data": {"draws": 1},
            "training": {"epochs": EPOCHS},
            "models": {"nbsr": {"experts": {"activation": "exp"}, "objective": {"every_depth": 1.0}}},
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
    from dataclasses import replace

    training = replace(study.models["nbsr"].training, learning_rate=learning_rate)
    return make_trial(study, "nbsr", 0, fingerprint, training=training)


def accuracy_of(trial: Trial) -> float:
    """The whole trial in this process: what every contender does for its living."""
    torch.set_num_threads(1)
    *_, result = run_trial(trial, "cpu")
    return float(result.metrics["valid/accuracy"])  # type: ignore[union-attr]


def plain(study: Study, trials: int) -> float:
    fingerprint = data_fingerprint(study)
    began = time.perf_counter()
    search = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    search.optimize(
        lambda t: accuracy_of(trial_at(study, fingerprint, t.suggest_float("lr", 1e-4, 1e-2, log=True))), trials
    )
    return time.perf_counter() - began


def ours(study: Study, home: Path, trials: int) -> tuple[float, float]:
    """Seconds with start-up, and what as many trials take at the pace of the time between first and last result."""
    began = time.perf_counter()
    result = run(study, home=home)
    ended_at = result.parts[0].outcome.ended_at
    warm = (ended_at[-1] - ended_at[0]) / (trials - 1) * trials
    return time.perf_counter() - began, warm


def tune_tutorial(study: Study, trials: int) -> float:
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    fingerprint = data_fingerprint(study)

    def objective(config: dict[str, Any]) -> dict[str, float]:
        return {"accuracy": accuracy_of(trial_at(study, fingerprint, config["lr"]))}

    began = time.perf_counter()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        with tempfile.TemporaryDirectory() as folder:
            tune.Tuner(
                tune.with_resources(objective, {"cpu": 1}),
                param_space={"lr": tune.loguniform(1e-4, 1e-2)},
                tune_config=tune.TuneConfig(
                    metric="accuracy", mode="max", search_alg=OptunaSearch(seed=0), num_samples=trials
                ),
                run_config=tune.RunConfig(storage_path=folder, verbose=0),
            ).fit()
    finally:
        ray.shutdown()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--without-tune", action="store_true", help="leave out the slow third way")
    options = parser.parse_args()
    study = study_of(options.trials)
    print(f"{options.trials} medical trials of {EPOCHS} epochs, {os.cpu_count()} cores")
    accuracy_of(trial_at(study, data_fingerprint(study), 1e-3))  # imports and caches, for a fair start
    reference = plain(study, options.trials)
    print(f"  plain Optuna, one process      {reference:7.1f} s   1.00x")
    with tempfile.TemporaryDirectory() as folder:
        whole, warm = ours(study, Path(folder), options.trials)
    print(f"  nbsr, once warm                {warm:7.1f} s   {reference / warm:.2f}x as fast as plain")
    print(f"  nbsr, start-up included        {whole:7.1f} s   {whole / reference:.2f}x the time of plain")
    if not options.without_tune:
        tutorial = tune_tutorial(study, options.trials)
        print(f"  Ray Tune, function trainable   {tutorial:7.1f} s   nbsr is {tutorial / whole:.1f}x as fast")


if __name__ == "__main__":
    main()
