"""The files that a trial leaves for people: tables as CSV, pictures, audit trails, figures as JSON."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbsr_core.metrics import names
from nbsr_platform.base import plain_json
from nbsr_platform.trials.results import TrialResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nbsr_platform.trials.trial import Trial

Rows = list[dict[str, Any]]
RESOLUTION = 110


def write_artifacts(folder: Path, trial: Trial, result: TrialResult) -> list[Path]:
    """Write what the result has tables for into `folder`; returns the files in the order in which they were written."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def path(name: str) -> Path:
        written.append(folder / name)
        return written[-1]

    for table, picture, draw in _pictures(trial, result):
        rows = result.tables.get(table)
        if rows:
            _write_csv(path(f"{table}.csv"), rows)
            figure = draw(rows)
            # A figure made without pyplot draws on Agg and leaves no trace in the process.
            figure.savefig(path(f"{picture}.png"), dpi=RESOLUTION)
    if result.audits:
        path("audits.json").write_text(plain_json.dumps(result.audits, indent=1), encoding="utf-8")
        path("audits.txt").write_text(_audit_text(trial, result), encoding="utf-8")
    if result.metrics:
        summary = {"metrics": result.metrics, "warnings": result.warnings, "data": _data(result)}
        path("metrics.json").write_text(plain_json.dumps(summary, indent=1), encoding="utf-8")
    return written


def _pictures(trial: Trial, result: TrialResult) -> list[tuple[str, str, Callable[[Rows], Figure]]]:
    """Table, name of its picture, and how to draw it."""
    from nbsr_core.plots import beliefs as figures

    chosen = result.metrics.get(names.ETA)
    classes = [str(name) for name in result.data.get("class_names", [])]

    def title(what: str) -> str:
        return f"{what}\n{trial.name}, {trial.domain.rpartition(':')[2]}{synthetic_note(result)}"

    return [
        ("frontier", "frontier", lambda rows: figures.frontier_chart(rows, title=title("Frontier"), chosen=chosen)),
        ("reliability", "reliability", lambda rows: figures.reliability_chart(rows, title=title("Reliability"))),
        ("belief", "sharpening", lambda rows: figures.belief_chart(rows, title=title("Belief by depth"))),
        (
            "confusion",
            "confusion",
            lambda rows: figures.confusion_chart(rows, title=title("Confusion"), class_names=_classes(classes, rows)),
        ),
        ("usage", "usage", lambda rows: figures.usage_chart(rows, title=title("Node usage"))),
    ]


def synthetic_note(result: TrialResult) -> str:
    """To be said wherever a figure on generated data shows."""
    return " (SYNTHETIC data)" if result.data.get("synthetic") else ""


def _classes(names: list[str], rows: Rows) -> list[str]:
    """The known class names, or those that the table mentions."""
    return names or sorted({str(row[side]) for row in rows for side in ("true", "predicted")})


def _write_csv(path: Path, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _audit_text(trial: Trial, result: TrialResult) -> str:
    heads = [f"{trial.name}: walks of {len(result.audits)} test samples{synthetic_note(result)}\n"]
    for audit in result.audits:
        right = "right" if audit["true"] == audit["predicted"] else "WRONG"
        heads.append(f"sample {audit['sample']}: true {audit['true']}, said {audit['predicted']} ({right})")
        heads.append(f"{audit['text']}\n")
    return "\n".join(heads)


def _data(result: TrialResult) -> dict[str, Any]:
    return {name: value for name, value in result.data.items() if name in ("source", "synthetic", "fingerprint")}
