"""What became of a study's trials."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial


@dataclass
class EndedTrials:
    """What became of the trials of a study, in the order in which they ended; proposals count one by one."""

    finished: dict[tuple[str, int | None], tuple[Trial, TrialResult]] = field(default_factory=dict)
    reused: int = 0
    judged_again: int = 0  # of those that were run, without a training: their models had been trained before
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
