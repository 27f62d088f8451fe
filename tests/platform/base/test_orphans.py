"""Agents of a Ray whose driver is gone are ended, and nobody else is."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nbsr_platform.base.orphans import end_agents

AGENT = "ray::DashboardAgent"


@contextmanager
def process(folder: Path, title: str = AGENT) -> Iterator[subprocess.Popen[bytes]]:
    """One that naps under a title, with a log open in the folder of a Ray."""
    log = folder / "s" / "session_1" / "logs" / "agent.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        napping = subprocess.Popen([title, "600"], executable="/bin/sleep", stdout=file)
    try:
        yield napping
    finally:
        napping.kill()
        napping.wait()


def test_only_the_agents_of_this_ray_are_ended(tmp_path: Path) -> None:
    with ExitStack() as started:
        agent = started.enter_context(process(tmp_path / "mine"))
        others = [
            started.enter_context(process(tmp_path / "another")),
            started.enter_context(process(tmp_path / "mine, too")),
            started.enter_context(process(tmp_path / "mine", "tail")),
        ]
        assert end_agents(tmp_path / "nobody") == []
        shutil.rmtree(tmp_path / "mine")  # as a dead driver's is, before
        assert end_agents(tmp_path / "mine") == [agent.pid]
        assert agent.wait(10) == -signal.SIGKILL
        assert [other.poll() for other in others] == [None] * 3
