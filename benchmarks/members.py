"""How long a search takes to end once its last trial has: what is written of a Pareto set in which many tie.

    python -m benchmarks.members [--trials 200]

Tiny trials on Iris are searched for walks that never exit early, which many of them have. `nbsr run` is started in a
new store; the clock of the ending starts with the line that says that all trials are done.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from mlflow import MlflowClient

STUDY = {
    "name": "ties",
    "domain": "iris",
    "training": {"epochs": 20},
    "models": {"nbsr": {}},
    "search": {
        "objectives": {"valid/fast/exited": "minimize"},
        "sampler": {"name": "random", "seed": 7},
        "pruner": "none",
        "space": {"oracle_dim": {"int": [8, 32]}, "training.learning_rate": {"float": [3e-2, 1e-1], "log": True}},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    trials = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "ties.yaml"
        study.write_text(yaml.safe_dump({**STUDY, "search": {**STUDY["search"], "trials": trials}}))  # type: ignore[dict-item]
        command = [sys.executable, "-m", "nbsr_platform.cli", "run", study.name, "--home", "home"]
        began = trained = time.perf_counter()
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            for line in run.stdout:
                if f"{trials}/{trials} trials" in line:
                    trained = time.perf_counter()
        ended = time.perf_counter()
        if run.returncode:
            sys.exit(f"ended with code {run.returncode}")
        client = MlflowClient(f"sqlite:///{folder}/home/mlflow.db")
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        members = client.search_runs(experiments, "tags.`nbsr.pareto` = 'true'", max_results=5000)
        written = [one for one in members if "nbsr.artifacts" in one.data.tags]
    print(
        f"{trials} trials in {trained - began:.0f} s; the ending took {ended - trained:.1f} s: {len(members)} members "
        f"of the Pareto set, {len(written)} of them with pictures, tables and model"
    )


if __name__ == "__main__":
    main()
