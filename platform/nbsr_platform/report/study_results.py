"""What a report is made from: a study, the results of its trials, and for a search what was proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nbsr_core.metrics.names import CEILING, FAST, last_part
from nbsr_platform.report import summary
from nbsr_platform.report.differences import Asked, Difference, Line, compared, higher_is_better
from nbsr_platform.report.drawable import drawable
from nbsr_platform.report.groups import UNUSABLE, Ended, Group
from nbsr_platform.search.proposals import Proposal
from nbsr_platform.study.study import Study
from nbsr_platform.trials.environment import differences

# Models (or members of a Pareto set) that are shown in full; a table has all of them.
MOST_SHOWN = 12


@dataclass(frozen=True)
class StudyResults:
    """All that is known of a study's run.

    Attributes:
        finished: trials with their results.
        failed: name and last words of trials that failed.
        wanted: number of trials that the study asks for.
        proposals: of a search, all of them, whatever became of them.
        pareto: numbers of the proposals that no other one of a search beats in every objective.
        command: how somebody makes the same again.
    """

    study: Study
    finished: Sequence[Ended]
    failed: Sequence[tuple[str, str]] = ()
    wanted: int = 0
    proposals: Sequence[Proposal] = ()
    pareto: Sequence[int] = ()
    command: str = ""

    @cached_property
    def ordered(self) -> list[Ended]:
        """As the study names its models; of a search, the Pareto set only."""
        ended = list(self.finished)
        if self.study.search is not None:
            ended = [item for item in ended if item[0].proposal in self.pareto]
        labels = list(self.study.models)
        ended = [(trial, drawable(result)[0]) for trial, result in ended]
        return sorted(ended, key=lambda item: (labels.index(item[0].label), item[0].proposal or 0, item[0].seed))

    @cached_property
    def rows(self) -> list[summary.ComparisonRow]:
        """The comparison."""
        return summary.summarise(self.ordered, self.study.paper, self.study.domain_object.unusable)

    @cached_property
    def groups(self) -> list[Group]:
        """The models of the comparison with their trials."""
        found: dict[tuple[str, int | None], list[Ended]] = {}
        for trial, result in self.ordered:
            found.setdefault((trial.label, trial.proposal), []).append((trial, result))
        groups = []
        for (label, proposal), members in found.items():
            name, first = label if proposal is None else f"{label} #{proposal}", members[0][0]
            why = self.study.domain_object.unusable.get(first.kind)
            groups.append(Group(summary.marked(name, why), UNUSABLE if why else first.family, members))
        return groups

    @cached_property
    def lines(self) -> list[Line]:
        """Every line that the comparison has of a trained model, with its seeds."""
        groups = {group.name: group for group in self.groups}
        found = []
        for row in self.rows:
            number, _, config = row.config.rpartition(" ")
            group = groups.get(summary.marked(f"{row.model} {number}".strip(), row.why_unusable))
            if group is not None:
                found.append(Line(row.name, config, row.family, group))
        return found

    @property
    def headline(self) -> list[str]:
        """The figures that a person compares first."""
        return summary.shown_figures(self.study.domain_object.shown, self.rows)

    @cached_property
    def comparisons(self) -> list[Difference]:
        """All pairs of lines that this study is about, in those of the first figures that have a better and a worse.

        Where the study names a reference: every other model, to the end of its walk, against that. Otherwise every NBSR
        line against every baseline. Models that nobody could use are compared with nobody.
        """
        figures = [name for name in _with_beside(self.headline, self.rows) if higher_is_better(name) is not None]
        reference = self.study.reference
        if reference is None:
            mine, others = ([line for line in self.lines if line.family == family] for family in ("nbsr", "baseline"))
        else:
            whole = [line for line in self.lines if line.config != FAST and line.family != UNUSABLE]
            mine = [line for line in whole if line.group.name != reference]
            others = [line for line in whole if line.group.name == reference]
        found = compared([Asked(line, other, name) for line in mine for other in others for name in figures])
        return [gap for gap in found if gap is not None]

    @property
    def shown(self) -> list[Group]:
        """Those that there is room for in full."""
        return self.groups[:MOST_SHOWN]

    @property
    def synthetic(self) -> bool:
        return any(bool(result.data.get("synthetic")) for _, result in self.finished)

    @property
    def source(self) -> str:
        """Where the data comes from, in words."""
        return next((str(result.data["source"]) for _, result in self.finished if "source" in result.data), "unknown")

    @property
    def legend(self) -> list[str]:
        """What the lines and figures of the comparison stand for that are not a trained model's."""
        ceiling, paper = self.study.domain_object.ceiling, self.study.paper
        families = {row.family for row in self.rows}
        known = [] if ceiling is None or CEILING not in families else [f"{CEILING}: {ceiling}"]
        reasons = dict.fromkeys(row.why_unusable for row in self.rows if row.family == UNUSABLE)
        known += [f"({why}): nobody could use it; never called best, and compared with nobody" for why in reasons]
        return known + ([] if paper is None else [f"paper: {paper.source}"])

    @property
    def notes(self) -> list[str]:
        """What a reader must know before believing a figure, each once."""
        notes = list(dict.fromkeys(warning for _, result in self.finished for warning in result.warnings))
        elsewhere = differences(one for _, result in self.finished for one in result.environments)
        notes += [] if elsewhere is None else [elsewhere]
        for trial, result in self.finished:
            left_out = drawable(result)[1]
            if left_out:
                notes.append(f"{trial.name} ({trial.key}) is stored with unreadable {', '.join(left_out)}: not drawn")
        missing = self.wanted - len(self.finished) - len(self.failed)
        missing -= sum(proposal.state == "PRUNED" for proposal in self.proposals)
        if missing > 0:
            notes.append(f"{missing} of {self.wanted} trials are not done: figures will change")
        notes += [f"{name} failed: {words}" for name, words in self.failed]
        if len(self.groups) > MOST_SHOWN:
            notes.append(f"plots show the first {MOST_SHOWN} of {len(self.groups)} models; the table has all")
        return notes


# What is compared beside a figure, of the same set.
BESIDE = {
    "accuracy": "nll",  # answers may be as often right and yet less worth
    "error_answered": "augrc",  # which answers to withhold, by confidence for every model and for any share of them
}


def _with_beside(figures: Sequence[str], rows: Sequence[summary.ComparisonRow]) -> list[str]:
    """Figures, and beside some of them what should be read with them."""
    known = {name for row in rows for name in row.metrics}
    beside = (name.removesuffix(last_part(name)) + BESIDE.get(last_part(name), "") for name in figures)
    return list(dict.fromkeys([*figures, *(name for name in beside if name in known)]))
