"""Ray may be lost while a study runs on it: its node or its control store is killed. Ray itself would wait, and wait.

A thread looks at what the driver cannot do without, and interrupts the driver when that is gone. Of a Ray of our own
these are processes that we started; of a cluster, its control store is asked whether the node that we are on lives.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from nbsr_core.errors import NbsrError
from nbsr_platform.base.endings import Interruption
from nbsr_platform.base.orphans import end_agents
from nbsr_platform.base.terminal import Terminal

# Seconds between two looks: at our own processes, at a cluster.
OWN_PAUSE, CLUSTER_PAUSE = 0.25, 2.0
# Whoever ends our whole process group ends Ray's processes too: seconds that his signal to us may take to be handled.
A_MOMENT = 2.0
# Seconds in which an interrupted driver must be done with Ray: some of its calls wait for a dead control store, and
# hear of nothing.
REACTION_SECONDS = 12.0
# Seconds for which a cluster's control store may be silent (it may be restarted). After 60, Ray ends the process.
CLUSTER_PATIENCE, ANSWER_SECONDS = 25.0, 5.0
# A node that ends (its agent was killed, say) loses its workers first: seconds until it is gone itself.
LAST_MOMENTS = 15.0
EXIT_CODE = 2  # as for a full disk or a lost database
# What Ray calls the processes that a driver cannot do without. An agent that is lost ends its raylet.
VITAL = {"raylet": "its node", "gcs_server": "its control store"}


class RayLostError(NbsrError, RuntimeError):
    """Ray was there and is gone."""

    def __init__(self, what: str) -> None:
        super().__init__(what)  # as it is given, so that it can travel between processes
        self.what = what

    def __str__(self) -> str:
        return (
            f"Ray was lost: {self.what} (killed, or out of memory?)\n"
            "What is done is kept; the same command goes on from here."
        )


class RayWatch:
    """Whether the Ray that this process is connected to is still there; looked after inside `with`.

    Args:
        interruption: interrupts the driver; None, or one that cannot, leaves it to what Ray does.
    """

    def __init__(self, interruption: Interruption | None) -> None:
        from nbsr_platform.execution.on_ray.compat import Node  # with Ray, of which others know only that it was lost

        self.node = Node()
        self.is_ours = not self.node.processes.isdisjoint(VITAL)
        if not self.is_ours:
            self.node.ask_control_store()
        self.interruption = interruption
        self.interrupted, self.lost = False, ""
        self.answered = time.monotonic()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="ray watch", daemon=True)

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is known to be lost, as of now."""
        if self.is_ours and not self.lost:
            self.lost = self._dead_processes()
        return not self.lost

    def check(self) -> None:
        """Raise where Ray is lost."""
        if not self.is_whole:
            raise RayLostError(self.lost)

    def __enter__(self) -> RayWatch:
        global _current
        _current = self
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """What went wrong because Ray is lost is told as just that.

        Unless somebody else wants us to end: he may well have ended Ray's processes with us.
        """
        global _current
        _current = None
        self.over.set()
        self.thread.join()
        if isinstance(error, Exception) or self.interrupted:
            self.check()

    def _watch(self) -> None:
        while not self.over.wait(OWN_PAUSE if self.is_ours else CLUSTER_PAUSE):
            lost = self._dead_processes() if self.is_ours else self._silent_cluster()
            if lost:
                self.lost = lost
                if not self.over.wait(A_MOMENT):
                    self._interrupt()
                return

    def _interrupt(self) -> None:
        if self.interruption is None or not self.interruption.possible:
            return
        if self.interruption.number is None:
            self.interrupted = True
            self.interruption.cause()
        if not self.over.wait(REACTION_SECONDS):
            if self.is_ours:
                end_agents(Path(self.node.session_folder))
            leave(RayLostError(self.lost))

    def _dead_processes(self) -> str:
        dead = {name: pid for name, pid in self.node.dead_processes().items() if name in VITAL}
        return ", ".join(f"{VITAL[name]} ({name}, process {pid}) has ended" for name, pid in dead.items())

    def _silent_cluster(self) -> str:
        from ray.exceptions import RayError

        try:
            alive = self.node.is_alive(ANSWER_SECONDS)
        except RayError:
            silent = time.monotonic() - self.answered
            return f"the cluster's head has not answered for {silent:.0f} s" if silent > CLUSTER_PATIENCE else ""
        self.answered = time.monotonic()
        return "" if alive else "the node that this run is on is no longer part of the cluster"


def leave(error: RayLostError) -> NoReturn:
    """Say it, and end the process at once.

    What is left of Ray would hold up a process that ends in good order, or bring it down with a stack of its own.
    """
    Terminal(stderr=True).say(str(error), style="red")
    sys.stdout.flush()
    os._exit(EXIT_CODE)


_current: RayWatch | None = None


def check_ray(seconds: float = 0.0) -> None:
    """Raise where the Ray of this process is lost, or gets lost in so many seconds: then no trial is to blame."""
    deadline, watch = time.monotonic() + seconds, _current
    while watch is not None:
        watch.check()
        if time.monotonic() >= deadline:
            return
        time.sleep(OWN_PAUSE)


def is_whole() -> bool:
    """Whether Ray can be asked for anything: it may wait for ever where it lost a part."""
    return _current is None or _current.is_whole
