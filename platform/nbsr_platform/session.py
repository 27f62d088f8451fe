"""What a study needs around it while it runs: a lock, so that nobody runs it twice at once, and a Ray.

A Ray of our own is for its user alone: it listens on loopback, lets in those who have a token that only its processes
know, and keeps its files and sockets in a folder that nobody else may enter. All of it ends with the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.job_config import JobConfig

from nbsr_core.errors import NbsrError
from nbsr_platform.credentials import scrubbed
from nbsr_platform.endings import Interruption
from nbsr_platform.leftovers import sweep, temporary_place
from nbsr_platform.orphans import end_agents
from nbsr_platform.paths import Home
from nbsr_platform.ray_watch import RayWatch

# Ray starts a process a CPU before anybody asks for one. They wait for tasks, which we have none of, and hold up the
# workers that we do ask for.
NO_WORKERS_IN_ADVANCE = ("RAY_prestart_worker_first_driver", "0")
# How Ray is told whether it asks for a token, and which.
MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
# The path of a socket has 107 bytes at most; below the folder that we make for it Ray's needs about this many.
LONGEST_SOCKET, OF_RAY = 107, 92
# Seconds for which a Ray that has lost a part may take to end; a dead control store takes seven.
ENDING_PATIENCE = 20.0


class RayError(NbsrError, RuntimeError):
    """There is no Ray to run on."""


class AlreadyRunningError(NbsrError):
    """Somebody else is running this study in this store."""


@contextlib.contextmanager
def study_lock(home: Home, study: str) -> Iterator[None]:
    """One driver a study and store. The lock ends with its process, however that ends."""
    path = home.lock(study)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise AlreadyRunningError(f"study {study!r} is already running in {home.root} (process {owner})") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


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
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "job_config": _NoFolders()}
    with contextlib.ExitStack() as ours:
        try:
            if address is None:
                os.environ.setdefault(*NO_WORKERS_IN_ADVANCE)
                ours.enter_context(_private_token())
                folder = ours.enter_context(_private_folder())
                with _our_signals(), _on_loopback():
                    ray.init(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=str(folder), **options)
            else:
                with _our_signals():
                    ray.init(address=address, **options)
        except Exception as error:  # of any kind: a machine too busy, a cluster that is not there
            what = "Ray does not start here" if address is None else f"cannot use the Ray cluster at {address!r}"
            raise RayError(scrubbed(f"{what}: {' '.join(str(error).split())}")) from None
        has_node = ray._private.worker._global_node is not None  # it has none where Ray is only spoken to (ray://)
        watch = RayWatch(interruption) if has_node else None
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


class _NoFolders(JobConfig):  # type: ignore[misc]
    """A job whose workers import what is installed, and no module of the folder in which the driver was started.

    Ray puts the driver's current folder, and that of its script, first on the path of its workers, so that a `queue.py`
    there would stand for Python's own. What stands beside a study file is found by `nbsr_core.named_code`.
    """

    @property
    def _py_driver_sys_path(self) -> list[str]:
        return []

    @_py_driver_sys_path.setter
    def _py_driver_sys_path(self, folders: Sequence[str]) -> None:
        """Whatever Ray wants there."""


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
    _read_again()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        _read_again()


def _read_again() -> None:
    """Ray remembers both the mode and the token."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


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
            yield place / "s"
        finally:
            end_agents(place)


@contextlib.contextmanager
def _our_signals() -> Iterator[None]:
    """Keep Ray from handling SIGTERM while it starts in here.

    In Python it would end its processes under our feet, and then us; in C++ it would print a stack and abort.
    """
    from ray._private import utils

    before = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = before
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Have a Ray that is started meanwhile listen on loopback only, as it does where it opens no cluster.

    On Linux its parts listen on all interfaces otherwise, and replace 127.0.0.1 where they are told to use it.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
