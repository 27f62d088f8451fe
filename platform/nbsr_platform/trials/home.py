"""One object owns every path of a store, so that no other module makes up a file name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nbsr_core.errors import InputError
from nbsr_platform.base.sqlite_address import sqlite_uri

# Where, among the checkpoints of a training, those lie that more epochs go on from.
FINISHED = "finished"


@dataclass(frozen=True)
class Home:
    """The folder in which results, the tracking store, searches and reports live; `.nbsr` by default."""

    root: Path

    @staticmethod
    def of(root: str | Path | None = None) -> Home:
        """The given folder, else the one that NBSR_HOME names, else `.nbsr` here."""
        place = Path(root or os.environ.get("NBSR_HOME") or ".nbsr").absolute()
        try:
            str(place).encode()
        except UnicodeEncodeError:  # no database, report or cluster could name a file in it
            raise InputError(f"home {place}: its path is not UTF-8; choose another one with --home") from None
        return Home(place)

    @property
    def trials(self) -> Path:
        """Results of finished trials, a folder for each key: the truth of what is done."""
        return self.root / "trials"

    @property
    def weights(self) -> Path:
        """What was learned, a folder for each weights key: `ResultStore` finds it beside the results."""
        return self.root / "weights"

    @property
    def database(self) -> Path:
        """MLflow's, unless another store is asked for."""
        return self.root / "mlflow.db"

    @property
    def tracking_uri(self) -> str:
        return sqlite_uri(self.database)

    @property
    def artifacts(self) -> Path:
        """Where MLflow keeps artifacts of runs in the default store."""
        return self.root / "artifacts"

    @property
    def checkpoints(self) -> Path:
        """Of trainings, those that differ only in their epochs in one folder: a killed study, or more epochs, go on."""
        return self.root / "checkpoints"

    @property
    def cache(self) -> Path:
        """What is usually kept in the user's home folder, where that cannot be written."""
        return self.root / "cache"

    @property
    def studies(self) -> Path:
        """Study files that were made from trials."""
        return self.root / "studies"

    def search_journal(self, study: str) -> Path:
        """Optuna's journal of a study: what was proposed, finished, pruned or failed."""
        return self.root / "searches" / f"{study}.journal"

    def lock(self, study: str) -> Path:
        """Held while a study runs, so that nobody runs it twice at once."""
        return self.root / "locks" / f"{study}.lock"

    def log(self, study: str, key: str) -> Path:
        """The error and last words of a trial that failed."""
        return self.root / "logs" / study / f"{key}.log"

    def report(self, study: str) -> Path:
        """The newest report under a name."""
        return self.root / "reports" / study / "index.html"

    def report_of(self, study: str, key: str) -> Path:
        """The report of one study: another one of the same name, with other options, has its own."""
        return self.report(study).with_name(f"{key}.html")

    @property
    def scratch(self) -> Path:
        """What Ray Tune writes for itself while a study runs; nothing of it is needed afterwards."""
        return self.root / "scratch"
