"""A whole file of questions answered by a trained model: piece by piece, and written whole or not at all.

Any model whose domain's service takes a table can be asked like this; what it says is what the served model says.
"""

from __future__ import annotations

import csv
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from nbsr_core.domains.service import Column
from nbsr_core.domains.table.cells import number_of, text_of
from nbsr_core.domains.table.options import MISSING
from nbsr_core.domains.table.reading import CHUNK, RawTable, read_pieces
from nbsr_core.errors import InputError
from nbsr_platform.serving.served_model import ServedModel

NOTE = "note"
MOST_NAMED = 8


@dataclass
class Summary:
    """What happened to the rows of a file.

    Attributes:
        ignored: columns that the model does not know.
        absent: columns that the model knows and can do without.
        unanswered: rows that it could not be asked about; their `note` says why.
        noted: rows that were answered and have a `note`.
    """

    rows: int = 0
    abstained: int = 0
    unanswered: int = 0
    noted: int = 0
    ignored: Sequence[str] = ()
    absent: Sequence[str] = ()


def predict_file(
    model: ServedModel,
    source: Path,
    out: Path,
    keep: Sequence[str] = (),
    chunk: int = CHUNK,
    *,
    separator: str | None = None,
    encoding: str | None = None,
    options: Mapping[str, float | None] | None = None,
) -> Summary:
    """Answer each row of a CSV or Parquet file by a row of a CSV file.

    Args:
        model: whom to ask.
        source: one column for each of the service's, in any order; others are ignored.
        out: file to write; replaced when all is done.
        keep: columns of `source` that `out` begins with.
        chunk: rows that are in memory at a time.
        separator: of a CSV file; found out by default.
        encoding: of a CSV file; found out by default.
        options: how the model is used, see `ServedModel.predict`.
    """
    model.check(options)
    if out.exists() and source.exists() and out.samefile(source):
        raise InputError(f"{out} is the file of the questions; name another one")
    outputs = [column.name for column in model.service.outputs if column.name != NOTE]
    whole = chunk if model.service.by_row else 1 << 62
    summary = Summary()
    with replaced(out) as file:
        writer = csv.writer(file)
        for piece in read_pieces(source, separator, encoding, whole, one_column=True):
            _check_cells(model, source, piece, keep)
            if piece.first_row == 0:
                summary.ignored, summary.absent = _checked(model, source, piece, keep)
                writer.writerow([*keep, *outputs, NOTE])
            answers, notes = _answered(model, piece, options)
            for row in range(len(piece)):
                answer = answers.get(row)
                summary.rows += 1
                summary.abstained += answer is not None and bool(answer["abstained"])
                summary.unanswered += answer is None
                summary.noted += answer is not None and bool(notes[row])
                said = [""] * len(outputs) if answer is None else [text_of(answer[name]) for name in outputs]
                writer.writerow([*(piece.cells[name][row] for name in keep), *said, notes[row]])
    return summary


@contextmanager
def replaced(path: Path) -> Iterator[TextIO]:
    """A text file beside `path` that takes its place when all was written, and is gone otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as file:
            yield file
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _check_cells(model: ServedModel, source: Path, piece: RawTable, keep: Sequence[str]) -> None:
    """Refuse a file in which a column that is needed holds no cells."""
    for name in (*(column.name for column in model.service.inputs), *keep):
        if name in piece.left_out:
            raise InputError(f"{source}: column {name!r} cannot be used: {piece.left_out[name]}")


def _checked(model: ServedModel, source: Path, piece: RawTable, keep: Sequence[str]) -> tuple[list[str], list[str]]:
    inputs = model.service.inputs
    absent = [column for column in inputs if column.name not in piece.cells]
    missing = [column.name for column in absent if column.required or len(absent) == len(inputs)]
    if missing:
        raise InputError(
            f"{source} ({piece.format}) has no column {_named(missing)}, which the model needs; it has "
            f"{_named(piece.names)}"
        )
    lost = [name for name in keep if name not in piece.cells]
    if lost:
        raise InputError(f"--keep: {source} has no column {_named(lost)}; it has {_named(piece.names)}")
    known = {column.name for column in inputs}
    there = (*piece.names, *piece.left_out)
    return [name for name in there if name not in known], [column.name for column in absent]


def _answered(
    model: ServedModel, piece: RawTable, options: Mapping[str, float | None] | None
) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Answers by row, and what is to be said of each row."""
    columns = [column for column in model.service.inputs if column.name in piece.cells]
    notes = [""] * len(piece)
    frame = pd.DataFrame({column.name: _values(column, piece, notes) for column in columns}, dtype=object)
    for column in columns:
        if column.kind == "number":
            frame[column.name] = frame[column.name].astype("float64")
    asked = [row for row in range(len(piece)) if not notes[row]]
    answers: dict[int, dict[str, Any]] = {}
    if not model.service.by_row and len(asked) < len(piece):
        raise InputError(f"row {next(row for row, note in enumerate(notes) if note) + 1}: {max(notes)}")
    _ask(model, frame, asked, answers, notes, options)
    return answers, notes


def _ask(
    model: ServedModel,
    frame: pd.DataFrame,
    rows: Sequence[int],
    answers: dict[int, dict[str, Any]],
    notes: list[str],
    options: Mapping[str, float | None] | None,
) -> None:
    """Ask about these rows; where the model refuses, about each half of them, so that one row spoils no other."""
    if not rows:
        return
    try:
        said = model.predict(frame.iloc[list(rows)], options)
    except InputError as error:
        if not model.service.by_row:
            raise
        if len(rows) == 1:
            notes[rows[0]] = str(error)
            return
        middle = len(rows) // 2
        _ask(model, frame, rows[:middle], answers, notes, options)
        _ask(model, frame, rows[middle:], answers, notes, options)
        return
    for row, answer in zip(rows, said.to_dict("records"), strict=True):
        answers[row] = answer
        notes[row] = str(answer.get(NOTE, ""))


def _values(column: Column, piece: RawTable, notes: list[str]) -> list[Any]:
    """The cells as the service wants them; a cell that is no number where one is needed is noted."""
    cells: list[str] = piece.cells[column.name].tolist()
    if column.kind != "number":
        return cells
    numbers = [None if cell in MISSING else number_of(cell) for cell in cells]
    for row, (cell, number) in enumerate(zip(cells, numbers, strict=True)):
        if number is None and (column.required or cell not in MISSING):
            notes[row] += f"{'; ' if notes[row] else ''}{column.name} is {cell!r}, not a number"
    return [math.nan if number is None else number for number in numbers]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, names[:MOST_NAMED])) + more
