"""Naps as studies, and what is counted when one has ended: in MLflow, in Optuna, and in the log of naps."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import yaml
from mlflow import MlflowClient
from nbsr_platform.search.storage import open_storage
from nbsr_platform.trials.home import Home

from nbsr_core.domains.iris import Iris

# Parameters and values of each proposal, by its number.
Rows = dict[int, tuple[Mapping[str, Any], list[float]]]
TRIALS, EPOCHS, BATCHES, NAP = 24, 8, 3, 0.05
TEAM = 2


@dataclass
class Outcome:
    """A line of the table.

    Attributes:
        did: what was done to the study.
        repeated: whole epochs that were trained twice, over all trials; None where no training is involved.
        same: whether every figure is that of a run that nobody disturbed; None where there is nothing to compare.
        notes: what else was seen.
    """

    did: str
    trials: int = 0
    lost: int = 0
    doubled: int = 0
    repeated: int | None = None
    same: bool | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.lost == self.doubled == 0 and self.same is not False


def make_study(
    folder: Path, name: str, *, trials: int = TRIALS, epochs: int = EPOCHS, own_labels: bool = False, **more: Any
) -> Path:
    """A project with a study of naps: a search, so that Optuna has to agree; one model on a team with `workers`.

    With `own_labels`, the labels of the training set come from labels.csv beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("napping.py"), folder)
    data: dict[str, Any] = {"seconds": NAP, "log": str(folder / "naps.log")}
    if own_labels:
        labels = Iris().load(None, 0).train.y.tolist()
        (folder / "labels.csv").write_text("".join(f"{label}\n" for label in labels))
        data["labels"] = str(folder / "labels.csv")
    study: dict[str, Any] = {
        "name": name,
        "domain": "napping:Napping",
        "data": data,
        "training": {"epochs": epochs, "batch_size": 30},
        "models": {"nbsr": {}},
        "search": {
            "trials": trials,
            "objectives": {"valid/accuracy": "maximize", "valid/nll": "minimize"},
            "sampler": {"name": "random", "seed": 7},
            "pruner": "none",
            "space": {"oracle_dim": {"int": [8, 64]}, "training.learning_rate": {"float": [1e-3, 1e-1], "log": True}},
        },
        **more,
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


def naps(study: Path) -> list[str]:
    """The process of each nap, in order."""
    log = study.with_name("naps.log")
    return log.read_text().split() if log.exists() else []


def repeated(study: Path, trials: int = TRIALS, epochs: int = EPOCHS, workers: int = 1) -> int:
    """Whole epochs beyond those that the study needs."""
    return len(naps(study)) // (BATCHES * workers) - trials * epochs


@dataclass
class Ledger:
    """What a study left behind."""

    rows: Rows
    lost: int
    doubled: int
    notes: list[str]


def read_ledger(name: str, tracking_uri: str, home: Path, storage: str | None, trials: int = TRIALS) -> Ledger:
    """Compare MLflow and Optuna with what the study wanted."""
    client = MlflowClient(tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    parents = client.search_runs(experiments, f"tags.`nbsr.study` = '{name}' and tags.`nbsr.role` = 'study'")
    children = [
        run
        for parent in parents
        for run in client.search_runs(
            experiments, f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'", max_results=1000
        )
    ]
    keys = Counter(run.data.tags["nbsr.trial_key"] for run in children)
    finished = {run.data.tags["nbsr.trial_key"] for run in children if run.info.status == "FINISHED"}
    search = _search(name, home, storage)
    states = Counter(trial.state.name for trial in search.trials)
    complete = [trial for trial in search.trials if trial.state.name == "COMPLETE"]
    points = Counter(tuple(sorted(trial.params.items())) for trial in complete)
    notes = [] if set(states) == {"COMPLETE"} else [f"Optuna: {dict(states)}"]
    lost = max(trials - len(finished), trials - len(complete), 0)
    doubled = sum(keys.values()) - len(keys) + sum(points.values()) - len(points) + max(0, len(parents) - 1)
    rows: Rows = {trial.number: (trial.params, list(trial.values)) for trial in complete}
    return Ledger(rows, lost, doubled + max(0, len(complete) - trials), notes)


def _search(name: str, home: Path, storage: str | None) -> optuna.Study:
    """The one search of that name: its full name ends with its key."""
    if storage is None:
        (journal,) = Home(home).search_journal(name).parent.glob(f"{name}-*.journal")
        opened = open_storage(Home(home), journal.stem)
    else:
        opened = open_storage(Home(home), name, storage)
    names = [s.study_name for s in optuna.get_all_study_summaries(opened) if s.study_name.rpartition("-")[0] == name]
    (found,) = names
    return optuna.load_study(study_name=found, storage=opened)
