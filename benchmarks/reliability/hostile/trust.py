"""Stores in which somebody planted code, or names that lead to it: a store is data, and nothing in it is run."""

from __future__ import annotations

import shlex
import sqlite3
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from nbsr_platform.tracking.store import TrackingStore
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore

from benchmarks.reliability.hostile.case import GOOD, KEY, OWNED, Hostile, trained

RUN = "RUN"
EVIL = {"elsewhere/evil.py": f"from nbsr_core.domains.iris import Iris\nopen({OWNED!r}, 'w')\nclass Evil(Iris): pass\n"}
OWN_DOMAIN = {"domain": "evil:Evil", "beside": "elsewhere"}
NOT_INSTALLED = "uses the domain 'evil:Evil', whose module is not installed"
BACKBONE = {
    "domain": "vision",
    "data": {"source": "digits"},
    "kind": "flat",
    "options": {"backbone": {"name": "time:time"}},
}


@cache
def runs() -> tuple[bytes, str]:
    """An MLflow store with one run of a trial, and the run's id."""
    with tempfile.TemporaryDirectory(prefix="nbsr-") as name:
        store = TrackingStore(f"sqlite:///{name}/mlflow.db")
        experiment = store.call("create_experiment", "nbsr-iris")
        run = store.call("create_run", experiment, tags={"nbsr.trial_key": KEY, "nbsr.status": "pruned"})
        return Path(name, "mlflow.db").read_bytes(), str(run.info.run_id)


@dataclass(frozen=True)
class Planted(Hostile):
    """What somebody who may write to a store left there.

    Attributes:
        trial: what a stored trial says of itself, in place of what is true.
        artifact: the study file of a run in MLflow; None where there is no such run.
        key: the trial that the run says it is of.
    """

    trial: Mapping[str, Any] = field(default_factory=dict)
    artifact: str | None = None
    key: str = KEY

    def place(self, folder: Path) -> None:
        super().place(folder)
        home = Home(folder / ".nbsr")
        if self.trial:
            found = trained()
            ResultStore(home.trials).save(replace(found, key=KEY, trial={**found.trial, **self.trial}))
        if self.artifact is not None:
            place = folder / "artifacts"
            place.mkdir()
            (place / "study.yaml").write_text(self.artifact)
            home.root.mkdir(exist_ok=True)
            home.database.write_bytes(runs()[0])
            with sqlite3.connect(home.database) as database:
                database.execute("UPDATE runs SET artifact_uri = ?", (place.as_uri(),))
                database.execute("UPDATE tags SET value = ? WHERE key = 'nbsr.trial_key'", (self.key,))
            database.close()

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.command.replace(RUN, runs()[1] if self.artifact is not None else RUN))


def stored(name: str, command: str, says: str, **trial: Any) -> Planted:
    return Planted(name, command, says, EVIL, trial=trial)


def recorded(name: str, artifact: str, says: str, command: str = f"run --from-trial {RUN}", key: str = KEY) -> Planted:
    return Planted(name, command, says, EVIL, artifact=artifact, key=key)


TRUST: tuple[Hostile, ...] = (
    stored("a result that names code, explained", f"explain {KEY}", f"trial {KEY} {NOT_INSTALLED}", **OWN_DOMAIN),
    stored("a result that names code, reported", f"report {KEY}", "it ran from elsewhere: add --code", **OWN_DOMAIN),
    stored("a result that names code, compared", f"compare {KEY} {KEY}", NOT_INSTALLED, **OWN_DOMAIN),
    stored("a result that names code, run again", f"run --from-trial {KEY}", NOT_INSTALLED, **OWN_DOMAIN),
    stored("code that is not where the user says", f"explain {KEY} --code .", "neither installed nor in", **OWN_DOMAIN),
    stored("a folder of code that is not there", f"explain {KEY} --code nowhere", "Invalid value for '--code'", seed=1),
    stored("a result that names a function", f"explain {KEY}", "must be a subclass of", domain="os:system"),
    stored("a result that names a path", f"report {KEY}", "cannot be used", domain="../elsewhere/evil:Evil"),
    stored("a result that names a number", f"explain {KEY}", "stored with domain of a wrong kind", domain=7),
    stored("a result that calls a function", f"explain {KEY}", "a function that is annotated", **BACKBONE),
    stored("a result whose study climbs out", f"run --from-trial {KEY}", "name: expected a name", study="../../x"),
    stored("a report whose study climbs out", f"report {KEY}", "name: expected a name", study="../../x"),
    recorded(
        "a run whose study climbs out of the home",
        GOOD.replace("fine", "../../x"),
        "name: expected a name of letters",
    ),
    recorded("a run whose study names code", GOOD.replace("iris", "evil:Evil"), f"{NOT_INSTALLED}: add --code FOLDER"),
    recorded("a run whose study calls a function", "!!python/object/apply:os.mknod [x]\n", "is not allowed"),
    recorded("a run whose study is a list", "- 1\n", "expected a mapping"),
    recorded("a run whose study is large", GOOD + "#" * 2**20, "is larger than 1 MiB"),
    recorded("a run whose trial climbs out of the store", GOOD, "which is no key", key=f"../trials/{KEY}"),
    recorded("a run whose trial climbs out, explained", GOOD, "which is no key", f"explain {RUN}", "../../x"),
)
