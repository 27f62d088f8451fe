"""All that we use of Ray's private parts, in one place; `test_ray_compat` fails where Ray has changed one of them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.job_config import JobConfig

# Ray starts a process per CPU before anybody asks for one. They wait for tasks, which we have none of, and hold up the
# workers that we do ask for.
NO_WORKERS_IN_ADVANCE = ("RAY_prestart_worker_first_driver", "0")


class NoFolders(JobConfig):  # type: ignore[misc]
    """A job whose workers import what is installed, and no module of the folder in which the driver was started.

    Ray puts the driver's current folder, and that of its script, first on the path of its workers, so that a `queue.py`
    there would stand for Python's own. What stands beside a study file is found by `nbsr_core.code.named`.
    """

    @property
    def _py_driver_sys_path(self) -> list[str]:
        return []

    @_py_driver_sys_path.setter
    def _py_driver_sys_path(self, folders: Sequence[str]) -> None:
        """Whatever Ray wants there."""


@contextlib.contextmanager
def quiet_processes() -> Iterator[None]:
    """What Ray's own processes complain of stays in its logs.

    Their errors are printed whatever `log_to_driver` says: in the midst of our lines, and when they are asked to end
    together with us.
    """
    driver = ray._private.worker
    before, driver.print_to_stdstream = driver.print_to_stdstream, lambda *_, **__: None
    try:
        yield
    finally:
        driver.print_to_stdstream = before


def read_token_again() -> None:
    """Ray remembers both whether it asks for a token, and which."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def our_signals() -> Iterator[None]:
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
def on_loopback() -> Iterator[None]:
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


class Node:
    """The node of Ray's that this process is connected to."""

    def __init__(self) -> None:
        from ray._raylet import NodeID

        self._node: Any = ray._private.worker._global_node
        self._id = NodeID.from_hex(ray.get_runtime_context().get_node_id())
        self._control_store: Any = None

    @staticmethod
    def is_there() -> bool:
        """There is none where Ray is only spoken to (ray://)."""
        return ray._private.worker._global_node is not None

    @property
    def session_folder(self) -> str:
        return str(self._node.get_session_dir_path())

    @property
    def processes(self) -> set[str]:
        """Names of the processes that this one has started for it."""
        return set(self._node.all_processes)

    def dead_processes(self) -> dict[str, int]:
        """Those of them that have ended: name and number."""
        return {name: process.pid for name, process in self._node.dead_processes()}

    def ask_control_store(self) -> None:
        """Connect to the cluster's control store, for `is_alive`."""
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        self._control_store = GcsClient(address=str(self._node.gcs_address))

    def is_alive(self, seconds: float) -> bool:
        """What the cluster's control store says; raises a `RayError` where it does not answer in time."""
        (alive,) = self._control_store.check_alive([self._id], timeout=seconds)
        return bool(alive)


def resources_to_come() -> dict[str, float]:
    """What the cluster would have once its autoscaler has started all that it may."""
    from ray._private.state import state

    return {name: float(most) for name, most in (state.get_max_resources_from_cluster_config() or {}).items()}


def raised_by_worker(failure: BaseException) -> BaseException:
    """What a worker of Ray Train's raised, which comes wrapped."""
    wrapped: BaseException = getattr(failure, "_base_exc", failure)
    return wrapped


def keep_idle_workers(controller: Any, trial: Any, count: int) -> None:
    """Have Tune keep so many workers of a trial's size while no trial waits; by itself it keeps one.

    Args:
        controller: Tune's, as it is given to schedulers.
        trial: Tune's.
        count: of workers.
    """
    controller._tune_controller._actor_cache.increase_max(trial.placement_group_factory, count)


def worker_of(trial: Any) -> Any:
    """The actor in which a trial of Tune's runs."""
    return trial.temporary_state.ray_actor


def is_alive(worker: Any, seconds: float) -> bool:
    """Whether an actor that has nothing to do answers."""
    try:
        ray.get(worker.__ray_ready__.remote(), timeout=seconds)
    except ray.exceptions.RayError:
        return False
    return True
