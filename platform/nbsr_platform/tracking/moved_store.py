"""A sqlite store that was moved or copied: its artifacts are looked for, and written, where it is now.

MLflow keeps absolute addresses: of an experiment, from which those of new runs are made, and of each run. A home that
was moved would have its artifacts written to the place where it was, and find none of those that came along.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nbsr_platform.base.compat import MLFLOW_ADDRESSES

logger = logging.getLogger("nbsr.tracking")

ARTIFACTS = "artifacts"  # the folder beside a store in which its artifacts are
SECONDS = 30.0  # for which a store that somebody else is writing to is waited for


@dataclass(frozen=True)
class _Experiment:
    """An experiment whose artifacts are not where they would be if its store had always been here."""

    number: int
    name: str
    before: Path
    address: str


def follow(file: Path) -> int:
    """Correct the addresses of artifacts that came along with a store; returns how many experiments that concerned.

    An experiment is followed where files of its runs lie beside the store, or where the folder of artifacts that it
    names is gone. Others have been given a place of their own, which is respected. Whoever opens the store does this;
    of several who do so at once, one changes it, and the others find it done.
    """
    root = file.absolute().parent / ARTIFACTS
    with closing(sqlite3.connect(file, timeout=SECONDS, isolation_level=None)) as database:
        moved = [experiment for experiment in _elsewhere(database, root) if _came_along(database, experiment, root)]
        if not moved:
            return 0
        database.execute("begin immediate")
        moved = [experiment for experiment in _elsewhere(database, root) if _came_along(database, experiment, root)]
        for experiment in moved:
            _correct(database, experiment, root)
        database.execute("commit")
    for old in sorted({str(experiment.before.parent) for experiment in moved}):
        logger.warning("%s was moved: artifacts that were in %s are now looked for, and kept, in %s", file, old, root)
    return len(moved)


def _elsewhere(database: sqlite3.Connection, root: Path) -> Iterator[_Experiment]:
    """Experiments of ours (their folder bears their name) that have their artifacts in another folder than `root`."""
    if not database.execute("select 1 from sqlite_master where type = 'table' and name = 'experiments'").fetchall():
        return
    for number, name, address in database.execute("select experiment_id, name, artifact_location from experiments"):
        place = _path(address)
        if place is not None and place.name == name and place != root / name and not _same(place.parent, root):
            yield _Experiment(number, name, place, address)


def _came_along(database: sqlite3.Connection, experiment: _Experiment, root: Path) -> bool:
    if not experiment.before.parent.is_dir():
        return True
    here = root / experiment.name
    found = set(os.listdir(here)) if here.is_dir() else set()
    runs = database.execute("select run_uuid from runs where experiment_id = ?", (experiment.number,))
    return any(run in found for (run,) in runs)


def _correct(database: sqlite3.Connection, experiment: _Experiment, root: Path) -> None:
    """Put the new folder for the old one at the beginning of every address below the experiment's."""
    old, new = experiment.address, (root / experiment.name).as_uri()
    for table, column, owner in MLFLOW_ADDRESSES:
        columns = {row[1] for row in database.execute(f"pragma table_info({table})")}
        if column not in columns:  # of another version of MLflow
            continue
        below = f"({column} = :old or substr({column}, 1, length(:old) + 1) = :old || '/')"
        mine = f" and {owner} = :number" if owner else ""
        database.execute(
            f"update {table} set {column} = :new || substr({column}, length(:old) + 1) where {below}{mine}",
            {"old": old, "new": new, "number": experiment.number},
        )


def _path(address: str | None) -> Path | None:
    """The folder that an address names; None where it is not on this machine's disks."""
    if not address:
        return None
    parts = urlsplit(address)
    if parts.scheme == "":
        return Path(address)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def _same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one folder, as by a symbolic link."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
