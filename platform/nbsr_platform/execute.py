"""A study becomes one Ray Tune run: a feed proposes trials, warm workers run them, the driver keeps what they find.

The feed is a grid or a search; everything behind it is the same. What is done is known from our own store, never from
Tune's snapshots: a result is saved first, then told to the search, then recorded in MLflow, and each of these steps is
repeated without harm. So a run that was killed at any moment is finished by starting it again.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from nbsr_core.errors import InputError
from nbsr_platform.credentials import scrubbed
from nbsr_platform.leftovers import sweep, temporary_place
from nbsr_platform.outcome import Outcome, Recorder
from nbsr_platform.paths import Home
from nbsr_platform.placement import beside_the_driver, capacity, placement
from nbsr_platform.ray_watch import LAST_MOMENTS, check_ray, is_whole
from nbsr_platform.results import TrialResult
from nbsr_platform.store import ResultStore
from nbsr_platform.study import Study
from nbsr_platform.trial import StaleError, Trial
from nbsr_platform.worker import RESULT, TrialTrainable


class Feed(Protocol):
    """Where trials come from."""

    def next(self) -> Trial | None:
        """The next trial to run, or None when there is no more."""

    def done(self, trial: Trial, result: TrialResult) -> TrialResult:
        """Learn the outcome of a trial; returns what it counts as, which may be a failure for reasons of the feed's."""

    def should_prune(self, trial: Trial, epoch: dict[str, float]) -> bool:
        """Whether a trial under way is not worth going on with."""


class Watcher(Protocol):
    """Who is told what happens: progress bars, tests."""

    def started(self, trial: Trial) -> None: ...

    def progressed(self, trial: Trial, epoch: dict[str, float]) -> None: ...

    def ended(self, trial: Trial, result: TrialResult) -> None: ...


@dataclass
class GridFeed:
    """A fixed list of trials, first come first served."""

    pending: list[Trial]

    def next(self) -> Trial | None:
        return self.pending.pop(0) if self.pending else None

    def done(self, trial: Trial, result: TrialResult) -> TrialResult:
        """A grid learns nothing from results."""
        return result

    def should_prune(self, trial: Trial, epoch: dict[str, float]) -> bool:
        return False


class _LeftBehind:
    """Tune pickles all it is given, for a restoration that we never ask for: there is nothing of ours in it."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Ending(_LeftBehind, Stopper):  # type: ignore[misc]
    """What goes wrong in the driver itself (a full disk, a lost database) ends the study, and is raised at its end.

    Left to Tune it would be the trial's failure, and a good result be tried again until it is given up.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.error = self.error or error

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.error is not None


class _FeedSearcher(_LeftBehind, Searcher):  # type: ignore[misc]
    """A feed as Tune wants it."""

    def __init__(self, feed: Feed, config: Callable[[Trial], dict[str, Any]], ending: _Ending) -> None:
        super().__init__(metric=None, mode=None)
        self.feed, self.config, self.ending = feed, config, ending
        self.trials: dict[str, Trial] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        trial = None
        with self.ending.guard():
            trial = self.feed.next()
        if trial is None:
            return str(Searcher.FINISHED)
        self.trials[trial_id] = trial
        return self.config(trial)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The driver does what is to be done, in an order that survives a kill."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the truth is in our own store."""

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""


class _Pruning(_LeftBehind, FIFOScheduler):  # type: ignore[misc]
    """Stops a trial between two reports when its feed says so."""

    def __init__(self, driver: _Driver) -> None:
        super().__init__()
        self.driver = driver

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        action = self.STOP if self.driver.wants_to_prune(trial.trial_id, result) else self.CONTINUE
        return str(action)


class _Driver(_LeftBehind, tune.Callback):  # type: ignore[misc]
    """Keeps what the workers find: store first, then the feed, then everybody else."""

    def __init__(self, searcher: _FeedSearcher, keep: Callable[[Trial, TrialResult], None]) -> None:
        self.searcher, self.keep = searcher, keep
        self.results: dict[str, TrialResult] = {}
        self.epochs: dict[str, list[dict[str, float]]] = {}
        self.pruned: set[str] = set()
        self.watcher: Watcher | None = None

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self.watcher is not None and trial.trial_id not in self.epochs:
            self.watcher.started(self.searcher.trials[trial.trial_id])
        self.epochs[trial.trial_id] = []

    def wants_to_prune(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Called with every report, before `on_trial_result`."""
        trial = self.searcher.trials[trial_id]
        for epoch in result.get("epochs", []):
            self.epochs.setdefault(trial_id, []).append(epoch)
            if self.watcher is not None:
                self.watcher.progressed(trial, epoch)
            prune = False
            with self.searcher.ending.guard():
                prune = not result.get("done") and self.searcher.feed.should_prune(trial, epoch)
            if prune:
                self.pruned.add(trial_id)
                return True
        return False

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Take the result out of the last report: Tune keeps reports for as long as the study runs."""
        if RESULT in result:
            self.results[trial.trial_id] = result.pop(RESULT)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self.searcher.ending.error is not None:
            return  # whoever runs the study again goes on from what was kept until then
        mine = self.searcher.trials[trial.trial_id]
        result = self.results.pop(trial.trial_id, None)
        if result is None:
            epochs = self.epochs.get(trial.trial_id, [])
            seconds = sum(epoch.get("seconds", 0.0) for epoch in epochs)
            if trial.trial_id in self.pruned:
                result = TrialResult(mine.key, "pruned", seconds, epochs)
            else:
                result = TrialResult(mine.key, "failed", seconds, epochs, error="the worker ended without a result")
        with self.searcher.ending.guard():
            if result.status == "stale":
                raise StaleError(result.error)
            self.keep(mine, result)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self.searcher.ending.error is not None:
            return
        mine = self.searcher.trials[trial.trial_id]
        lost = f"the worker was lost and {trial.num_failures} attempts failed (out of memory, or killed?)"
        with self.searcher.ending.guard():
            check_ray(LAST_MOMENTS)
            self.keep(mine, TrialResult(mine.key, "failed", 0.0, error=lost))


def execute(
    feed: Feed,
    study: Study,
    home: Home,
    recorder: Recorder,
    watcher: Watcher,
    outcome: Outcome,
    count: int,
) -> None:
    """Run all trials of a feed; `outcome` grows as they end, so that it tells the truth after Ctrl-C too."""
    store = ResultStore(home.trials)

    def keep(trial: Trial, result: TrialResult) -> None:
        if result.status == "finished":
            store.save(result)
        elif result.status == "failed":
            check_ray()  # then it is not the trial that failed
            result.error = scrubbed(result.error or "")
        counted = feed.done(trial, result)
        if counted.status == "failed":
            log = home.log(study.name, trial.key)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"{trial.name}\n{counted.error}\n")
        outcome.add(trial, counted)
        shutil.rmtree(home.checkpoints / trial.key, ignore_errors=True)
        if collector is not None:
            collector.forget.remote(trial.key)
        outcome.ended_at.append(time.monotonic())
        result.state = None
        recorder.put(trial, result)
        watcher.ended(trial, counted)

    plan = placement(study.resources, capacity())
    if not plan.fits:
        raise InputError(f"resources: a trial asks for {plan.team}, more than Ray has here: it would wait for ever")
    collector = _collector() if plan.team.workers > 1 else None
    ending = _Ending()
    searcher = _FeedSearcher(
        feed,
        lambda trial: {
            "trial": trial,
            "collector": collector,
            "device": plan.device,
            "team": plan.team,
            "storage": str(home.checkpoints),
        },
        ending,
    )
    driver = _Driver(searcher, keep)
    driver.watcher = watcher
    home.scratch.mkdir(parents=True, exist_ok=True)
    sweep(home.scratch)
    with temporary_place(home.scratch, study.name) as scratch:
        tuner = tune.Tuner(
            tune.with_resources(TrialTrainable, plan.per_trial),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=_Pruning(driver),
                num_samples=count,
                max_concurrent_trials=plan.concurrency,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="run",
                storage_path=str(scratch),
                callbacks=[driver],
                stop=ending,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=study.resources.retries),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        try:
            with _quiet_tune():
                tuner.fit()
        except Exception:
            if ending.error is None:
                store.check_writable()  # a full disk shows in many ways
                raise
        finally:
            if collector is not None and is_whole():
                ray.kill(collector)
    if ending.error is not None:
        raise ending.error


def _collector() -> Any:
    """Where the epochs of trials on several workers come together."""
    from nbsr_platform.distributed import Collector

    return Collector.options(scheduling_strategy=beside_the_driver()).remote()  # type: ignore[attr-defined]


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
