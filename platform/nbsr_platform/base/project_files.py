"""The files of a project or a package that may travel: what git tracks, and nothing that is hidden or generated."""

from __future__ import annotations

import fnmatch
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbsr_platform.base import git

# Never sent, wherever they stand.
LEFT_OUT = ("__pycache__", "node_modules", "venv", "mlruns", "mlartifacts", "*.egg-info")


def tracked_files(root: Path, notes: list[str]) -> list[Path] | None:
    """Files below `root` that git tracks; None if it tracks none there. Links count if what they lead to does."""
    try:
        done = git.ask(root, "ls-files", "-z", "--cached", "--recurse-submodules")
    except (OSError, subprocess.TimeoutExpired) as error:
        notes += [f"git cannot be asked what it tracks: {error}"] if (root / ".git").exists() else []
        return None
    if done.returncode and (root / ".git").exists():
        said = os.fsdecode(done.stderr).strip().splitlines()
        notes.append(f"git does not say what it tracks: {said[0] if said else f'exit code {done.returncode}'}")
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name] if done.returncode == 0 else []
    known = {root / name for name in names}
    return [path for path in (root / name for name in names) if path.is_file() and path.resolve() in known] or None


def is_left_out(name: str) -> bool:
    return name.startswith(".") or any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT)


def home_of(package: Any) -> Path:
    return Path(str(package.__file__)).parent


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a package of Python, by their path in it."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_left_out(name))
        for path in (Path(here) / name for name in sorted(files) if not is_left_out(name)):
            if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
                yield path.relative_to(folder).as_posix(), path
