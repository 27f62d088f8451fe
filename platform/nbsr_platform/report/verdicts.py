"""Who wins by how much, and can we tell? The answer of a study in a few lines.

Nothing here is written by hand: a study that loses says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nbsr_core.metrics import LEAST_SEEDS, Interval
from nbsr_core.metrics.intervals import figure_interval
from nbsr_core.metrics.names import FAST
from nbsr_platform.report.differences import Difference, higher_is_better, in_words, is_merit
from nbsr_platform.report.groups import Group
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import ComparisonRow, short


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
    primary = next(filter(is_merit, study_results.headline), None)
    ranked = [row for row in study_results.rows if row.family in ("nbsr", "baseline")]
    rows = [row for row in ranked if primary in row.metrics]
    if primary is None or not rows:
        return "No figure that one could win by."
    best = _best(rows, primary)
    said = f"Best {in_words(primary)}: {best.name}, {bounds(best, primary)}."
    reference = study_results.study.reference
    if reference is None:
        rivals = [row for row in rows if (row.family == "nbsr") != (best.family == "nbsr")]
    else:
        rivals = [row for row in rows if row.model == reference != best.model and row.config != FAST]
    if not rivals:
        return said
    rival = _best(rivals, primary)
    kind = "Reference" if reference else "Best NBSR" if rival.family == "nbsr" else "Best baseline"
    said += f" {kind}: {rival.name}, {bounds(rival, primary)}"
    gap = _between(rival.name, best.name, primary, study_results.comparisons)
    if gap is None:
        return f"{said}; they share no seed." if reference is None else f"{said}."
    return f"{said}: {gap.text} over {gap.seeds} common seed{'s' if gap.seeds > 1 else ''}, {_judged(gap)}."


def _between(line: str, other: str, figure: str, gaps: Sequence[Difference]) -> Difference | None:
    """The difference of two lines, whichever way round it was made."""
    for gap in gaps:
        if gap.figure == figure and {gap.line, gap.other} == {line, other}:
            return gap if gap.line == line else gap.reversed
    return None


def _shortcomings(study_results: StudyResults) -> str:
    gaps = study_results.comparisons
    if not gaps:
        families = {row.family for row in study_results.rows}
        return f"No {'baseline' if 'nbsr' in families else 'NBSR model'} in this study: nothing to fall short of."
    merits = [gap for gap in gaps if is_merit(gap.figure)]
    judged = [gap for gap in merits if gap.reason is None]
    if not merits:
        return "No figure in which one could fall short of another."
    if not judged:
        return f"No verdict on any of {len(merits)} comparisons: it takes at least {LEAST_SEEDS} common seeds."
    reference = study_results.study.reference
    words = {"worse": "NBSR falls short:", "better": "NBSR is ahead:", "none": "NBSR falls short of no baseline"}
    if reference is not None:
        none = f"no model falls short of {reference}"
        words = {"worse": f"worse than {reference}:", "better": f"better than {reference}:", "none": none}
    parts = [
        f"{words[verdict]} {_listed([gap for gap in judged if gap.verdict == verdict])}"
        for verdict in ("worse", "better")
        if any(gap.verdict == verdict for gap in judged)
    ]
    if not any(gap.verdict == "worse" for gap in judged):
        parts.insert(0, f"{words['none']} in any figure beyond what chance explains")
    undecided = sum(gap.verdict not in ("better", "worse") for gap in judged)
    if undecided:
        parts.append(f"{undecided} of {len(judged)} comparisons are not decided by these {_tested_on(judged)}")
    if len(judged) < len(merits):
        parts.append(f"{len(merits) - len(judged)} more are not judged: too few common seeds, or not treated alike")
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}."


def _tested_on(gaps: Sequence[Difference]) -> str:
    """What differences were tested on: `seeds`, or `seeds and samples`."""
    return "seeds and samples" if any(gap.resampled is not None for gap in gaps) else "seeds"


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
    said = f'"I don\'t know": {best.name} answers {figures["coverage"]} of the test samples and is wrong in'
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
    complete = [proposal for proposal in study_results.proposals if proposal.state == "COMPLETE"]
    done = [proposal for proposal in complete if proposal.feasible]
    best = []
    for index, (name, direction) in enumerate(search.objectives.items()):
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
    bounds = " and ".join(f"{name} {bound}" for name, bound in search.constraints.items())
    within = f", with {bounds} ({len(complete) - len(done)} of {len(complete)} go beyond)" if bounds else ""
    return [
        f"Searched: {search.model}, {len(states)} proposals ({counts}) to {goals}{within} on {source}.",
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


def _judged(gap: Difference) -> str:
    chance = "" if gap.corrected is None else f" (corrected p = {gap.corrected:.2g}; {gap.rests_on})"
    nor = "seeds do not explain" if gap.resampled is None else "neither seeds nor samples explain"
    words: Mapping[str, str] = {
        "better": f"a difference that {nor}",
        "worse": f"a difference that {nor}",
        "undecided": f"not told apart by these {_tested_on([gap])}",
        "equal": "the same in every seed",
        "not tested": "too few for a test",
    }
    return words.get(gap.verdict, gap.reason or gap.verdict) + chance


def bounds(row: ComparisonRow, figure: str) -> str:
    """`97.1% (95% interval 96.0 to 98.2)`; without the interval where one seed allows none."""
    interval = row.metrics[figure]
    said = short(Interval(interval.estimate, math.nan, math.nan), figure)
    if math.isnan(interval.low):
        return said
    low, high = (short(Interval(value, math.nan, math.nan), figure) for value in (interval.low, interval.high))
    return f"{said} (95% interval {low} to {high})"
