"""The project around a file, and where in it Python modules are looked for: the same here and on a cluster."""

from __future__ import annotations

import stat
from pathlib import Path

# What `nbsr submit` leaves at the top of a project that it sends: the marks of a project may stay at home.
SENT = ".nbsr-project"
# The top of a project holds one of these.
MARKS = (SENT, "pyproject.toml", "setup.py", ".git")


def project_of(folder: Path) -> Path:
    """The top of the project that a folder belongs to: the nearest one that looks like it, else the folder itself.

    A folder that everybody can write to, such as /tmp, is nobody's project: anybody could have put a mark there.
    """
    here = folder.resolve()
    for place in (here, *here.parents):
        if place != here and place.exists() and place.stat().st_mode & stat.S_IWOTH:
            break
        if any((place / mark).exists() for mark in MARKS):
            return place
    return here


def module_folders(folder: Path) -> tuple[Path, ...]:
    """Where a module that a study names is looked for: beside the study, at the top of its project, below its `src`."""
    top = project_of(folder)
    return tuple(dict.fromkeys(place for place in (folder, top, top / "src") if place.is_dir()))
