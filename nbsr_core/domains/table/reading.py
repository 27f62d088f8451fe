"""Tables from files, a piece at a time: CSV with whatever separator and encoding it has, and Parquet.

Python's own CSV reader, not pandas': it says at which line a file is broken, it guesses no types (codes keep their
leading zeros), and it needs no package. What was found out about a file is part of its `Format`, and is told.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nbsr_core._extras import extra
from nbsr_core.domains.table.cells import number_of, text_of
from nbsr_core.errors import InputError
from nbsr_core.files import open_file, size, user_path

Cells = NDArray[np.object_]
"""A column's cells, text each."""

SEPARATORS = (",", ";", "\t", "|")
SAMPLE = 1 << 20  # bytes by which encoding and separator are found out
SAMPLE_LINES = 200
CHUNK = 20_000
MOST_CELLS = 100_000_000
LONGEST_CELL = 1 << 20
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}
MARKS |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
PARQUET = b"PAR1"
NOT_TABLES = {
    b"PK\x03\x04": "a zip archive or an Excel workbook; save the sheet as CSV",
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save the sheet as CSV",
    b"SQLite format 3": "a SQLite database; export the table as CSV",
    b"%PDF": "a PDF file",
}
STARTS_OF_TEXT = {
    ("{", "["): "JSON; save it as CSV",
    ("<",): "a web page or XML; save the table as CSV",
}
"""How texts begin that are no tables, blanks aside."""

NAMED_SEPARATORS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar", " ": "space"}


@dataclass(frozen=True)
class Format:
    """What was found out about a file: `separator` and `encoding` are None for Parquet."""

    separator: str | None = None
    encoding: str | None = None

    def __str__(self) -> str:
        if self.separator is None:
            return "Parquet"
        return f"CSV, separator {NAMED_SEPARATORS.get(self.separator, repr(self.separator))}, {self.encoding}"


@dataclass(frozen=True, eq=False)
class RawTable:
    """Columns of text by name, in the file's order.

    Attributes:
        first_row: number of its first row in the file, from 0.
        left_out: columns of a Parquet file that hold no cells, and what they hold.
    """

    cells: Mapping[str, Cells]
    format: Format
    first_row: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.cells.values()), ()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.cells)


def read_table(path: Path, separator: str | None = None, encoding: str | None = None) -> RawTable:
    """The whole table."""
    pieces: list[RawTable] = []
    held = 0
    for piece in read_pieces(path, separator, encoding):
        pieces.append(piece)
        held += len(piece) * len(piece.names)
        if held > MOST_CELLS:
            raise InputError(
                f"{path} has more than {MOST_CELLS:,} cells, too many to train on; take a sample of its rows, or leave "
                "out columns"
            )
    if not len(pieces[0]):
        raise InputError(f"{path} has a head but no rows")
    first = pieces[0]
    left_out = {name: why for piece in pieces for name, why in piece.left_out.items()}
    names = [name for name in first.names if name not in left_out]
    cells = {name: np.concatenate([piece.cells[name] for piece in pieces]) for name in names}
    return RawTable(cells, first.format, left_out=left_out)


def read_pieces(
    path: Path,
    separator: str | None = None,
    encoding: str | None = None,
    chunk: int = CHUNK,
    *,
    one_column: bool = False,
) -> Iterator[RawTable]:
    """The table in pieces of at most so many rows, one piece at least: files may be larger than memory.

    Args:
        path: a CSV or Parquet file.
        separator: of a CSV file; found out by default.
        encoding: of a CSV file; found out by default.
        chunk: rows of a piece at most.
        one_column: whether a CSV file may have one column only; by default its separator is taken to be unknown.
    """
    path = user_path(str(path))
    with open_file(path) as file:
        start = file.read(SAMPLE)
        file.seek(0)
        for magic, what in NOT_TABLES.items():
            if start.startswith(magic):
                raise InputError(f"{path} is no table but {what}")
        if start.startswith(PARQUET):
            yield from _parquet(path, file, chunk)
        else:
            yield from _csv(path, file, start, separator, encoding, chunk, one_column)


def _csv(
    path: Path,
    file: BinaryIO,
    start: bytes,
    separator: str | None,
    encoding: str | None,
    chunk: int,
    one_column: bool,
) -> Iterator[RawTable]:
    encoding = encoding or _encoding(path, start)
    try:
        sample = codecs.getincrementaldecoder(encoding)().decode(start)
    except LookupError:
        raise InputError(f"encoding: Python knows no {encoding!r}; utf-8, utf-16 and cp1252 are common") from None
    except UnicodeError as error:
        raise InputError(f"{path} is not text in {encoding} ({error}); set encoding") from None
    if not sample.strip():
        raise InputError(f"{path} is empty; expected a line of column names, then one line per row")
    for marks, what in STARTS_OF_TEXT.items():
        if sample.lstrip().startswith(marks):
            raise InputError(f"{path} is no table but {what}")
    form = Format(separator or _separator(path, sample, one_column), encoding)
    with io.TextIOWrapper(file, encoding, newline="") as text:
        records = _records(path, text, form)
        _, head = next(records)
        names = _names(path, head)
        rows_of = _whole(path, records, len(names))
        first = 0
        while True:
            rows = list(islice(rows_of, chunk))
            if rows or first == 0:
                yield RawTable(_columns(names, rows), form, first)
            if len(rows) < chunk:
                return
            first += len(rows)


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Cells]:
    keep = dict[str, str]().setdefault  # equal texts are one text in memory
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return {
        name: _array([keep(cell, cell) for cell in map(str.strip, column)])
        for name, column in zip(names, columns, strict=True)
    }


def _array(cells: Sequence[str]) -> Cells:
    found = np.empty(len(cells), dtype=object)
    found[:] = cells
    return found


def _encoding(path: Path, start: bytes) -> str:
    for mark, name in MARKS.items():
        if start.startswith(mark):
            return name
    if b"\0" in start:
        raise InputError(
            f"{path} is not text: it holds NUL bytes; if it is UTF-16 without a mark, set encoding: utf-16"
        )
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        pass
    else:
        return "utf-8"
    try:
        text = start.decode("cp1252")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text (byte {error.start:,}); set encoding if it is") from None
    strange = sum(not character.isprintable() and not character.isspace() for character in text)
    if strange * 100 > len(text):
        raise InputError(f"{path} is not text: {strange:,} of its first {len(text):,} characters cannot be printed")
    return "cp1252"


def _separator(path: Path, sample: str, one_column: bool) -> str:
    """The one that cuts the most lines into equally many fields, more than one.

    Where a file may have one column and nothing cuts its head, one that cuts no line.
    """
    lines = sample.splitlines(keepends=True)
    head = next(line for line in lines if line.strip())
    if one_column and not any(_cuts(candidate, [head]) for candidate in SEPARATORS):
        return next((candidate for candidate in SEPARATORS if not _cuts(candidate, lines)), SEPARATORS[0])
    lines = lines if len(lines) == 1 else lines[:-1]  # the last one may be cut

    def fits(candidate: str) -> tuple[float, int]:
        try:
            rows = [row for row in islice(csv.reader(lines, delimiter=candidate), SAMPLE_LINES) if row]
        except csv.Error:
            return 0.0, 0
        counts = Counter(map(len, rows))
        fields, often = counts.most_common(1)[0]
        return (often / len(rows), fields) if fields > 1 else (0.0, 0)

    best = max(SEPARATORS, key=fits)
    if fits(best)[1] < 2:
        raise InputError(
            f"{path} has one column only, if {', '.join(NAMED_SEPARATORS[name] for name in SEPARATORS)} are what may "
            f"separate columns; its first line is {lines[0].strip()[:80]!r}. Set separator if it is another"
        )
    return best


def _cuts(separator: str, lines: Sequence[str]) -> bool:
    """Whether a separator cuts some line into fields."""
    try:
        return any(len(row) > 1 for row in csv.reader(lines, delimiter=separator))
    except csv.Error:
        return True


def _records(path: Path, text: io.TextIOWrapper, form: Format) -> Iterator[tuple[int, list[str]]]:
    """Records that are not empty, with the line at which each ends."""
    limit = csv.field_size_limit(LONGEST_CELL)
    try:
        reader = csv.reader(text, delimiter=form.separator or ",", strict=True)
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InputError(f"{path}, line {reader.line_num}: {error}; is a quotation mark not closed?") from None
            except UnicodeError as error:
                raise InputError(
                    f"{path}, after line {reader.line_num:,}: not text in {form.encoding} ({error}); set encoding, "
                    "cp1252 for example"
                ) from None
            if row:
                yield reader.line_num, row
    finally:
        csv.field_size_limit(limit)


def _whole(path: Path, records: Iterator[tuple[int, list[str]]], width: int) -> Iterator[list[str]]:
    for line, row in records:
        if len(row) != width:
            if len(row) == 1 and not row[0].strip():
                continue
            raise InputError(
                f"{path}, line {line}: {len(row)} fields, but the head names {width} columns; quote cells that hold "
                "the separator, or set another separator"
            )
        yield row


def _names(path: Path, head: Sequence[str]) -> list[str]:
    names = [name.strip() for name in head]
    if all(number_of(name) is not None for name in names if name):
        raise InputError(
            f"{path}: its first line must name the columns, but holds numbers: {', '.join(names[:5])}, ...; "
            "put a line of names before it"
        )
    names = [name or f"column {place}" for place, name in enumerate(names, 1)]
    return _distinct(path, names)


def _distinct(path: Path, names: list[str]) -> list[str]:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{path} has more than one column {twice[0]!r}; give each a name of its own")
    return names


def _parquet(path: Path, file: BinaryIO, chunk: int) -> Iterator[RawTable]:
    with extra("tables", "pyarrow"):
        import pyarrow
        import pyarrow.parquet
    try:
        opened = pyarrow.parquet.ParquetFile(file)
        schema = opened.schema_arrow
        names = _distinct(path, list(schema.names))
        nested = [name for name in names if pyarrow.types.is_nested(schema.field(name).type)]
        flat = [name for name in names if name not in nested]
        left_out = dict.fromkeys(nested, "it holds lists or records; a cell must be one value")
        first = 0
        for batch in opened.iter_batches(chunk):
            yield _of_batch(flat, batch, left_out, first)
            first += batch.num_rows
        if first == 0:
            yield _of_batch(flat, schema.empty_table(), left_out, 0)
    except pyarrow.ArrowException as error:
        raise InputError(f"{path} ({size(path.stat().st_size)}) is no whole Parquet file: {error}") from None


def _of_batch(names: Sequence[str], batch: Any, left_out: Mapping[str, str], first: int) -> RawTable:
    """A piece of a Parquet file, without the columns whose values are no cells."""
    cells, strange = dict[str, Cells](), dict(left_out)
    for name in names:
        try:
            cells[name] = _array([text_of(value) for value in batch.column(name).to_pylist()])
        except (InputError, ValueError, OverflowError) as error:  # pyarrow's, of moments that Python has no words for
            strange[name] = str(error)
    return RawTable(cells, Format(), first, strange)
