"""What git knows of a folder: its commit, and which files differ from it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PATIENCE = 60  # seconds


def ask(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, whatever repository the environment speaks of; nothing of the repository is run.

    Raises:
        OSError, subprocess.TimeoutExpired: there is no git, or it does not answer.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "core.fsmonitor=false", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=PATIENCE)


def commit(folder: Path) -> str | None:
    """The commit that is checked out there, twelve digits of it; None where there is none."""
    return _answer(folder, "rev-parse", "--short=12", "HEAD") or None


def has_changes(folder: Path, *paths: str) -> bool:
    """Whether files there (or only those below some paths) differ from the commit."""
    return bool(_answer(folder, "status", "--porcelain", "--", *paths))


def _answer(folder: Path, *words: str) -> str:
    try:
        done = ask(folder, *words)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(done.stdout).strip() if done.returncode == 0 else ""
