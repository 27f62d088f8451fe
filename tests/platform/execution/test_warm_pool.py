"""Workers stay warm from one study of a run to the next, and what is lost meanwhile costs nothing but time."""

from __future__ import annotations

import io
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from nbsr_platform.base.endings import Interrupted, interruptible
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.execution.coordinator import Coordinator
from nbsr_platform.execution.executors import OnRay
from nbsr_platform.execution.feeds import GridFeed
from nbsr_platform.execution.on_ray.compat import is_alive
from nbsr_platform.execution.on_ray.placement import Placement
from nbsr_platform.execution.on_ray.session import ray_session
from nbsr_platform.execution.on_ray.warm_pool import WarmPool
from nbsr_platform.execution.progress import Progress
from nbsr_platform.study.study import Study
from nbsr_platform.trials.ended_trials import EndedTrials
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid
from processes import NAPS, document, place, wait_for

NO_NEWS = SimpleNamespace(started=lambda *_: None, progressed=lambda *_: None, ended=lambda *_: None)


def workers_of(folder: Path) -> set[str]:
    """Processes in which the trials of two studies ran, one at a time."""
    study = NAPS.replace("epochs: 20", "epochs: 2") + "resources: {concurrency: 1}\n"
    place(folder, study.replace("seeds: 3", "seeds: [0]"))
    (folder / "more.yaml").write_text(study.replace("seeds: 3", "seeds: [1]").replace("name: naps", "name: more"))
    (folder / "all.yaml").write_text("name: all\ninclude: [naps.yaml, more.yaml]\n")
    assert document(folder, "all.yaml")["trials"]["finished"] == 4
    return set((folder / "naps.log").read_text().split())


@pytest.mark.slow
def test_a_collection_is_run_by_the_workers_of_its_first_study(tmp_path: Path) -> None:
    """Each of its studies had workers of its own before: twice as many processes."""
    assert len(workers_of(tmp_path / "naps")) == 1


class Trained:
    """Trials of a study of Iris on a Ray that is up."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.store = ResultStore(self.home.trials)

    def run(self, executor: OnRay, seed: int, **resources: Any) -> EndedTrials:
        values = {
            "name": f"s{seed}",
            "domain": "iris",
            "training": {"epochs": 1},
            "models": {"mlp": {}},
            "seeds": [seed],
        }
        study = Study.from_dict({**values, "resources": resources})
        trials, ended_trials = grid(study, data_fingerprint(study)), EndedTrials()
        with Progress(Terminal(io.StringIO()), study.name, len(trials), 0) as progress:
            feed = GridFeed(list(trials))
            executor.execute(
                Coordinator(feed, study.name, self.home, cast(Any, NO_NEWS), progress, ended_trials), study
            )
        return ended_trials


def pool_of(executor: OnRay) -> Any:
    assert executor._pool is not None
    return executor._pool


@pytest.mark.slow
def test_which_workers_are_used_again(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    with ray_session(None, cpus=2), interruptible() as interruption:
        with OnRay(trained.home, None, interruption) as executor:
            executor.start()
            assert len(trained.run(executor, 0, concurrency=1).finished) == 1
            first = pool_of(executor)
            (worker,) = first.workers
            assert len(trained.run(executor, 1, concurrency=1).finished) == 1
            assert pool_of(executor) is first
            assert first.workers == {worker}, "the same process"

            ray.kill(worker)  # while it has nothing to do
            wait_for(lambda: not is_alive(worker, 30), 60)
            lost = trained.run(executor, 2, concurrency=1)
            assert (len(lost.finished), lost.failed) == (1, []), "nobody is to blame"
            second = pool_of(executor)
            assert second is not first

            assert len(trained.run(executor, 3, cpus_per_worker=2).finished) == 1
            assert pool_of(executor) is not second, "workers of another size"
        assert [thread for thread in threading.enumerate() if thread.name == "warm pool"] == []
        wait_for(lambda: ray.available_resources().get("CPU") == 2.0, 60)  # nothing is held when the run is over


class SlowToEnd(WarmPool):
    """Its thread is cleaning up when it is told to go."""

    def _run(self) -> None:
        while not self._is_abandoned:
            time.sleep(0.01)
        time.sleep(0.3)


def test_ray_outlives_the_pool_also_when_its_ending_is_interrupted(tmp_path: Path) -> None:
    """Ray ends a process in which a thread asks it for something after its shutdown, with exit code 1."""
    pool = SlowToEnd(cast("Placement", None), Home(tmp_path))
    with pytest.raises(Interrupted), interruptible() as interruption:  # noqa: PT012
        threading.Timer(0.2, interruption.cause, [signal.SIGINT]).start()
        pool.close()
    assert not pool._thread.is_alive()
