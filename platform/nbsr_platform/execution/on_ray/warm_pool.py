"""Workers that stay warm from one study of a run to the next: one Ray Tune run, on a thread of its own.

Tune places and restarts workers, which run one trial after another. What is done is known from our own store, never
from Tune's snapshots.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from nbsr_platform.base.leftovers import sweep, temporary_place
from nbsr_platform.execution.coordinator import Coordinator
from nbsr_platform.execution.on_ray.compat import is_alive, keep_idle_workers, worker_of
from nbsr_platform.execution.on_ray.placement import Placement, beside_the_driver
from nbsr_platform.execution.on_ray.shelf import Shelf
from nbsr_platform.execution.on_ray.tune_trials import TuneTrials
from nbsr_platform.execution.on_ray.watch import is_whole
from nbsr_platform.execution.on_ray.worker import TrialTrainable
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial

# Seconds between two looks at whether Ray still answers a thread that is to end.
PAUSE = 0.5
# Seconds in which a worker that has nothing to do must answer.
ANSWER_SECONDS = 30.0


class _Abandoned(BaseException):
    """Ends Tune at once, without the cleaning up that it does for an `Exception`: Ray itself ends, or is lost."""


class WarmPool:
    """Workers for trials of one size; study after study is worked through by the same ones.

    What happens on its thread: Tune's loop. It asks the study in hand for trials, passes on what it hears of them, and
    so saves results, asks and tells Optuna, and shows progress, while the main thread waits. Between two studies it
    waits, with its workers.

    What the main thread may ask: `work_through` a study's trials, which returns when all of them have ended; `is_fit`
    to go on; `close`, or, when interrupted, `abandon`.

    Args:
        plan: what a trial asks of Ray, and how many run at once.
        home: the store.
    """

    def __init__(self, plan: Placement, home: Home) -> None:
        self.plan, self.home = plan, home
        self.trials: TuneTrials | None = None  # of the study in hand; the thread's own, as are the next two
        self.workers: set[Any] = set()
        self._collector: Any = None
        self._todo: SimpleQueue[TuneTrials | None] = SimpleQueue()  # None: there are no more studies
        self._is_abandoned = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="warm pool", daemon=True)
        self._thread.start()

    def work_through(self, coordinator: Coordinator) -> None:
        """Run all trials of a coordinator; raises what went wrong other than in trials."""
        trials = TuneTrials(coordinator)
        try:
            self._todo.put(trials)
            trials.over.get()
        except BaseException:
            self.abandon()
            raise
        coordinator.raise_error()
        if self._error is not None:
            coordinator.store.check_writable()  # a full disk shows in many ways
            raise self._error

    def is_fit(self) -> bool:
        """Whether all its workers are there; one that was lost while it waited would be its next trial's failure."""
        return self._thread.is_alive() and all(is_alive(worker, ANSWER_SECONDS) for worker in self.workers)

    def close(self) -> None:
        """End the workers in good order, so that what they held can be used by others."""
        self._todo.put(None)
        try:
            self._thread.join()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Have the thread end as soon as it can; it is not waited for where Ray does not answer it any more.

        Where it does, the thread must be over before Ray is: Ray ends a process that asks it for something afterwards,
        at once, without a word, with an exit code of its own. Tune looks ten times a second whether it is still wanted.
        """
        self._is_abandoned = True
        self._todo.put(None)
        while self._thread.is_alive() and is_whole():
            self._thread.join(PAUSE)

    def check_wanted(self) -> None:
        """On its thread: leave Tune where the main thread has given it up."""
        if self._is_abandoned:
            raise _Abandoned

    def next_config(self, trial_id: str) -> dict[str, Any] | str | None:
        """On its thread: the next trial as Tune wants it, None if there is none just now.

        Where no trial is under way, it waits here for the next study: Tune has nothing else to do then.
        """
        while True:
            if self.trials is None:
                self.trials = self._todo.get()
                self.check_wanted()
                if self.trials is None:
                    return str(Searcher.FINISHED)
            trial = self.trials.next(trial_id)
            if trial is not None:
                return self._config(trial)
            if self.trials.under_way:
                return None
            self._study_is_over()

    def ended(self, trial: Trial) -> None:
        """On its thread: nothing more is heard of a trial."""
        if self._collector is not None:
            self._collector.forget.remote(trial.key)

    def _study_is_over(self) -> None:
        if self.trials is not None:
            self.trials.over.put(None)
            self.trials = None

    def _run(self) -> None:
        try:
            self.home.scratch.mkdir(parents=True, exist_ok=True)
            sweep(self.home.scratch)
            with temporary_place(self.home.scratch, "tune") as scratch, _quiet_tune(), self._collecting():
                self._tuner(str(scratch)).fit()
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._study_is_over()

    def _tuner(self, scratch: str) -> tune.Tuner:
        return tune.Tuner(
            tune.with_resources(TrialTrainable, self.plan.per_trial),
            tune_config=tune.TuneConfig(
                search_alg=_Search(self),
                scheduler=_Pruning(self),
                num_samples=-1,  # as many as come
                max_concurrent_trials=self.plan.concurrency,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="run",
                storage_path=scratch,
                callbacks=[_Reports(self)],
                stop=_Ending(self),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=self.plan.team.retries),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )

    def _config(self, trial: Trial) -> dict[str, Any]:
        """What a worker is given, see `TrialTrainable.begin`."""
        weights = ResultStore(self.home.trials).weights
        return {
            "trial": trial,
            "collector": self._collector,
            "device": self.plan.device,
            "team": self.plan.team,
            "storage": str(self.home.checkpoints),
            "shelf": Shelf.of_driver(weights) if weights.has(trial.weights_key) else None,
        }

    @contextlib.contextmanager
    def _collecting(self) -> Iterator[None]:
        """With a place where the epochs of trials on several workers come together."""
        if self.plan.team.workers > 1:
            from nbsr_platform.execution.on_ray.distributed import Collector

            self._collector = Collector.options(scheduling_strategy=beside_the_driver()).remote()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            if self._collector is not None and not self._is_abandoned and is_whole():
                ray.kill(self._collector)


class _PartOfTune:
    """Something that Tune is given. Tune pickles it for a restoration that we never ask for: nothing of ours is in it.

    Its methods are called on the pool's thread.
    """

    pool: WarmPool

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Search(_PartOfTune, Searcher):  # type: ignore[misc]
    """Where Tune asks for trials."""

    def __init__(self, pool: WarmPool) -> None:
        super().__init__(metric=None, mode=None)
        self.pool = pool

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        return self.pool.next_config(trial_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """`_Reports` does what is to be done, in an order that survives a kill."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the truth is in our own store."""

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""


class _Pruning(_PartOfTune, FIFOScheduler):  # type: ignore[misc]
    """Stops a trial between two reports when its feed says so, and has Tune keep workers that have nothing to do."""

    def __init__(self, pool: WarmPool) -> None:
        super().__init__()
        self.pool, self.has_kept = pool, False

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        if not self.has_kept:
            keep_idle_workers(tune_controller, trial, self.pool.plan.concurrency)
            self.has_kept = True

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        assert self.pool.trials is not None
        action = self.STOP if self.pool.trials.wants_to_prune(trial.trial_id, result) else self.CONTINUE
        return str(action)


class _Ending(_PartOfTune, Stopper):  # type: ignore[misc]
    """Ends Tune when something goes wrong in the driver itself, or when the main thread has given it up."""

    def __init__(self, pool: WarmPool) -> None:
        self.pool = pool

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        self.pool.check_wanted()
        return self.pool.trials is not None and self.pool.trials.coordinator.error is not None


class _Reports(_PartOfTune, tune.Callback):  # type: ignore[misc]
    """What Tune hears of the workers."""

    def __init__(self, pool: WarmPool) -> None:
        self.pool = pool
        self.worker_by_trial: dict[str, Any] = {}

    @property
    def trials(self) -> TuneTrials:
        assert self.pool.trials is not None
        return self.pool.trials

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.worker_by_trial[trial.trial_id] = worker_of(trial)
        self.pool.workers.add(worker_of(trial))
        self.trials.started(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.trials.reported(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.worker_by_trial.pop(trial.trial_id, None)
        self.pool.ended(self.trials.completed(trial.trial_id))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Its worker was lost; it gets another one."""
        self._forget_worker(trial.trial_id)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._forget_worker(trial.trial_id)
        self.pool.ended(self.trials.lost(trial.trial_id, trial.num_failures, self.pool.check_wanted))

    def _forget_worker(self, trial_id: str) -> None:
        self.pool.workers.discard(self.worker_by_trial.pop(trial_id, None))


@contextlib.contextmanager
def _quiet_tune() -> Iterator[None]:
    """Tune speaks through several loggers; what matters of it we say ourselves."""
    names = ("ray.tune", "ray.train", "ray.data", "ray.air")
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
