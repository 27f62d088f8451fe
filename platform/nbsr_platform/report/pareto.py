"""The answer of a search: every member of its Pareto set with parameters, objectives, and how to run it alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

from nbsr_core.metrics import Interval
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import plain_interval, short
from nbsr_platform.report.verdicts import over_seeds


@dataclass(frozen=True)
class Member:
    """A proposal that no other one beats in every objective.

    Attributes:
        key: of the trial that the search judged it by.
        objectives: as the search found them, with one seed.
        parameters: what the search chose for it.
        seeds: number of trials with its parameters, one per seed.
        means: objectives over all seeds, if it was trained with more than one.
    """

    number: int
    key: str
    objectives: Mapping[str, float]
    parameters: Mapping[str, Any]
    seeds: int
    means: Mapping[str, Interval]

    @property
    def command(self) -> str:
        """Writes its study file and runs it."""
        return f"nbsr run --from-trial {self.key}"

    @property
    def settings(self) -> list[str]:
        """Its parameters as a person reads them."""
        return [f"{name} = {spelt(value)}" for name, value in self.parameters.items()]

    def objective(self, name: str) -> str:
        return short(Interval(self.objectives[name], nan, nan), name)

    def mean(self, name: str) -> str | None:
        """The objective over seeds; None with one seed."""
        return short(self.means[name], name) if name in self.means else None

    def to_json(self) -> dict[str, Any]:
        return {
            "proposal": self.number,
            "key": self.key,
            "objectives": dict(self.objectives),
            "parameters": dict(self.parameters),
            "seeds": self.seeds,
            "over_seeds": {name: plain_interval(interval) for name, interval in self.means.items()},
            "command": self.command,
        }


def members(study_results: StudyResults) -> list[Member]:
    """The Pareto set in the order of its numbers; empty if the study is no search."""
    search = study_results.study.search
    if search is None:
        return []
    found = {proposal.number: proposal for proposal in study_results.proposals}
    made = []
    for group in study_results.groups:
        trial, _ = group.first
        proposal = found.get(-1 if trial.proposal is None else trial.proposal)
        if proposal is None:
            continue
        means = {name: over_seeds(group, name) for name in search.objectives if len(group.members) > 1}
        made.append(
            Member(
                proposal.number,
                trial.key,
                dict(zip(search.objectives, proposal.values, strict=False)),
                proposal.parameters,
                len(group.members),
                {name: interval for name, interval in means.items() if interval is not None},
            )
        )
    return made


def lines(study_results: StudyResults) -> Iterator[str]:
    """The same for a terminal: for each member its objectives, its parameters and its command."""
    found = members(study_results)
    if found:
        made = len(study_results.proposals)
        yield f"{study_results.study.name}: {len(found)} of {made} proposals are beaten by no other"
    for member in found:
        values = []
        for name in member.objectives:
            mean = member.mean(name)
            over = "" if mean is None else f" (over {member.seeds} seeds {mean})"
            values.append(f"{name} {member.objective(name)}{over}")
        yield f"  #{member.number}  {', '.join(values)}"
        yield f"      {', '.join(member.settings) or 'no parameters'}"
        yield f"      {member.command}"


def spelt(value: object) -> str:
    """A parameter's value, short."""
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
