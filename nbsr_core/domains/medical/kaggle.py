"""Reads the Kaggle files `Training.csv` and `Testing.csv`, with all their oddities, and says what is wrong with others.

The oddities of the originals: every training line ends in a comma, which makes an unnamed, empty column; label names
carry stray spaces ("Diabetes ") and misspellings; one symptom column is there twice ("fluid_overload").
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nbsr_core.domains.medical.knowledge_table import knowledge
from nbsr_core.errors import InputError
from nbsr_core.files import MEGABYTE, read_text, user_path
from nbsr_core.learning.splits import Split

DATASET = "kaushil268/disease-prediction-using-machine-learning"
FOLDER_VARIABLE = "NBSR_DATA"
NUM_SYMPTOMS = 132
LABEL = "prognosis"
LARGEST_FILE = 50 * MEGABYTE  # the originals have one and a half
LONGEST_SHOWN = 60

_RESPELT = {
    "(vertigo) paroymsal positional vertigo": "Positional vertigo",
    "dimorphic hemmorhoids(piles)": "Hemorrhoids (piles)",
    "osteoarthristis": "Osteoarthritis",
    "peptic ulcer diseae": "Peptic ulcer disease",
}


@dataclass(frozen=True, eq=False)
class KaggleFiles:
    """Both files, without noise. Diseases of one body system are side by side, as in the knowledge table."""

    training: Split
    testing: Split
    diseases: tuple[str, ...]
    symptoms: tuple[str, ...]


def read(root: str | None) -> KaggleFiles:
    """The files under `root`/medical, or under the folder that the environment variable NBSR_DATA names."""
    training, testing = (_Table.read(path) for path in _find(root))
    for table, other in ((training, testing), (testing, training)):
        for symptom in other.columns:
            if symptom not in table.columns:
                raise InputError(f"{table.path} lacks the column {_short(symptom)}, which {other.path.name} has")
        known = set(table.labels)
        for disease in dict.fromkeys(other.labels):
            if disease not in known:
                raise InputError(
                    f"{table.path} has no row with the disease {_short(disease)} in its column {LABEL!r}, "
                    f"but {other.path.name} has: is one of the files cut off?"
                )
    if len(training.columns) != NUM_SYMPTOMS:
        raise InputError(
            f"{training.path} has {len(training.columns)} symptom columns (all but {LABEL!r}), expected {NUM_SYMPTOMS}"
        )
    order = {disease: k for k, disease in enumerate(knowledge().diseases)}
    diseases = sorted(set(training.labels), key=lambda name: (order.get(name, len(order)), name))
    symptoms = list(training.columns)
    return KaggleFiles(
        training.split(symptoms, diseases),
        testing.split(symptoms, diseases),
        tuple(diseases),
        tuple(_readable(symptom) for symptom in symptoms),
    )


def _find(root: str | None) -> list[Path]:
    folder = root or os.environ.get(FOLDER_VARIABLE)
    remedy = (
        f"Download the dataset {DATASET!r} from Kaggle and put its two files into a folder `medical` of the data "
        "folder; or choose `source: embedded` for synthetic patients."
    )
    if not folder:
        raise InputError(
            "source 'kaggle' needs medical/Training.csv and medical/Testing.csv, but no data folder is named: neither "
            f"`root` nor the environment variable {FOLDER_VARIABLE} is set. {remedy}"
        )
    paths = [user_path(folder) / "medical" / name for name in ("Training.csv", "Testing.csv")]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        said_by = "`root`" if root else f"the environment variable {FOLDER_VARIABLE}"
        raise InputError(
            f"source 'kaggle' did not find {' and '.join(missing)}; the data folder {folder!r} is from {said_by}. "
            f"{remedy}"
        )
    return paths


@dataclass(frozen=True)
class _Table:
    """One file: `columns` maps each symptom to its position in `values` [rows, columns]."""

    path: Path
    columns: dict[str, int]
    values: np.ndarray
    labels: list[str]

    @classmethod
    def read(cls, path: Path) -> _Table:
        header, lines, rows = _fields(path)
        position = {name: i for i, name in enumerate(header)}
        if LABEL not in position:
            raise InputError(f"{path} lacks the column {LABEL!r}, which holds the disease")
        for name, i in position.items():
            if name == LABEL:
                continue
            allowed = ("",) if _is_unnamed(name) else ("0", "1")
            for line, row in zip(lines, rows, strict=True):
                if row[i] not in allowed:
                    expected = "0 or 1" if allowed[0] else "nothing"
                    where = f"{path}, line {line}, column {_short(name)}"
                    raise InputError(f"{where}: expected {expected}, got {_short(row[i])}")
        labels = [row[position[LABEL]] for row in rows]
        if "" in labels:
            raise InputError(f"{path}, line {lines[labels.index('')]}, column {LABEL!r}: expected a disease, got ''")
        spelling = {label: _disease(label) for label in set(labels)}
        symptoms = {name: i for name, i in position.items() if name != LABEL and not _is_unnamed(name)}
        # Not by way of an array of texts: each of its cells would be as wide as the widest.
        values = np.array([[field == "1" for field in row] for row in rows])
        return cls(path, symptoms, values, [spelling[label] for label in labels])

    def split(self, symptoms: list[str], diseases: list[str]) -> Split:
        number = {disease: k for k, disease in enumerate(diseases)}
        x = self.values[:, [self.columns[symptom] for symptom in symptoms]]
        return Split(torch.from_numpy(x).float(), torch.tensor([number[label] for label in self.labels]))


def _fields(path: Path) -> tuple[list[str], list[int], list[list[str]]]:
    """Names of the columns, each different; and the other lines' fields with their line numbers."""
    lines: list[int] = []
    rows: list[list[str]] = []
    reader = csv.reader(io.StringIO(read_text(path, LARGEST_FILE), newline=""))
    try:
        for fields in reader:
            if fields:
                lines.append(reader.line_num)
                rows.append([field.strip() for field in fields])
    except csv.Error as error:
        raise InputError(f"{path} is no CSV text: {error}") from None
    if len(rows) < 2:
        raise InputError(f"{path} is empty: expected a line of column names and rows, got {len(rows)} lines")
    names = rows[0]
    for line, fields in zip(lines, rows, strict=True):
        if len(fields) != len(names):
            raise InputError(
                f"{path}, line {line}: expected {len(names)} fields, as the first line has, got {len(fields)}: "
                "is the file cut off?"
            )
    seen: Counter[str] = Counter()
    header: list[str] = []
    for i, name in enumerate(names):
        header.append((f"{name}.{seen[name]}" if seen[name] else name) if name else f"unnamed {i + 1}")
        seen[name] += 1
    return header, lines[1:], rows[1:]


def _short(text: str) -> str:
    """A field in quotes, cut off where it would fill the screen."""
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…")


def _is_unnamed(column: str) -> bool:
    """The empty column at the end; "Unnamed: 133" after a tour through pandas."""
    return column.casefold().startswith("unnamed")


def _disease(label: str) -> str:
    """The knowledge table's spelling, where it knows the disease."""
    name = " ".join(label.split())
    known = {disease.casefold(): disease for disease in knowledge().diseases} | _RESPELT
    return known.get(name.casefold(), name)


def _readable(column: str) -> str:
    """For people: "fluid_overload.1", the second column of that name, becomes "fluid overload (2)"."""
    numbered = re.sub(r"\.(\d+)$", lambda match: f" ({int(match[1]) + 1})", column)
    return " ".join(numbered.replace("_", " ").split())
