"""What a run finds of one study."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from nbsr_platform.report import StudyResults, summary
from nbsr_platform.search.proposals import Proposal
from nbsr_platform.study.study import Study
from nbsr_platform.trials.ended_trials import EndedTrials
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial


@dataclass
class StudyRun:
    """One study's part of a run.

    Attributes:
        ended_trials: of the study's trials; of a search, its proposals.
        repeats: of a search, what its promising members gave with further seeds.
        pareto: of a search, numbers of the proposals that no other one beats in every objective.
        promising: those of the Pareto set that stand for all of it.
        key: what makes it this study, see `study_key`.
    """

    study: Study
    run_id: str
    ended_trials: EndedTrials = field(default_factory=EndedTrials)
    repeats: EndedTrials = field(default_factory=EndedTrials)
    pareto: list[int] = field(default_factory=list)
    promising: list[int] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    key: str = ""

    @cached_property
    def study_results(self) -> StudyResults:
        """What its report is made from, once it has ended."""
        all_trials = (self.ended_trials, self.repeats)
        return StudyResults(
            self.study,
            [ended for ended_trials in all_trials for ended in ended_trials.finished.values()],
            [(trial.name, result.last_words) for trial, result in self.failed],
            sum(ended_trials.total for ended_trials in all_trials),
            self.proposals,
            self.pareto,
            self.study.command,
        )

    @property
    def failed(self) -> list[tuple[Trial, TrialResult]]:
        return self.ended_trials.failed + self.repeats.failed

    @property
    def rows(self) -> list[summary.ComparisonRow]:
        """The comparison; of a search, the Pareto set only."""
        return self.study_results.rows

    @property
    def legend(self) -> list[str]:
        """What the lines and figures of the comparison stand for that are not a trained model's."""
        return self.study_results.legend

    @property
    def headline(self) -> dict[str, float]:
        """The few figures that people compare: those that the domain shows; of a search, the best of each objective."""
        search = self.study.search
        if search is None:
            return summary.study_metrics(self.rows, self.study.domain_object.shown)
        values = [proposal.values for proposal in self.proposals if proposal.values]
        best = {
            name: (max if direction == "maximize" else min)(found[index] for found in values)
            for index, (name, direction) in enumerate(search.objectives.items())
            if values
        }
        return {f"best/{name}": float(value) for name, value in best.items()}
