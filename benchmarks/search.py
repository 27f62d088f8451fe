"""The shipped medical search as a person runs it: how long it takes, and what a kill at a random moment costs.

    python -m benchmarks.search [--trials 60] [--kills 1] [--seed 0] [--study studies/medical/search.yaml]

`nbsr run` is started in a new store. With `--kills N` its process is killed without warning N times, each time after a
random share of the time that an undisturbed run may take, and the same command is started again. It fails unless the
search ends with exactly as many proposals as were asked for, none under way, no point proposed twice, and one run in
MLflow for each trial.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

MOST_SECONDS = 600  # what an undisturbed search may take


def command(study: str, trials: int, home: Path) -> list[str]:
    run = [sys.executable, "-m", "nbsr_platform.cli", "run", study, "--set", f"search.trials={trials}"]
    return [*run, "--home", str(home), "--json"]


def kill_after(seconds: float, call: list[str]) -> bool:
    """Start the command and kill it; False where it was done before."""
    with subprocess.Popen(
        call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            process.wait(timeout=seconds)
            return False
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            return True


def check(home: Path, trials: int, result: dict[str, Any]) -> Counter[str]:
    """What became of the proposals; fails where one is missing, twice, or still under way."""
    import optuna
    from mlflow import MlflowClient
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    (journal,) = (home / "searches").iterdir()
    storage = JournalStorage(JournalFileBackend(str(journal)))
    (summary,) = optuna.get_all_study_summaries(storage)
    proposals = optuna.load_study(study_name=summary.study_name, storage=storage).trials
    states = Counter(trial.state.name for trial in proposals)
    points = {json.dumps(trial.params, sort_keys=True) for trial in proposals}
    client = MlflowClient(result["tracking_uri"])
    experiment = client.get_run(result["run_id"]).info.experiment_id
    below = f"tags.`mlflow.parentRunId` = '{result['run_id']}'"
    runs = client.search_runs([experiment], below, max_results=5000)
    keys = [run.data.tags["nbsr.trial_key"] for run in runs]
    wrong = {
        f"{len(proposals)} proposals instead of {trials}": len(proposals) != trials,
        f"states {dict(states)}": bool(states.keys() - {"COMPLETE", "PRUNED"}),
        f"{len(proposals) - len(points)} points proposed twice": len(points) != len(proposals),
        f"{len(keys) - len(set(keys))} trials recorded twice": len(keys) != len(set(keys)),
        f"{len(set(keys))} trials recorded": len(set(keys)) != trials + result["trials"].get("repeated", 0),
    }
    if any(wrong.values()):
        raise SystemExit("; ".join(what for what, is_so in wrong.items() if is_so))
    return states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which it is killed")
    parser.add_argument("--study", default="studies/medical/search.yaml")
    parser.add_argument("--span", type=float, default=MOST_SECONDS / 2, help="kills fall within so many seconds")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        call = command(options.study, options.trials, home)
        began = time.perf_counter()
        for number in range(options.kills):
            seconds = chance.uniform(0, options.span)
            killed = kill_after(seconds, call)
            print(f"kill {number + 1} after {seconds:.0f} s: {'killed' if killed else 'was done before'}", flush=True)
            time.sleep(2)  # Ray's own processes notice that their driver is gone
        done = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        whole = time.perf_counter() - began
        result = json.loads(done.stdout)
        states = check(home, options.trials, result)
        size = Path(result["report"]).stat().st_size / 1e6
    said = ", ".join(f"{count} {state.lower()}" for state, count in states.items())
    again = result["trials"].get("repeated", 0)
    print(
        f"{options.study}: {options.trials} proposals ({said}), no point twice, and {again} trainings of promising "
        f"members with further seeds, in {whole:.0f} s on {os.cpu_count()} cores; report {size:.1f} MB"
    )


if __name__ == "__main__":
    main()
