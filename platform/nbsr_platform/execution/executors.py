"""Who runs a study's trials: Ray, here or on a cluster, or this very process.

Both run the same code (`worker`) for the same coordinator, so that trials have the same keys and the same results, and
are kept, searched and recorded in the same way. Ray is imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from nbsr_core.errors import InputError
from nbsr_platform.base.endings import Interruption
from nbsr_platform.base.starting import begun
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.execution.coordinator import Coordinator
from nbsr_platform.execution.preparation import Where, prepare, works_of
from nbsr_platform.study.sections import Resources
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

if TYPE_CHECKING:
    from nbsr_platform.execution.on_ray.placement import Placement
    from nbsr_platform.execution.on_ray.warm_pool import WarmPool
    from nbsr_platform.execution.worker import TrialWork


class Executor(Protocol):
    """Where trials run, inside `with`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def start(self) -> None:
        """Get ready; called as soon as there is surely something to run, perhaps more than once."""

    def prepare(self, study: Study, console: Terminal) -> None:
        """Do the work that the study's domain wants done before trials start."""

    def execute(self, coordinator: Coordinator, study: Study) -> None:
        """Run all trials of the coordinator."""


class OnRay:
    """A Ray of our own, or the cluster at `address`, with workers that stay warm from study to study.

    Args:
        home: the store.
        address: of the cluster; None starts a Ray here.
        interruption: interrupts the main thread when Ray is lost.
    """

    def __init__(self, home: Home, address: str | None, interruption: Interruption) -> None:
        self.home, self.address, self.interruption = home, address, interruption
        self._session = ExitStack()
        self._is_started = False
        self._pool: WarmPool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """The workers end, then Ray."""
        self._session.__exit__(kind, error, at)

    def start(self) -> None:
        from nbsr_platform.execution.on_ray.session import ray_session

        if not self._is_started:
            self._is_started = True
            self._session.enter_context(ray_session(self.address, interruption=self.interruption))
            self._session.push(self._end_pool)

    def prepare(self, study: Study, console: Terminal) -> None:
        prepare(study, console, self._prepare_some)

    def execute(self, coordinator: Coordinator, study: Study) -> None:
        from nbsr_platform.execution.on_ray.placement import capacity, placement

        begun()
        plan = placement(study.resources, capacity())
        if not plan.fits:
            raise InputError(f"resources: a trial asks for {plan.team}, more than Ray has here: it would wait for ever")
        self._pool_for(plan).work_through(coordinator)

    def _pool_for(self, plan: Placement) -> WarmPool:
        """That of the study before, if its workers are of the right size and all there; else a new one."""
        from nbsr_platform.execution.on_ray.warm_pool import WarmPool

        if self._pool is not None and (self._pool.plan != plan or not self._pool.is_fit()):
            self._close_pool()
        if self._pool is None:
            self._pool = WarmPool(plan, self.home)
        return self._pool

    def _prepare_some(self, where: Where, todo: Sequence[int], resources: Resources) -> Iterator[int]:
        from nbsr_platform.execution.on_ray.preparation import on_ray

        self._close_pool()  # workers that wait hold what this needs
        yield from on_ray(where, todo, resources)

    def _close_pool(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _end_pool(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """In good order where Ray can be asked for it: it may be somebody else's, who goes on with it."""
        from nbsr_platform.execution.on_ray.watch import is_whole

        if self._pool is None:
            return
        if isinstance(error, KeyboardInterrupt) or not is_whole():
            self._pool.abandon()
        else:
            self._pool.close()


class Here:
    """This process and its main thread, one trial after another: a breakpoint stops where it stands.

    Args:
        home: the store.
    """

    def __init__(self, home: Home) -> None:
        self.home = home

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing to end."""

    def start(self) -> None:
        """Nothing to start."""

    def prepare(self, study: Study, console: Terminal) -> None:
        prepare(study, console, _one_by_one)

    def execute(self, coordinator: Coordinator, study: Study) -> None:
        """A trial that asks for several workers runs on one: it learns the same."""
        import torch

        from nbsr_core.learning.devices import best_device
        from nbsr_platform.execution.worker import TrialWork
        from nbsr_platform.trials.checkpoints import Checkpoints

        begun()
        device = "cpu" if study.resources.gpus_per_worker == 0 else str(best_device())
        threads = torch.get_num_threads()
        try:
            while (trial := coordinator.next()) is not None:
                coordinator.started(trial)
                kept = Checkpoints.of(self.home.checkpoints, trial)
                find_learned = partial(coordinator.store.weights.find, trial.weights_key)
                work = TrialWork.alone(trial, device, study.resources.cpus_per_worker, kept, find_learned)
                coordinator.ended(trial, _run(work, trial, coordinator))
        finally:
            torch.set_num_threads(threads)
        coordinator.raise_error()


def _run(work: TrialWork, trial: Trial, coordinator: Coordinator) -> TrialResult:
    """To its end, or until it is pruned."""
    from nbsr_platform.execution.worker import RESULT

    passed_on = 0  # epochs
    while True:
        report = work.step()
        last = coordinator.progressed(trial, report["epochs"], has_ended=report["done"])
        if RESULT in report:
            result: TrialResult = report[RESULT]
            return result
        if last is not None:
            work.stop()
            epochs = work.epochs[: passed_on + report["epochs"].index(last) + 1]
            seconds = sum(epoch.get("seconds", 0.0) for epoch in epochs)
            return TrialResult(trial.key, "pruned", seconds, epochs)
        passed_on += len(report["epochs"])


def _one_by_one(where: Where, todo: Sequence[int], resources: Resources) -> Iterator[int]:
    works = works_of(*where)
    for index in todo:
        works[index].run()
        yield works[index].size
