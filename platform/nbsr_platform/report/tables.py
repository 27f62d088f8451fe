"""The tables of a report, as HTML in which every name is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import nan

from nbsr_core.metrics import Interval
from nbsr_platform.report.material import Material
from nbsr_platform.report.verdicts import (
    Difference,
    against_baselines,
    headline,
    higher_is_better,
    in_words,
    over_seeds,
)
from nbsr_platform.summary import Row, short

SIGNS = {"better": "▲ better", "worse": "▼ worse", "undecided": "· not decided", "equal": "= equal"}


def comparison(material: Material) -> str:
    """Models x figures: those that people compare first, and all others folded away."""
    first = headline(material)
    names = list(dict.fromkeys(name for row in material.rows for name in row.metrics))
    rest = [name for name in names if name not in first]
    parts = [_figures(material, first)]
    if rest:
        parts.append(f"<details><summary>{len(rest)} more figures</summary>{_figures(material, rest)}</details>")
    parts += [f"<p>{escape(line)}</p>" for line in material.legend]
    return "".join(parts)


def _figures(material: Material, names: Sequence[str]) -> str:
    rows = material.rows
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


def _published(row: Row, name: str) -> str:
    """What the paper reports for this cell, below ours."""
    if name not in row.paper:
        return ""
    return f"<small>paper {escape(short(Interval(row.paper[name], nan, nan), name))}</small>"


def _best(rows: Sequence[Row], name: str) -> Row | None:
    higher = higher_is_better(name)
    known = [row for row in rows if name in row.metrics and row.family in ("nbsr", "baseline")]
    if higher is None or len(known) < 2:
        return None
    return max(known, key=lambda row: (1 if higher else -1) * row.metrics[name].estimate)


def _label(figure: str) -> str:
    return escape(in_words(figure))


def _name(row: Row) -> str:
    return f"{row.model} {row.config}".strip()


def paired(material: Material) -> str:
    """NBSR against each baseline, seed by seed."""
    gaps = against_baselines(material)
    if not gaps:
        return ""
    words = (
        "<p>Paired over common seeds: NBSR minus baseline, mean with 95% interval, and the p-value of a paired t-test "
        f"(of {len(gaps)} comparisons; not corrected for their number).</p>"
    )
    return words + differences(gaps)


def differences(gaps: Sequence[Difference], against: str = "against") -> str:
    """One line a comparison."""
    body = []
    for gap in gaps:
        p = "–" if gap.p is None else f"{gap.p:.2g}"
        seeds = f"{gap.seeds}" if gap.seeds > 1 else "1: no test"
        body.append(
            f"<tr class={gap.verdict}><th scope=row>{escape(gap.line)}<td>{escape(gap.other)}<td>{_label(gap.figure)}"
            f"<td>{escape(gap.text)}<td>{p}<td>{seeds}<td>{SIGNS[gap.verdict]}"
        )
    heads = "".join(f"<th>{name}" for name in ("model", against, "figure", "difference", "p", "seeds", "verdict"))
    return f"<div class=wide><table class=paired><thead><tr>{heads}</thead><tbody>{''.join(body)}</tbody></table></div>"


def members(material: Material) -> str:
    """The Pareto set of a search: objectives as they were found and over seeds, parameters, and how to run each."""
    search = material.study.search
    assert search is not None
    found = {proposal.number: proposal for proposal in material.proposals}
    names = list(dict.fromkeys(name for number in material.pareto for name in found[number].parameters))
    heads = "".join(f"<th>{_label(name)}{_arrow(way)}" for name, way in search.objectives.items())
    body = []
    for group in material.groups:
        trial, _ = group.first
        proposal = found[trial.proposal or 0]
        cells = []
        for index, name in enumerate(search.objectives):
            interval = over_seeds(group, name) if len(group.members) > 1 else None
            mean = "" if interval is None else f"<small>over seeds {escape(short(interval, name))}</small>"
            cells.append(f"<td>{escape(short(Interval(proposal.values[index], nan, nan), name))}{mean}")
        cells += [f"<td>{escape(_value(proposal.parameters.get(name)))}" for name in names]
        key = f"<code>{escape(trial.key)}</code>"
        body.append(f"<tr><th scope=row>#{proposal.number}<td>{key}<td>{len(group.members)}{''.join(cells)}")
    parameters = "".join(f"<th>{escape(name)}" for name in names)
    return (
        "<p>The Pareto set: objectives as the search found them (one seed), and over all seeds of those that were "
        "trained again. <code>nbsr run --from-trial KEY</code> writes the study file of a member and runs it.</p>"
        f"<div class=wide><table><thead><tr><th>proposal<th>key<th>seeds{heads}{parameters}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _arrow(direction: str) -> str:
    return " ↑" if direction == "maximize" else " ↓"


def _value(value: object) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def definitions(values: Mapping[str, str]) -> str:
    """Names and what they stand for."""
    return f"<dl>{''.join(f'<dt>{escape(name)}<dd>{escape(value)}' for name, value in values.items())}</dl>"
