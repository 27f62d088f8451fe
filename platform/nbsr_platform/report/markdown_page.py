"""The results of studies as a page of Markdown, for documents that are kept beside the code.

Every figure comes from stored results; what a person wrote is the question in the study file and, if there is one, an
introduction, which stands at the top of the page as it is. So a page can be made again at any time: nobody edits it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from html import escape
from math import nan
from pathlib import Path

from nbsr_core.files import MEGABYTE, read_text
from nbsr_core.metrics import Interval
from nbsr_platform.report import decomposition, depths, level, pareto, tables
from nbsr_platform.report.html_page import put
from nbsr_platform.report.purchases import HEADING, purchases
from nbsr_platform.report.reproduce import made_in, what_was_run
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import ComparisonRow, short, shown_figures, without_interval
from nbsr_platform.report.verdicts import answer

INTRODUCTIONS = "_intro"
"""Folder beside a page, with its introduction under the page's own name."""
LONGEST_INTRODUCTION = MEGABYTE
MARKS = re.compile(r"([\\`*\[\]])")
NOT_VERSIONS = ("commit", "date", "threads", "workers", "on", "device", "machine")


def write_markdown(
    path: Path,
    all_results: Sequence[StudyResults],
    title: str,
    *,
    made_by: str,
    overview: str = "",
    further: Sequence[str] = (),
    pairs: Collection[level.Pair] = (),
) -> Path:
    """Write the page as one file, below the introduction that stands in `_intro` beside it, if there is one."""
    introduction = path.parent / INTRODUCTIONS / path.name
    text = read_text(introduction, LONGEST_INTRODUCTION) if introduction.is_file() else None
    page = markdown(
        all_results, title, made_by=made_by, introduction=text, overview=overview, further=further, pairs=pairs
    )
    return put(path, page)


def markdown(
    all_results: Sequence[StudyResults],
    title: str,
    *,
    made_by: str,
    introduction: str | None = None,
    overview: str = "",
    further: Sequence[str] = (),
    pairs: Collection[level.Pair] = (),
) -> str:
    """The whole page.

    Args:
        all_results: its studies, a section each.
        title: its heading, unless an introduction has one.
        made_by: the command that makes it.
        introduction: what a person wrote.
        overview: what somebody made of all results together, as Markdown; stands before the sections.
        further: figures to show beside those that a domain shows first, `*` standing for any part of a name.
        pairs: lines of which the first is asked to be at least level with the second, in studies that have both.
    """
    head = f"# {plain(title)}" if introduction is None else introduction.strip()
    parts = [head, _stamp(all_results, made_by), overview]
    for study_results in all_results:
        if len(all_results) > 1 or study_results.study.name != title or introduction is not None:
            parts.append(f"## {plain(study_results.study.name)}")
        parts += _study(study_results, further, pairs)
    return "\n\n".join(part for part in parts if part) + "\n"


def _stamp(all_results: Sequence[StudyResults], made_by: str) -> str:
    known = [made_in(study_results) for study_results in all_results]
    commits = dict.fromkeys(commit for found in known for commit in found.get("commit", []))
    dates = [date for found in known for date in found.get("date", [])]
    return (
        f"Made by {code(made_by)} from results of commit{'s' if len(commits) > 1 else ''} "
        f"{', '.join(commits) or 'unknown'}, the newest of {max(dates, default='an unknown day')}. "
        "No figure below is written by hand."
    )


def _study(study_results: StudyResults, further: Sequence[str], pairs: Collection[level.Pair]) -> Iterator[str]:
    """The parts of one study, in the order in which a person asks."""
    if study_results.study.question:
        yield f"**Question.** {plain(study_results.study.question)}"
    yield f"```bash\n{study_results.command}\n```"
    if study_results.study.path is None:
        yield f"```yaml\n{study_results.study.to_yaml().strip()}\n```"
    yield items(_facts(study_results))
    yield "**Answer.**"  # which also parts the two lists
    yield items(map(plain, answer(study_results)), numbered=True)
    yield items(f"**Note:** {plain(note)}" for note in study_results.notes)
    if study_results.finished:
        few = without_interval(study_results.rows)
        yield tables.INTERVALS + ("" if few is None else f" **{few}.**")
        yield figures(study_results.rows, study_results.headline)
        more = [name for name in shown_figures(further, study_results.rows) if name not in study_results.headline]
        yield further_figures(study_results.rows, more) if more else ""
        yield items(map(plain, study_results.legend))
        yield from _demands(study_results, pairs)
        yield from _comparisons(study_results)
        yield from _purchases(study_results)
        yield from _depths(study_results)
        yield from _decomposition(study_results)
        yield from _members(study_results)


def _facts(study_results: StudyResults) -> list[str]:
    run, found = what_was_run(study_results), made_in(study_results)
    versions = [f"{name} {' and '.join(values)}" for name, values in found.items() if name not in NOT_VERSIONS]
    facts = {
        "seeds": plain(run["seeds"]),
        "data": f"{plain(run['data'])}; fingerprint {code(run['data fingerprint'])}",
        "code": f"commit {', '.join(found.get('commit', [])) or 'unknown'}",
        "newest result": max(found.get("date", []), default="unknown"),
        "made with": plain(", ".join(versions)) or "unknown",
    }
    return [f"{name}: {value}" for name, value in facts.items()]


def figures(rows: Sequence[ComparisonRow], names: Sequence[str]) -> str:
    """Models x figures: ours with their intervals, the paper's below."""
    body = [[plain(row.name), str(row.n), *(_figure(rows, row, name) for name in names)] for row in rows]
    return table(["model", "seeds", *(plain(tables.head(name)) for name in names)], body)


def further_figures(rows: Sequence[ComparisonRow], names: Sequence[str]) -> str:
    """Figures x models, since there may be many: of the models that have any of them."""
    known = [row for row in rows if any(name in row.metrics for name in names)]
    body = [[plain(tables.head(name)), *(_figure(rows, row, name) for row in known)] for name in names]
    return table(["figure", *(plain(row.name) for row in known)], body)


def _figure(rows: Sequence[ComparisonRow], row: ComparisonRow, name: str) -> str:
    ours = plain(short(row.metrics.get(name), name))
    ours = f"**{ours}**" if row.name in tables.best(rows, name) else ours
    if name not in row.paper:
        return ours
    return f"{ours}<br>paper {plain(short(Interval(row.paper[name], nan, nan), name))}"


def _demands(study_results: StudyResults, pairs: Collection[level.Pair]) -> Iterator[str]:
    found = level.demands(study_results, pairs)
    if found:
        yield "At least level? Differences over common seeds, with 95% intervals, against what was asked for:"
        yield table(level.COLUMNS, [map(plain, demand.cells()) for demand in found])


def _comparisons(study_results: StudyResults) -> Iterator[str]:
    gaps = study_results.comparisons
    if gaps:
        yield plain(tables.how_tested(study_results))
        yield table(tables.COLUMNS, [map(plain, tables.difference_cells(gap)) for gap in gaps])


def _purchases(study_results: StudyResults) -> Iterator[str]:
    found = purchases(study_results.shown)
    if found:
        yield f"### {HEADING}"
    for part in found:
        yield plain(part.caption)
        yield table(list(map(plain, part.heads)), [map(plain, row) for row in part.rows]) if part.rows else ""
        yield items(map(plain, part.lines))


def _depths(study_results: StudyResults) -> Iterator[str]:
    found = depths.deeper(study_results)
    if found:
        yield "By depth:"
        yield items(plain(model.text) for model in found)
        yield table(depths.COLUMNS, [map(plain, row) for row in depths.depth_rows(study_results)])


def _decomposition(study_results: StudyResults) -> Iterator[str]:
    found = decomposition.decompose(study_results)
    if found:
        yield plain(decomposition.explained(found))
        yield table(["model", *decomposition.TERMS], [map(plain, row) for row in decomposition.rows(found)])
        yield items(map(plain, decomposition.said(found)))


def _members(study_results: StudyResults) -> Iterator[str]:
    found = pareto.members(study_results)
    if found:
        names = list(found[0].objectives)
        body = []
        for member in found:
            cells = [
                plain(member.objective(name)) + (f"<br>over seeds {plain(mean)}" if (mean := member.mean(name)) else "")
                for name in names
            ]
            body.append([f"#{member.number}", plain(", ".join(member.settings)), *cells, str(member.seeds)])
        yield "The Pareto set: objectives as the search found them, and over all seeds of what was trained again."
        yield table(["proposal", "parameters", *map(plain, names), "seeds"], body)


def plain(text: str) -> str:
    """Text in which nothing is a mark of Markdown or HTML: names come from study files and data sets."""
    return MARKS.sub(r"\\\1", escape(" ".join(text.split()), quote=False)).replace("|", "&#124;")


def code(text: str) -> str:
    """Text as code."""
    return f"`{text.replace('`', '')}`"


def items(lines: Iterable[str], *, numbered: bool = False) -> str:
    """A list."""
    return "\n".join(f"{f'{number}.' if numbered else '-'} {line}" for number, line in enumerate(lines, 1))


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose cells are Markdown already; the first column is of names, the others of figures."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
