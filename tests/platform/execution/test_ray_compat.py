"""Ray's private parts are still what `on_ray.compat` takes them for; a new Ray that changed one fails here by name."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import ray
from nbsr_platform.execution.on_ray import compat
from nbsr_platform.execution.on_ray.placement import HEAD
from nbsr_platform.execution.on_ray.watch import VITAL
from ray._private import node, ray_constants, services, utils, worker
from ray.job_config import JobConfig
from ray.tune import PlacementGroupFactory
from ray.tune.execution.tune_controller import TrialRunnerWrapper, TuneController
from ray.tune.experiment import Trial
from ray.tune.utils.object_cache import _ObjectCache

# In a process of its own: what Ray says of itself when it is up.
ASK = """
import json, os, signal, time
import ray
from nbsr_platform.execution.on_ray import compat
from nbsr_platform.execution.on_ray.session import ray_session

before = signal.getsignal(signal.SIGTERM)
with ray_session(None, cpus=1):
    @ray.remote(num_cpus=0)
    class Idle:
        def path(self):
            import sys
            return sys.path

    idle = Idle.remote()
    folders = ray.get(idle.path.remote())
    node = compat.Node()
    node.ask_control_store()
    said = {
        "signal": signal.getsignal(signal.SIGTERM) == before,
        "there": compat.Node.is_there(),
        "processes": sorted(node.processes),
        "folder": os.path.isdir(node.session_folder),
        "dead": node.dead_processes(),
        "alive": node.is_alive(10),
        "resources": sorted(ray.cluster_resources()),
        "to come": compat.resources_to_come(),
        "hidden": os.getcwd() not in folders and "" not in folders,
        "answers": compat.is_alive(idle, 30),
    }
    ray.kill(idle)  # takes a moment
    said["falls silent"] = any(not compat.is_alive(idle, 30) or time.sleep(0.1) for _ in range(300))
    raylet = node._node.all_processes["raylet"][0].process
    raylet.kill()
    raylet.wait()
    said["killed"] = list(node.dead_processes())
    print(json.dumps(said), flush=True)
    os._exit(0)
"""


@pytest.mark.slow
def test_what_a_ray_of_our_own_says_of_itself(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ASK], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert VITAL.keys() <= set(said.pop("processes"))
    assert HEAD in said.pop("resources")
    assert said == {
        "signal": True,
        "there": True,
        "folder": True,
        "dead": {},
        "alive": True,
        "to come": {},
        "hidden": True,
        "answers": True,
        "falls silent": True,
        "killed": ["raylet"],
    }


def test_ray_prints_what_its_processes_say_by_the_function_that_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect.getsource(worker).count("print_to_stdstream") > 1
    before = worker.print_to_stdstream
    with compat.quiet_processes():
        worker.print_to_stdstream({"lines": ["hello"], "pid": 1, "ip": "127.0.0.1", "is_err": False}, False)
    assert worker.print_to_stdstream is before
    assert capsys.readouterr().out == ""


def test_ray_sets_its_signal_handler_by_the_function_that_is_replaced() -> None:
    for part in (worker, node):
        assert "ray._private.utils.set_sigterm_handler(" in inspect.getsource(part)
    before = utils.set_sigterm_handler
    with compat.our_signals():
        assert utils.set_sigterm_handler is not before
    assert utils.set_sigterm_handler is before


def test_whether_ray_opens_a_cluster_decides_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    with compat.on_loopback():
        assert not ray_constants.ENABLE_RAY_CLUSTER
        assert services.get_node_ip_address() == "127.0.0.1"
    assert ray_constants.ENABLE_RAY_CLUSTER


def test_ray_reads_its_token_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

    for token in ("a" * 64, "b" * 64):
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        compat.read_token_again()
        assert AuthenticationTokenLoader.instance().get_raw_token() == token
    monkeypatch.undo()
    compat.read_token_again()


def test_ray_asks_a_job_for_the_folders_of_its_driver() -> None:
    assert "_py_driver_sys_path" in vars(JobConfig())
    job = compat.NoFolders()
    job._py_driver_sys_path = ["/somewhere"]
    assert job._py_driver_sys_path == []


def test_ray_reads_how_many_processes_to_start_in_advance() -> None:
    assert compat.NO_WORKERS_IN_ADVANCE[0].removeprefix("RAY_").encode() in raylet_program()


def raylet_program() -> bytes:
    with open(os.path.join(os.path.dirname(ray.__file__), "core", "src", "ray", "raylet", "raylet"), "rb") as file:
        return file.read()


def test_tune_keeps_as_many_idle_workers_as_it_is_asked_to() -> None:
    """By itself one; this is what a warm pool stands on."""
    size = PlacementGroupFactory([{"CPU": 1.0}])
    controller = SimpleNamespace(_actor_cache=_ObjectCache(may_keep_one=True))
    wrapped = SimpleNamespace(_tune_controller=controller)
    trial = SimpleNamespace(placement_group_factory=PlacementGroupFactory([{"CPU": 1.0}]))
    cache = controller._actor_cache
    assert [cache.cache_object(size, worker) for worker in "ab"] == [True, False]
    compat.keep_idle_workers(wrapped, trial, 2)
    assert [cache.cache_object(size, worker) for worker in "bc"] == [True, False]
    assert list(cache.flush_cached_objects()) == []
    assert list(cache.flush_cached_objects(force_all=True)) == ["a", "b"]
    assert "self._actor_cache = _ObjectCache(may_keep_one=True)" in inspect.getsource(TuneController.__init__)
    assert "self._tune_controller = tune_controller" in inspect.getsource(TrialRunnerWrapper.__init__)


def test_tune_waits_for_a_searcher_that_waits() -> None:
    """Asked for a trial when none is under way, Tune takes the first answer without a pause of its own."""
    source = inspect.getsource(TuneController._update_trial_queue)
    assert source.index("trial = self._search_alg.next_trial()") < source.index("if blocking and not trial:")


def test_tune_knows_the_worker_of_a_trial() -> None:
    trial = Trial("nobody", stub=True)
    handle = MagicMock()
    trial.set_ray_actor(handle)
    assert compat.worker_of(trial) is handle


def test_ray_train_wraps_what_workers_raise() -> None:
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

    said = ValueError("no")
    assert compat.raised_by_worker(UserExceptionWithTraceback(said, "where")) is said
    assert compat.raised_by_worker(said) is said
