"""What a person sees while a study runs: one live line a study on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nbsr_platform.results import TrialResult
from nbsr_platform.terminal import Terminal
from nbsr_platform.trial import Trial

PLAIN_SECONDS = 5.0


class Progress:
    """Counts trials and epochs, estimates what is left, and remembers the best so far.

    Args:
        console: where to write; its being a terminal decides between live and plain.
        title: the study's name.
        total: trials that there will be; those that were reused count as done from the start.
    """

    def __init__(self, console: Terminal, title: str, total: int, reused: int) -> None:
        self.console, self.title, self.total = console, title, total
        self.done, self.reused, self.failed, self.pruned = reused, reused, 0, 0
        self.running: dict[str, tuple[Trial, int]] = {}
        self.best: tuple[float, str] | None = None
        self.began = self.said = time.monotonic()
        self.epochs = 0
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self.live.start()
        else:
            reused = f", {self.reused} of them done before" if self.reused else ""
            self.console.say(f"{self.title}: {self.total} trials{reused}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.console.is_terminal:
            self.live.stop()
        self.console.say(self.text())

    def started(self, trial: Trial) -> None:
        self.running[trial.key] = (trial, 0)

    def progressed(self, trial: Trial, epoch: dict[str, float]) -> None:
        self.epochs += 1
        self.running[trial.key] = (trial, int(epoch["epoch"]) + 1)
        self.say_now_and_then()

    def ended(self, trial: Trial, result: TrialResult) -> None:
        self.running.pop(trial.key, None)
        self.done += 1
        self.failed += result.status == "failed"
        self.pruned += result.status == "pruned"
        accuracy = result.metrics.get("valid/accuracy")
        if accuracy is not None and (self.best is None or accuracy > self.best[0]):
            self.best = (accuracy, trial.name)
        if result.status == "failed":
            self.console.say(f"{trial.name}: {result.last_words}", head="failed", style="red")
        self.say_now_and_then()

    def say_now_and_then(self) -> None:
        if not self.console.is_terminal and time.monotonic() - self.said > PLAIN_SECONDS:
            self.said = time.monotonic()
            self.console.say(self.text())

    def text(self) -> str:
        """Everything in one line."""
        parts = [f"{self.title}: {self.done}/{self.total} trials"]
        if self.running:
            parts.append(f"{len(self.running)} running")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.pruned:
            parts.append(f"{self.pruned} pruned")
        if self.best is not None:
            parts.append(f"best valid accuracy {self.best[0]:.1%} ({self.best[1]})")
        parts.append(f"{self.epochs} epochs")
        elapsed = time.monotonic() - self.began
        parts.append(f"{elapsed:.0f} s")
        fresh = self.done - self.reused
        if fresh and self.done < self.total:
            parts.append(f"about {elapsed / fresh * (self.total - self.done):.0f} s left")
        return ", ".join(parts)

    def render(self) -> RenderableType:
        """The live view: the line, and what each worker is doing."""
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text(self.text(), style="bold"))
        for trial, epoch in list(self.running.values())[:8]:
            total = int(trial.training.get("epochs", 0))
            filled = int(20 * epoch / total) if total else 0
            grid.add_row(f"  {'█' * filled}{'░' * (20 - filled)} {trial.name}, epoch {epoch}/{total}")
        return grid
