"""The tables of a report, as HTML in which every name is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import nan

from nbsr_core.metrics import LEAST_SEEDS, Interval
from nbsr_platform.report import pareto
from nbsr_platform.report.comparing import HEADS, Pair
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import ComparisonRow, short
from nbsr_platform.report.verdicts import (
    Difference,
    against_baselines,
    headline,
    higher_is_better,
    in_words,
)

SIGNS = {"better": "▲ better", "worse": "▼ worse", "undecided": "· not decided", "equal": "= equal"}


def comparison(study_results: StudyResults) -> str:
    """Models x figures: those that people compare first, and all others folded away."""
    first = headline(study_results)
    names = list(dict.fromkeys(name for row in study_results.rows for name in row.metrics))
    rest = [name for name in names if name not in first]
    parts = [_figures(study_results, first)]
    if rest:
        parts.append(f"<details><summary>{len(rest)} more figures</summary>{_figures(study_results, rest)}</details>")
    parts += [f"<p>{escape(line)}</p>" for line in study_results.legend]
    return "".join(parts)


def _figures(study_results: StudyResults, names: Sequence[str]) -> str:
    rows = study_results.rows
    arrows = {True: " ↑", False: " ↓", None: ""}
    heads = [f"<th>{_label(name)}{arrows[higher_is_better(name)]}" for name in names]
    best = {name: _best(rows, name) for name in names}
    body = []
    for row in rows:
        cells = []
        for name in names:
            mark = " class=best" if row.metrics.get(name) is not None and best[name] is row else ""
            cells.append(f"<td{mark}>{escape(short(row.metrics.get(name), name))}{_published(row, name)}")
        kind = " class=nbsr" if row.family == "nbsr" else ""
        body.append(f"<tr{kind}><th scope=row>{escape(_name(row))}<td>{row.n}{''.join(cells)}")
    return (
        f"<div class=wide><table><thead><tr><th>model<th>seeds{''.join(heads)}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _published(row: ComparisonRow, name: str) -> str:
    """What the paper reports for this cell, below ours."""
    if name not in row.paper:
        return ""
    return f"<small>paper {escape(short(Interval(row.paper[name], nan, nan), name))}</small>"


def _best(rows: Sequence[ComparisonRow], name: str) -> ComparisonRow | None:
    higher = higher_is_better(name)
    known = [row for row in rows if name in row.metrics and row.family in ("nbsr", "baseline")]
    if higher is None or len(known) < 2:
        return None
    return max(known, key=lambda row: (1 if higher else -1) * row.metrics[name].estimate)


def _label(figure: str) -> str:
    return escape(in_words(figure))


def _name(row: ComparisonRow) -> str:
    return f"{row.model} {row.config}".strip()


def paired(study_results: StudyResults) -> str:
    """NBSR against each baseline, seed by seed."""
    gaps = against_baselines(study_results)
    if not gaps:
        return ""
    words = (
        "<p>Paired over common seeds: NBSR minus baseline, mean with 95% interval, and the p-value of a paired t-test "
        f"(of {len(gaps)} comparisons; not corrected for their number).</p>"
    )
    return words + differences(gaps)


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
    """One line a comparison."""
    body = []
    for gap in gaps:
        p = "–" if gap.p is None else f"{gap.p:.2g}"
        seeds = f"{gap.seeds}" if gap.seeds >= LEAST_SEEDS else f"{gap.seeds}: too few for a test"
        body.append(
            f"<tr class={gap.verdict}><th scope=row>{escape(gap.line)}<td>{escape(gap.other)}<td>{_label(gap.figure)}"
            f"<td>{escape(gap.text)}<td>{p}<td>{seeds}<td>{SIGNS[gap.verdict]}"
        )
    heads = "".join(f"<th>{name}" for name in ("model", "against", "figure", "difference", "p", "seeds", "verdict"))
    return f"<div class=wide><table class=paired><thead><tr>{heads}</thead><tbody>{''.join(body)}</tbody></table></div>"


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
