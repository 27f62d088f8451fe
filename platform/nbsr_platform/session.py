"""What a study needs around it while it runs: a lock, so that nobody runs it twice at once, and a Ray."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import ray
from ray.job_config import JobConfig

from nbsr_core.errors import NbsrError
from nbsr_platform.paths import Home

# Ray starts a process a CPU before anybody asks for one. They wait for tasks, which we have none of, and hold up the
# workers that we do ask for.
NO_WORKERS_IN_ADVANCE = ("RAY_prestart_worker_first_driver", "0")
# Who has one of these has decided how Ray knows its own.
TOKEN, TOKENS = "RAY_AUTH_TOKEN", ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


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
def ray_session(address: str | None, cpus: int | None = None) -> Iterator[None]:
    """A Ray of our own, or the cluster at `address`; one that is already up in this process is used as it is."""
    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"ray\..*")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    with contextlib.ExitStack() as held:
        try:
            if address is None:
                os.environ.setdefault(*NO_WORKERS_IN_ADVANCE)
                held.enter_context(_token_of_our_own())
                with _on_loopback():
                    ray.init(
                        address="local", num_cpus=cpus, include_dashboard=False, job_config=_same_path(), **options
                    )
            else:
                ray.init(address=address, **options)
        except Exception as error:  # of any kind: a machine too busy, a cluster that is not there
            what = "Ray does not start here" if address is None else f"cannot use the Ray cluster at {address!r}"
            raise RayError(f"{what}: {' '.join(str(error).split())}") from None
        try:
            yield
        finally:
            ray.shutdown()


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


@contextlib.contextmanager
def _token_of_our_own() -> Iterator[None]:
    """A token for this Ray alone, in the environment of its processes.

    Otherwise Ray writes one into ~/.ray for all its sessions, where everybody can read it, and does not start where the
    home folder cannot be written.
    """
    if any(name in os.environ for name in TOKENS):
        yield
        return
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

    os.environ[TOKEN] = secrets.token_hex(32)
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        yield
    finally:
        for name in TOKENS:  # Ray sets the mode
            os.environ.pop(name, None)
        AuthenticationTokenLoader.instance().reset_cache()


class _Leading(list[str]):
    """Takes no folder but the one in which this process looks for modules first."""

    def extend(self, places: Iterable[str]) -> None:
        super().extend(place for place in places if place == os.path.abspath(sys.path[0]))


def _same_path() -> JobConfig:
    """Have workers look for modules where we do.

    Ray puts the folder that it is started in first on their path, even if it is not on ours: a `queue.py` there would
    stand for the standard library's, and no worker would start.
    """
    config = JobConfig()
    config._py_driver_sys_path = _Leading()
    return config
