"""What became of a study's trials, and the recording of it in the background."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from nbsr_platform.results import TrialResult
from nbsr_platform.trial import Trial


@dataclass
class Outcome:
    """What became of the trials of a study, in the order in which they ended; proposals count one by one."""

    finished: dict[tuple[str, int | None], tuple[Trial, TrialResult]] = field(default_factory=dict)
    reused: int = 0
    pruned: int = 0
    failed: list[tuple[Trial, TrialResult]] = field(default_factory=list)
    ended_at: list[float] = field(default_factory=list)  # seconds on a clock of this process, one a trial that was run

    def add(self, trial: Trial, result: TrialResult) -> None:
        if result.status == "finished":
            self.finished[trial.key, trial.proposal] = (trial, result)
        elif result.status == "pruned":
            self.pruned += 1
        else:
            self.failed.append((trial, result))

    @property
    def total(self) -> int:
        return len(self.finished) + self.pruned + len(self.failed)


class Recorder:
    """Records results in the background, so that a slow tracking store does not hold up the workers."""

    def __init__(self, record: Callable[[Trial, TrialResult], None]) -> None:
        self.record = record
        self.errors: list[str] = []
        self.todo: queue.Queue[tuple[Trial, TrialResult] | None] = queue.Queue()
        self.thread = threading.Thread(target=self._work, name="recorder", daemon=True)

    def __enter__(self) -> Recorder:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.todo.put(None)
        self.thread.join()

    def put(self, trial: Trial, result: TrialResult) -> None:
        self.todo.put((trial, result))

    def _work(self) -> None:
        while (item := self.todo.get()) is not None:
            try:
                self.record(*item)
            except Exception as error:  # results are safe in the store; recording is repeated by the next run
                self.errors.append(f"{item[0].name}: {''.join(traceback.format_exception_only(error)).strip()}")
