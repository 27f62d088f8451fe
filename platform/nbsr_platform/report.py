"""The report of a run: one self-contained HTML page that says what was compared, on what data, and who wins."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from nbsr_platform.summary import Row, short

if TYPE_CHECKING:
    from nbsr_platform.run import RunResult, StudyRun

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { padding: .35rem .7rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
.warn { border-left: 4px solid #b45309; padding: .2rem .8rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { overflow-x: auto; padding: .8rem; background: #8881; }
"""


def write_report(result: RunResult) -> Path:
    """Write the page beside its place and rename it there, so that a reader never sees half of it."""
    path = result.report
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(page(result), encoding="utf-8")
    os.replace(beside, path)
    return path


def page(result: RunResult) -> str:
    """The whole page; every name in it is escaped."""
    sections = "".join(_study(part) for part in result.parts)
    title = escape(result.name)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>{sections}</html>"
    )


def _study(part: StudyRun) -> str:
    study = part.study
    results = [result for _, result in part.outcome.finished.values()]
    source = escape(str(results[0].data.get("source", ""))) if results else "no finished trial"
    synthetic = any(result.data.get("synthetic") for result in results)
    notes = list(dict.fromkeys(warning for result in results for warning in result.warnings))
    notes += [f"{trial.name} failed: {result.last_words}" for trial, result in part.outcome.failed]
    parts = [
        f"<h2>{escape(study.name)}</h2>",
        f"<p>{escape(study.question)}</p>" if study.question else "",
        f"<p>Data: {source}{' — <strong>synthetic</strong>' if synthetic else ''}. "
        f"{len(study.seeds)} seed(s); mean ± half of the 95% interval.</p>",
        *(f"<p class=warn>{escape(note)}</p>" for note in notes),
        _table(part.rows),
        "<h3>How to repeat it</h3>",
        f"<pre>{escape(study.to_yaml())}</pre>",
    ]
    return "".join(parts)


def _table(rows: list[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    head = "".join(f"<th>{escape(name)}" for name in ("model", "config", "n", *names))
    body = "".join(
        f"<tr><td>{escape(row.model)}<td>{escape(row.config)}<td>{row.n}"
        + "".join(f"<td>{short(row.metrics.get(name), name)}" for name in names)
        for row in rows
    )
    return f"<table><thead><tr>{head}</thead><tbody>{body}</tbody></table>"
