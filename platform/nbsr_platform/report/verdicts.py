"""Who wins by how much, and can we tell? Paired differences over common seeds, and the answer in three lines.

Trials of one seed share their data, so models are compared seed by seed: the spread between seeds, which both models
have in common, does not count against either. Nothing here is written by hand: a study that loses says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nbsr_core.metrics import LEAST_SEEDS, Interval, seed_interval
from nbsr_core.metrics.intervals import figure_interval
from nbsr_core.metrics.names import last_part, stored_name
from nbsr_platform.report.study_results import Group, StudyResults
from nbsr_platform.report.summary import ComparisonRow, short, shown_figures

# Last part of a figure's name: whether more of it is better. What is not here is shown, but nobody wins by it.
HIGHER = {
    **dict.fromkeys(("accuracy", "accuracy_answered", "auroc", "success", "exited", "routing_agreement"), True),
    **dict.fromkeys(("ece", "adaptive_ece", "nll", "brier", "perplexity", "fpr95", "aurc", "error_answered"), False),
    "coverage": True,
    **dict.fromkeys(("mean_depth", "mean_cost", "cost", "error"), False),
}
# How early a walk ends, and how many are answered, is a price, not a merit: it is judged beside accuracy, never alone.
PRICES = {"mean_depth", "mean_cost", "exited", "cost", "coverage"}

Verdict = Literal["better", "worse", "undecided", "equal"]


def higher_is_better(figure: str) -> bool | None:
    return HIGHER.get(last_part(figure))


@dataclass(frozen=True)
class Line:
    """One line of the comparison with its figures seed by seed."""

    name: str
    config: str
    family: str
    group: Group

    def by_seed(self, figure: str) -> dict[int, float]:
        name = stored_name(figure, "fast" if self.config == "fast" else "test")
        found = {trial.seed: result.metrics.get(name) for trial, result in self.group.members}
        return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}


def lines(study_results: StudyResults) -> list[Line]:
    """Every line that the table has, with its seeds."""
    groups = {group.name: group for group in study_results.groups}
    found = []
    for row in study_results.rows:
        number, _, config = row.config.rpartition(" ")
        group = groups.get(f"{row.model} {number}".strip())
        if group is not None:
            found.append(Line(f"{row.model} {row.config}".strip(), config, row.family, group))
    return found


@dataclass(frozen=True)
class Difference:
    """One line against another in one figure, over the seeds that both have.

    Attributes:
        interval: mean difference (line - other) and its 95% interval; NaN bounds for one seed or two.
        p: of the paired t-test, None if there is none (so few seeds, or the same difference in every seed).
    """

    line: str
    other: str
    figure: str
    seeds: int
    interval: Interval
    p: float | None

    @property
    def verdict(self) -> Verdict:
        """Better or worse only where the interval leaves zero out."""
        if self.interval.estimate == 0 and self.interval.low == self.interval.high == 0:
            return "equal"  # in every seed
        higher = higher_is_better(self.figure)
        if higher is None or not (self.interval.low > 0 or self.interval.high < 0):
            return "undecided"
        return "better" if (self.interval.estimate > 0) == higher else "worse"

    @property
    def text(self) -> str:
        """The difference as a person reads it."""
        scale, unit, digits = (100, " points", 2) if self.figure.endswith("accuracy") else (1, "", 4)

        def signed(value: float) -> str:
            return f"{round(value * scale, digits) + 0.0:+.{digits}f}".replace("-", "−")

        if math.isnan(self.interval.low):
            return f"{signed(self.interval.estimate)}{unit}"
        return (
            f"{signed(self.interval.estimate)}{unit} (95% {signed(self.interval.low)} to {signed(self.interval.high)})"
        )


def difference(line: Line, other: Line, figure: str) -> Difference | None:
    """Compare two lines over their common seeds; None where they have none."""
    mine, theirs = line.by_seed(figure), other.by_seed(figure)
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return None
    gaps = [mine[seed] - theirs[seed] for seed in seeds]
    p = None
    from scipy.stats import ttest_rel  # slow to import, and only a report needs it

    if len(seeds) >= LEAST_SEEDS and max(gaps) - min(gaps) > 1e-12 * max(map(abs, gaps)):
        p = float(ttest_rel([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds]).pvalue)
    return Difference(line.name, other.name, figure, len(seeds), seed_interval(gaps), p)


def against_baselines(study_results: StudyResults, figures: Sequence[str] | None = None) -> list[Difference]:
    """Every NBSR line against every baseline, in the figures that somebody can win by."""
    known = lines(study_results)
    judged = [name for name in (figures or headline(study_results)) if higher_is_better(name) is not None]
    pairs = [(mine, other) for mine in known if mine.family == "nbsr" for other in known if other.family == "baseline"]
    found = [difference(mine, other, name) for mine, other in pairs for name in judged]
    return [item for item in found if item is not None]


def headline(study_results: StudyResults) -> list[str]:
    """The figures that a person compares first."""
    return shown_figures(study_results.study.domain_object.shown, study_results.rows)


def answer(study_results: StudyResults) -> list[str]:
    """What was compared on what, who wins by how much, where NBSR falls short, and what it does not know."""
    if not study_results.finished:
        return ["No trial is finished.", "There is nothing to compare yet.", f"To go on: {study_results.command}"]
    if study_results.study.search is not None:
        return _answer_of_search(study_results)
    return [_compared(study_results), _winner(study_results), _shortcomings(study_results), *_unknown(study_results)]


def _compared(study_results: StudyResults) -> str:
    seeds = sorted({trial.seed for trial, _ in study_results.finished})
    names = ", ".join(group.name for group in study_results.groups)
    count = f"{len(study_results.finished)} trials, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    return (
        f"Compared: {names} ({count}) on {study_results.source}{', synthetic data' if study_results.synthetic else ''}."
    )


def _winner(study_results: StudyResults) -> str:
    primary = next(
        (name for name in headline(study_results) if name not in PRICES and higher_is_better(name) is not None), None
    )
    if primary is None:
        return "No figure that one could win by."
    rows = [row for row in study_results.rows if primary in row.metrics and row.family in ("nbsr", "baseline")]
    best = _best(rows, primary)
    said = f"Best {in_words(primary)}: {_name(best)}, {bounds(best, primary)}."
    rivals = [row for row in rows if (row.family == "nbsr") != (best.family == "nbsr")]
    if not rivals:
        return said
    rival, known = _best(rivals, primary), {line.name: line for line in lines(study_results)}
    gap = difference(known[_name(rival)], known[_name(best)], primary)
    kind = "NBSR" if rival.family == "nbsr" else "baseline"
    said += f" Best {kind}: {_name(rival)}, {bounds(rival, primary)}"
    if gap is None:
        return f"{said}; they share no seed."
    return f"{said}: {gap.text} over {gap.seeds} common seed{'s' if gap.seeds > 1 else ''}, {_judged(gap)}."


def _shortcomings(study_results: StudyResults) -> str:
    gaps = against_baselines(study_results)
    if not gaps:
        families = {row.family for row in study_results.rows}
        return f"No {'baseline' if 'nbsr' in families else 'NBSR model'} in this study: nothing to fall short of."
    merits = [gap for gap in gaps if last_part(gap.figure) not in PRICES]
    parts = [
        f"{words} {_listed([gap for gap in merits if gap.verdict == verdict])}"
        for verdict, words in (("worse", "NBSR falls short:"), ("better", "NBSR is ahead:"))
        if any(gap.verdict == verdict for gap in merits)
    ]
    if not any(gap.verdict == "worse" for gap in merits):
        parts.insert(0, "NBSR falls short of no baseline in any figure beyond what seeds explain")
    undecided = sum(gap.verdict in ("undecided", "equal") for gap in merits)
    if undecided:
        parts.append(f"{undecided} of {len(merits)} comparisons are not decided by these seeds")
    return "; ".join(parts) + "."


def _unknown(study_results: StudyResults) -> list[str]:
    """What comes of "I don't know", for the NBSR line that answers best: a line, or none if nobody abstains."""
    known = [
        row
        for row in study_results.rows
        if row.family == "nbsr" and {"coverage", "error_answered"} <= row.metrics.keys()
    ]
    if not known:
        return []
    best = _best(known, "error_answered")
    figures = {name: short(Interval(found.estimate, math.nan, math.nan), name) for name, found in best.metrics.items()}
    said = f'"I don\'t know": {_name(best)} answers {figures["coverage"]} of the test samples and is wrong in'
    said += f" {figures['error_answered']} of these"
    if "accuracy" in best.metrics:
        said += f" (in {100 * (1 - best.metrics['accuracy'].estimate):.1f}% if it had to answer all)"
    aurocs = [f"{name.rpartition('/')[0]} {figures[name]}" for name in figures if name.endswith("/auroc")]
    if aurocs:
        said += f"; it tells unknown from known with AUROC {', '.join(aurocs)}"
    return [said + "."]


def _listed(gaps: Sequence[Difference]) -> str:
    """`nbsr deep in ECE (against mlp, xgboost)`, ..."""
    found: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        found.setdefault((gap.line, gap.figure), []).append(gap.other)
    return ", ".join(
        f"{line} in {in_words(figure)} (against {', '.join(others)})" for (line, figure), others in found.items()
    )


def _answer_of_search(study_results: StudyResults) -> list[str]:
    search = study_results.study.search
    assert search is not None
    states = [proposal.state for proposal in study_results.proposals]
    counts = ", ".join(f"{states.count(state)} {state.lower()}" for state in dict.fromkeys(states))
    goals = ", ".join(f"{direction} {name}" for name, direction in search.objectives.items())
    best = []
    for index, (name, direction) in enumerate(search.objectives.items()):
        done = [proposal for proposal in study_results.proposals if proposal.state == "COMPLETE"]
        pick = max if direction == "maximize" else min
        if done:
            top = pick(done, key=lambda proposal: proposal.values[index])
            chosen = ", ".join(
                f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}"
                for key, value in top.parameters.items()
            )
            best.append(f"{name} {top.values[index]:.4g} (#{top.number} with {chosen or 'no parameters'})")
    source = f"{study_results.source}{', synthetic data' if study_results.synthetic else ''}"
    unbeaten = len(study_results.pareto)
    return [
        f"Searched: {search.model}, {len(states)} proposals ({counts}) to {goals} on {source}.",
        f"{unbeaten} of them are beaten by no other in every objective. Best: {'; '.join(best) or 'none'}.",
        _repeated(study_results, search.objectives),
    ]


def _repeated(study_results: StudyResults, objectives: Mapping[str, str]) -> str:
    """What is left of the best once they are trained again: a search picks the lucky ones too."""
    groups = [group for group in study_results.groups if len(group.members) > 1]
    if not groups:
        return (
            "One seed each, chosen on the validation split: give the study more seeds, or run a member of the Pareto "
            "set alone (nbsr run --from-trial KEY --set seeds=5), before believing in a difference between them."
        )
    best = []
    for name, direction in objectives.items():
        known = [(group, over_seeds(group, name)) for group in groups]
        judged = [(group, interval) for group, interval in known if interval is not None]
        if judged:
            sign = 1 if direction == "maximize" else -1
            group, interval = max(judged, key=lambda item: sign * item[1].estimate)
            known_bounds = "" if math.isnan(interval.low) else f"95% {interval.low:.4g} to {interval.high:.4g}, "
            said = f"{interval.estimate:.4g} ({known_bounds}{group.name})"
            best.append(f"{name} {said}")
    seeds = max(len(group.members) for group in groups)
    return f"{len(groups)} of these were trained with {seeds} seeds; best mean over seeds: {'; '.join(best)}."


def over_seeds(group: Group, name: str) -> Interval | None:
    """Mean and interval of a stored figure over the trials of a group; None where not all have it."""
    values = [result.metrics.get(name) for result in group.results]
    known = [value for value in values if value is not None and math.isfinite(value)]
    return figure_interval(name, known) if len(known) == len(values) else None


def _best(rows: Sequence[ComparisonRow], figure: str) -> ComparisonRow:
    sign = 1 if higher_is_better(figure) else -1
    return max(rows, key=lambda row: sign * row.metrics[figure].estimate)


def _name(row: ComparisonRow) -> str:
    return f"{row.model} {row.config}".strip()


def in_words(figure: str) -> str:
    """A figure's name as people say it: `noise_draws/ece` -> `noise draws, ECE`."""
    parts = [part.upper() if part in ("ece", "nll") else part.replace("_", " ") for part in figure.split("/")]
    return ", ".join(parts)


def _judged(gap: Difference) -> str:
    chance = "" if gap.p is None else f" (p = {gap.p:.2g})"
    if gap.seeds < LEAST_SEEDS:
        return "too few for a test"
    words: Mapping[str, str] = {
        "better": "a difference that seeds do not explain",
        "worse": "a difference that seeds do not explain",
        "undecided": "not told apart by these seeds",
        "equal": "the same in every seed",
    }
    return words[gap.verdict] + chance


def bounds(row: ComparisonRow, figure: str) -> str:
    """`97.1% (95% interval 96.0 to 98.2)`; without the interval where one seed allows none."""
    interval = row.metrics[figure]
    said = short(Interval(interval.estimate, math.nan, math.nan), figure)
    if math.isnan(interval.low):
        return said
    low, high = (short(Interval(value, math.nan, math.nan), figure) for value in (interval.low, interval.high))
    return f"{said} (95% interval {low} to {high})"
