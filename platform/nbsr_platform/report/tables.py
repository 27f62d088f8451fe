"""The tables of a report, as HTML in which every name is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import nan

from nbsr_core.metrics import Interval
from nbsr_core.metrics.names import CEILING
from nbsr_platform.report import depths, pareto
from nbsr_platform.report.comparing import HEADS, Pair
from nbsr_platform.report.differences import CHANCE, Difference, higher_is_better, in_words
from nbsr_platform.report.groups import UNUSABLE
from nbsr_platform.report.purchases import Part
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import ComparisonRow, short

SIGNS = {
    "better": "▲ better",
    "worse": "▼ worse",
    "undecided": "· not decided",
    "equal": "= equal",
    "not tested": "– not tested",
    "not judged": "– not judged",
}
INTERVALS = (
    "Means with 95% intervals (Student-t over seeds; for shares on the logit scale, which stays within 0 and 1); "
    "bold is best."
)
COLUMNS = ("model", "against", "figure", "difference", "over seeds and samples", "corrected p", "rests on", "verdict")


def comparison(study_results: StudyResults) -> str:
    """Models x figures: those that people compare first, and all others folded away."""
    first = study_results.headline
    names = list(dict.fromkeys(name for row in study_results.rows for name in row.metrics))
    rest = [name for name in names if name not in first]
    parts = [_figures(study_results, first)]
    if rest:
        parts.append(f"<details><summary>{len(rest)} more figures</summary>{_figures(study_results, rest)}</details>")
    parts += [f"<p>{escape(line)}</p>" for line in study_results.legend]
    return "".join(parts)


def _figures(study_results: StudyResults, names: Sequence[str]) -> str:
    rows = study_results.rows
    heads = [f"<th>{escape(head(name))}" for name in names]
    winners = {name: best(rows, name) for name in names}
    body = []
    for row in rows:
        cells = []
        for name in names:
            mark = " class=best" if row.name in winners[name] else ""
            cells.append(f"<td{mark}>{_mean(row, name)}{_published(row, name)}")
        kind = " class=nbsr" if row.family == "nbsr" else ""
        body.append(f"<tr{kind}><th scope=row>{escape(row.name)}<td>{row.n}{''.join(cells)}")
    return (
        f"<div class=wide><table><thead><tr><th>model<th>seeds{''.join(heads)}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _mean(row: ComparisonRow, name: str) -> str:
    """A mean, and its interval below it: side by side, a dozen figures are wider than a screen."""
    mean, _, interval = short(row.metrics.get(name), name).partition(" ")
    return escape(mean) + (f"<small>{escape(interval)}</small>" if interval else "")


def _published(row: ComparisonRow, name: str) -> str:
    """What the paper reports for this cell, below ours."""
    if name not in row.paper:
        return ""
    return f"<small>paper {escape(short(Interval(row.paper[name], nan, nan), name))}</small>"


def head(figure: str) -> str:
    """A figure's name over its column, with an arrow to what is better."""
    arrows = {True: " ↑", False: " ↓", None: ""}
    return in_words(figure) + arrows[higher_is_better(figure)]


def best(rows: Sequence[ComparisonRow], name: str) -> list[str]:
    """The lines with the best mean of a figure; none where there is nothing to be best at, or all are equal."""
    higher = higher_is_better(name)
    ranked = [row for row in rows if name in row.metrics and row.family not in (CEILING, UNUSABLE)]
    known = {row.name: row.metrics[name].estimate for row in ranked}
    if higher is None or len(set(known.values())) < 2:
        return []
    top = (max if higher else min)(known.values())
    return [line for line, mean in known.items() if mean == top]


def _label(figure: str) -> str:
    return escape(in_words(figure))


def paired(study_results: StudyResults) -> str:
    """NBSR against each baseline, or all against the study's reference, seed by seed."""
    gaps = study_results.comparisons
    return f"<p>{escape(how_tested(study_results))}</p>{differences(gaps)}" if gaps else ""


def how_tested(study_results: StudyResults) -> str:
    """In words, what the table of differences shows and what a verdict rests on."""
    judged = sum(gap.corrected is not None for gap in study_results.comparisons)
    reference = study_results.study.reference
    pair = "NBSR minus baseline" if reference is None else f"Each model minus {reference}"
    return (
        f"{pair} over common seeds: mean and 95% interval (paired t over seeds); beside it the 95% interval over seeds "
        "and test samples (bootstrap), where answers to single samples were kept. p is the larger "
        f"one of both tests, corrected for {judged} comparisons (Holm); better and worse are said where it is below "
        f"{CHANCE:.0%}."
    )


def beside(pair: Pair) -> str:
    """Two studies beside each other, figure by figure."""
    heads = "".join(f"<th>{name}" for name in HEADS)
    body = []
    for line in pair.beside:
        first, *cells = map(escape, line.cells())
        cells[-1] = SIGNS.get(line.verdict, cells[-1])
        body.append(f"<tr class={line.verdict.split()[0]}><th scope=row>{first}{''.join(f'<td>{c}' for c in cells)}")
    return f"<div class=wide><table class=paired><thead><tr>{heads}</thead><tbody>{''.join(body)}</tbody></table></div>"


def differences(gaps: Sequence[Difference]) -> str:
    """A line for each comparison."""
    body = []
    for gap in gaps:
        first, *cells = map(escape, difference_cells(gap))
        body.append(f"<tr class={gap.verdict.split()[0]}><th scope=row>{first}{''.join(f'<td>{c}' for c in cells)}")
    heads = "".join(f"<th>{name}" for name in COLUMNS)
    return f"<div class=wide><table class=paired><thead><tr>{heads}</thead><tbody>{''.join(body)}</tbody></table></div>"


def difference_cells(gap: Difference) -> list[str]:
    """What stands in `COLUMNS`."""
    names = [gap.line, gap.other, in_words(gap.figure)]
    return [*names, gap.text, gap.text_resampled, gap.text_p, gap.rests_on, SIGNS[gap.verdict]]


def part(shown: Part) -> str:
    """A caption with what stands below it."""
    body = []
    for first, *cells in shown.rows:
        body.append(f"<tr><th scope=row>{escape(first)}{''.join(f'<td>{escape(cell)}' for cell in cells)}")
    heads = "".join(f"<th>{escape(name)}" for name in shown.heads)
    table = f"<div class=wide><table><thead><tr>{heads}</thead><tbody>{''.join(body)}</tbody></table></div>"
    told = "".join(f"<li>{escape(line)}" for line in shown.lines)
    return f"<p>{escape(shown.caption)}</p>{table if body else ''}{f'<ul>{told}</ul>' if told else ''}"


def by_depth(study_results: StudyResults) -> str:
    """What depth brings, a line for each model, and the figures of every depth; empty if no walk takes two steps."""
    said = "".join(f"<li>{escape(found.text)}" for found in depths.deeper(study_results))
    if not said:
        return ""
    body = []
    for first, *cells in depths.depth_rows(study_results):
        body.append(f"<tr class=nbsr><th scope=row>{escape(first)}{''.join(f'<td>{escape(cell)}' for cell in cells)}")
    heads = "".join(f"<th>{name}" for name in depths.COLUMNS)
    return (
        f"<ul>{said}</ul><div class=wide><table><thead><tr>{heads}</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def members(study_results: StudyResults) -> str:
    """The Pareto set of a search: objectives as they were found and over seeds, parameters, and how to run each."""
    search = study_results.study.search
    assert search is not None
    heads = "".join(f"<th>{_label(name)}{_arrow(way)}" for name, way in search.objectives.items())
    body = []
    for member in pareto.members(study_results):
        cells = []
        for name in search.objectives:
            mean = member.mean(name)
            over = "" if mean is None else f"<small>over seeds {escape(mean)}</small>"
            cells.append(f"<td>{escape(member.objective(name))}{over}")
        settings = "".join(f"<span>{escape(setting)}</span> " for setting in member.settings)
        body.append(
            f"<tr><th scope=row>#{member.number}<td class=settings>{settings}{''.join(cells)}<td>{member.seeds}"
            f"<td><code>{escape(member.key)}</code>"
        )
    return (
        "<p>The Pareto set: objectives as the search found them (one seed), and over all seeds of those that were "
        "trained again. <code>nbsr run --from-trial KEY</code> writes the study file of a member and runs it.</p>"
        f"<div class=wide><table><thead><tr><th>proposal<th class=settings>parameters{heads}<th>seeds<th>key</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _arrow(direction: str) -> str:
    return " ↑" if direction == "maximize" else " ↓"


def definitions(values: Mapping[str, str]) -> str:
    """Names and what they stand for."""
    return f"<dl>{''.join(f'<dt>{escape(name)}<dd>{escape(value)}' for name, value in values.items())}</dl>"
