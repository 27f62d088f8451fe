"""Processes of a Ray whose driver is gone.

Most of them end with their driver; agents stay for most of a minute, with memory and ports. They are known by the
folder in which their Ray has its files: each driver has one of its own, and a lock on it that only a dead one lets go.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from nbsr_platform.base.listeners import PROC

# The titles of the processes that stay.
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def end_agents(ray: Path) -> list[int]:
    """End the agents of the Ray that has, or had, its files in this folder; returns them."""
    ended = []
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):  # it may end by itself, or be somebody else's
            process = os.pidfd_open(int(folder.name))  # from here on, nobody else can get its number
            try:
                if _is_agent_in(folder, ray):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    ended.append(int(folder.name))
            finally:
                os.close(process)
    return ended


def _is_agent_in(folder: Path, ray: Path) -> bool:
    """By its title, its owner, and the logs that it has open there."""
    title = (folder / "cmdline").read_bytes().decode(errors="replace")
    if not title.startswith(AGENTS) or folder.stat().st_uid != os.getuid():
        return False
    return any(link.readlink().is_relative_to(ray) for link in (folder / "fd").iterdir())
