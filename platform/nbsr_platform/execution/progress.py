"""What a person sees while a study runs: one live line a study on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nbsr_core.metrics.names import VALID, FigureName
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

PLAIN_SECONDS = 5.0
VALID_ACCURACY = str(FigureName("accuracy", VALID))


@dataclass
class Running:
    """A trial under way; a cold one is the first of its worker, which starts and imports for as long as it takes."""

    trial: Trial
    since: float
    is_cold: bool
    epoch: int = 0

    @property
    def epochs(self) -> int:
        return int(self.trial.training.get("epochs", 0))


class Progress:
    """Counts trials and epochs, estimates what is left, and remembers the best so far.

    Args:
        console: where to write; its being a terminal decides between live and plain.
        title: the study's name.
        total: trials that there will be; those that were reused count as done from the start.
        reused: how many those are.
        at_most: further trials that there may be, as of now; see `expect`.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        console: Terminal,
        title: str,
        total: int,
        reused: int,
        at_most: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.title, self.total, self.at_most, self.clock = console, title, total, at_most, clock
        self.done, self.reused, self.judged_again, self.failed, self.pruned = reused, reused, 0, 0, 0
        # By key and proposal: a search may run the same trial twice at once.
        self.running: dict[tuple[str, int | None], Running] = {}
        self.reached: dict[tuple[str, int | None], int] = {}  # epochs, of every trial that was run
        self.waiting: Counter[str] = Counter()
        self.lengths: dict[str, int] = {}  # epochs of a trial, by model
        self.took: dict[str, list[float]] = {}  # seconds of whole trials that were not cold, by model
        self.trained: dict[str, list[float]] = {}  # seconds of their epochs alone
        self.best: tuple[float, str] | None = None
        self.began = self.said = clock()
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self.live.start()
        else:
            reused = f", {self.reused} of them done before" if self.reused else ""
            more = f", and at most {self.at_most} with further seeds" if self.at_most else ""
            self.console.say(f"{self.title}: {self.total} trials{reused}{more}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.console.is_terminal:
            self.live.stop()
        self.console.say(self.text())

    def wait_for(self, labels: Mapping[str, int]) -> None:
        """How many trials of each model are to be run now."""
        self.waiting = Counter(labels)

    def expect(self, total: int, reused: int) -> None:
        """It is known now how many trials there are in all, and how many of the further ones were done before."""
        self.total, self.at_most = total, 0
        self.done, self.reused = self.done + reused, self.reused + reused

    def started(self, trial: Trial) -> None:
        self.running[trial.key, trial.proposal] = Running(trial, self.clock(), is_cold=self.done == self.reused)
        self.waiting[trial.label] -= 1
        self.lengths[trial.label] = int(trial.training.get("epochs", 0))

    def progressed(self, trial: Trial, epoch: dict[str, float]) -> None:
        """An epoch that is repeated (its worker was lost) counts once."""
        at = (trial.key, trial.proposal)
        number = int(epoch["epoch"]) + 1
        self.reached[at] = max(number, self.reached.get(at, 0))
        if at in self.running:
            self.running[at].epoch = number
        if "seconds" in epoch:
            self.trained.setdefault(trial.label, []).append(epoch["seconds"])
        self.say_now_and_then()

    def ended(self, trial: Trial, result: TrialResult) -> None:
        under_way = self.running.pop((trial.key, trial.proposal), None)
        self.judged_again += result.was_judged_again
        was_trained = result.status == "finished" and not result.was_judged_again
        if under_way is not None and was_trained and not under_way.is_cold:
            self.took.setdefault(trial.label, []).append(self.clock() - under_way.since)
        self.done += 1
        self.failed += result.status == "failed"
        self.pruned += result.status == "pruned"
        accuracy = result.metrics.get(VALID_ACCURACY)
        if accuracy is not None and (self.best is None or accuracy > self.best[0]):
            self.best = (accuracy, trial.name)
        if result.status == "failed":
            self.console.say(f"{trial.name}: {result.last_words}", head="failed", style="red")
        self.say_now_and_then()

    def say_now_and_then(self) -> None:
        if not self.console.is_terminal and self.clock() - self.said > PLAIN_SECONDS:
            self.said = self.clock()
            self.console.say(self.text())

    @property
    def epochs(self) -> int:
        return sum(self.reached.values())

    @property
    def seconds_left(self) -> float | None:
        """Of the trials that are known to come; None while nothing is known of how long one takes.

        What waits is shared by as many as run now; it is not over before the last of those that run. How long workers
        took to start says nothing about what is to come.
        """
        pace = {label: fmean(seconds) for label, seconds in self.trained.items()}
        each = {label: pace[label] * epochs for label, epochs in self.lengths.items() if label in pace}
        each |= {label: fmean(seconds) for label, seconds in self.took.items()}
        if not each:
            return None
        anyone = fmean(each.values())
        running = [self._left_of(one, each.get(one.trial.label, anyone)) for one in self.running.values()]
        waiting = sum(each.get(label, anyone) * count for label, count in self.waiting.items() if count > 0)
        return max([(sum(running) + waiting) / max(1, len(running)), *running])

    def _left_of(self, one: Running, takes: float) -> float:
        by_epochs = takes * (1 - one.epoch / one.epochs) if one.epochs else takes
        return by_epochs if one.is_cold else min(by_epochs, max(0.0, takes - (self.clock() - one.since)))

    def text(self) -> str:
        """Everything in one line."""
        more = f" (at most {self.at_most} more with further seeds)" if self.at_most else ""
        parts = [f"{self.title}: {self.done}/{self.total} trials{more}"]
        if self.running:
            parts.append(f"{len(self.running)} running")
        if self.judged_again:
            parts.append(f"{self.judged_again} judged again")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.pruned:
            parts.append(f"{self.pruned} pruned")
        if self.best is not None:
            parts.append(f"best valid accuracy {self.best[0]:.1%} ({self.best[1]})")
        parts.append(f"{self.epochs} epochs")
        parts.append(f"{self.clock() - self.began:.0f} s")
        left = self.seconds_left
        if left is not None and self.done < self.total:
            parts.append(f"about {left:.0f} s left")
        return ", ".join(parts)

    def render(self) -> RenderableType:
        """The live view: the line, and what each worker is doing."""
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text(self.text(), style="bold"))
        for one in list(self.running.values())[:8]:
            filled = int(20 * one.epoch / one.epochs) if one.epochs else 0
            grid.add_row(f"  {'█' * filled}{'░' * (20 - filled)} {one.trial.name}, epoch {one.epoch}/{one.epochs}")
        return grid
