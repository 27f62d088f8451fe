"""The Ray that a study runs on.

A Ray of our own is for its user alone: it listens on loopback, lets in those who have a token that only its processes
know, and keeps its files and sockets in a folder that nobody else may enter. All of it ends with the run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from nbsr_core.errors import NbsrError
from nbsr_platform.base.credentials import scrubbed
from nbsr_platform.base.endings import Interruption
from nbsr_platform.base.leftovers import sweep, temporary_place
from nbsr_platform.base.orphans import end_agents
from nbsr_platform.base.starting import cleaning_up
from nbsr_platform.execution.on_ray.compat import (
    NO_WORKERS_IN_ADVANCE,
    Node,
    NoFolders,
    on_loopback,
    our_signals,
    quiet_processes,
    read_token_again,
)
from nbsr_platform.execution.on_ray.watch import RayWatch

# How Ray is told whether it asks for a token, and which.
MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
# The path of a socket has 107 bytes at most; below the folder that we make for it Ray's needs about this many.
LONGEST_SOCKET, OF_RAY = 107, 92
# Seconds for which a Ray that has lost a part may take to end; a dead control store takes seven.
ENDING_PATIENCE = 20.0


class RayError(NbsrError, RuntimeError):
    """There is no Ray to run on."""


@contextlib.contextmanager
def ray_session(
    address: str | None, cpus: int | None = None, interruption: Interruption | None = None
) -> Iterator[None]:
    """A Ray of our own, or the cluster at `address`; one that is already up in this process is used as it is.

    Args:
        address: of the cluster; None starts a Ray here.
        cpus: that a Ray of our own has; those of the machine by default.
        interruption: interrupts the block when Ray is lost, which is a `RayLostError` then.
    """
    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"ray\..*")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "job_config": NoFolders()}
    with contextlib.ExitStack() as ours:
        ours.enter_context(quiet_processes())
        try:
            if address is None:
                os.environ.setdefault(*NO_WORKERS_IN_ADVANCE)
                ours.enter_context(_private_token())
                folder = ours.enter_context(_private_folder())
                with our_signals(), on_loopback():
                    ray.init(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=str(folder), **options)
            else:
                with our_signals():
                    ray.init(address=address, **options)
        except Exception as error:  # of any kind: a machine too busy, a cluster that is not there
            what = "Ray does not start here" if address is None else f"cannot use the Ray cluster at {address!r}"
            raise RayError(scrubbed(f"{what}: {' '.join(str(error).split())}")) from None
        watch = RayWatch(interruption) if Node.is_there() else None
        try:
            with watch or contextlib.nullcontext():
                yield
        finally:
            _end(watch)


def _end(watch: RayWatch | None) -> None:
    """A Ray that has lost a part may never end in good order: it is not waited for in vain."""
    if watch is None or watch.is_whole:
        ray.shutdown()
    else:
        ending = threading.Thread(target=ray.shutdown, name="ray shutdown", daemon=True)
        ending.start()
        ending.join(ENDING_PATIENCE)


@contextlib.contextmanager
def _private_token() -> Iterator[None]:
    """A token of this run's own, in the environment of its processes, which other users cannot read.

    Ray would make one for all runs to come in ~/.ray/auth_token, which others can read. Who names a token, or wants
    none, gets what was asked for.
    """
    before = {name: os.environ.get(name) for name in (MODE, TOKEN)}
    if before[MODE] not in (None, "token") or before[TOKEN] or TOKEN_FILE in os.environ:
        yield
        return
    os.environ.update({MODE: "token", TOKEN: secrets.token_hex(32)})
    read_token_again()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        read_token_again()


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder for Ray's files and sockets that only its user may enter; gone at the end, or swept by the next run.

    Ray lets everybody write to the folder that it is given, so it gets one within. What is still running there when
    its driver has ended, or was killed, is ended too.
    """
    bases = [Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()), Path("/tmp")]
    base = next((base for base in bases if len(os.fsencode(base)) + OF_RAY <= LONGEST_SOCKET), bases[0])
    for left in sweep(base):
        end_agents(left)
    with temporary_place(base, "ray") as place:
        place.mkdir(mode=0o700)
        try:
            with cleaning_up(lambda: end_agents(place)):
                yield place / "s"
        finally:
            end_agents(place)
