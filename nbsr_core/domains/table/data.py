"""A table as splits: rows cut, columns encoded by what the training rows say, and all that models are built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.domains.domain import Preview, Signature
from nbsr_core.domains.table import encoding as encodings
from nbsr_core.domains.table.cells import number_of
from nbsr_core.domains.table.encoding import Encoding
from nbsr_core.domains.table.options import TableData
from nbsr_core.domains.table.splitting import Parts, Rows, split_rows
from nbsr_core.domains.table.survey import Survey, survey
from nbsr_core.domains.table.taxonomy import taxonomy_of
from nbsr_core.errors import InputError
from nbsr_core.learning.splits import InputReading, Split, Splits

MOST_NUMBERS = 1_000_000_000
"""Encoded values of all rows at most: 4 GB."""

ENCODING, TAXONOMY = "encoding", "taxonomy"


@dataclass(frozen=True, eq=False, kw_only=True)
class TableSplits(Splits):
    """Splits of a table.

    Attributes:
        encoding: which features come from which column, and how a row of cells becomes features.
        about: what was found out about the table, see `Survey`.
        notes: what a person must know about it, see `Survey`.
        rows: numbers of the rows of each split, among those that have a class.
    """

    encoding: Encoding
    about: str
    notes: Sequence[str]
    rows: Parts

    def readings(self, x: Tensor) -> list[InputReading]:
        """A row in the words of the table: one reading per column, whatever features it became."""
        words = self.encoding.readings(x.numpy())
        return [
            InputReading(column.name, range(column.start, column.stop), word)
            for column, word in zip(self.encoding.columns, words, strict=True)
        ]


def load_table(data: TableData, seed: int) -> TableSplits:
    """Read, cut and encode a table; everything random follows from the seed, everything fitted from training rows."""
    found = survey(data)
    by = None if data.split.column is None else found.table.cells[data.split.column]
    parts = split_rows(found.labels, data.split, by, data.missing, seed)
    encoding = _fitted(data, found, parts.train)
    if encoding.width * len(found.table) > MOST_NUMBERS:
        raise InputError(
            f"{data.file}: {len(found.table):,} rows of {encoding.width:,} encoded features are too many; leave "
            "columns out (columns: {name: ignore}), or choose a smaller most_categories"
        )
    x, _ = encoding.encode({column.name: found.table.cells[column.name].tolist() for column in encoding.columns})
    y = found.labels.codes
    weights = _weights(data, found, parts.train)

    def split(rows: Rows, weight: Float[Tensor, " n"] | None = None) -> Split:
        return Split(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]), weight)

    taxonomy = taxonomy_of(data, found)
    structure: dict[str, Any] = {ENCODING: encoding.to_json()}
    if taxonomy is not None:
        structure[TAXONOMY] = taxonomy
    return TableSplits(
        train=split(parts.train, weights),
        valid=split(parts.valid),
        test=split(parts.test),
        class_names=list(found.labels.names),
        feature_names=encoding.feature_names,
        source=f"{Path(data.file).name}, {len(found.table):,} rows, target {data.target}",
        synthetic=False,
        structure=structure,
        encoding=encoding,
        about=found.about,
        notes=found.notes,
        rows=parts,
    )


def preview_of(splits: Splits) -> Preview:
    """What a study is checked against; of a file that was read, with all that the look at it found."""
    about, notes = (splits.about, tuple(splits.notes)) if isinstance(splits, TableSplits) else ("", ())
    return Preview(Signature.of(splits), tuple(splits.extra), about, notes)


def _fitted(data: TableData, found: Survey, train: Rows) -> Encoding:
    return encodings.fit(
        found.used,
        {look.name: found.table.cells[look.name][train] for look in found.used},
        data.missing,
        side=data.side,
        scaling=data.scaling,
        rare=data.rare,
        most_categories=data.most_categories,
    )


def _weights(data: TableData, found: Survey, train: Rows) -> Float[Tensor, " n"] | None:
    """How much each training row counts, 1 on average; None where all count alike."""
    weights = np.ones(len(train))
    if data.row_weights is not None:
        cells = found.table.cells[data.row_weights][train].tolist()
        numbers = [number_of(cell) for cell in cells]
        for cell, number in zip(cells, numbers, strict=True):
            if number is None or number < 0:
                raise InputError(f"row_weights: {data.row_weights!r} must hold numbers >= 0, but holds {cell!r}")
        weights = np.array(numbers, dtype=np.float64)
        if not weights.sum() > 0:
            raise InputError(f"row_weights: all training rows have a {data.row_weights!r} of 0")
    elif data.class_weights == "none":
        return None
    if data.class_weights == "balanced":
        codes = found.labels.codes[train]
        of_class = np.bincount(codes, weights=weights, minlength=len(found.labels.names))
        weights = weights / np.maximum(of_class, np.finfo(np.float64).tiny)[codes]
    return torch.from_numpy(weights / weights.mean())


def encoding_in(structure: Mapping[str, Any]) -> Encoding:
    """The encoding that a model was trained with."""
    return Encoding.from_json(structure[ENCODING])
