"""A model of a table as others use it: a row as it stands in the file goes in, whatever is strange about it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nbsr_core.domains.domain import Signature
from nbsr_core.domains.service import Column, Questions, Said, Service
from nbsr_core.domains.table.cells import text_of
from nbsr_core.domains.table.data import encoding_in
from nbsr_core.domains.table.encoding import EncodedColumn
from nbsr_core.domains.table.survey import listed
from nbsr_core.errors import InputError
from nbsr_core.learning.learners import Learner

NOTE = "note"


class TableRows(Service):
    """One column for each of the table's that the model uses; cells of any kind: numbers, texts, dates, nothing.

    A column that is not there counts as missing in every row, and each row's note says so; one at least must be there.
    """

    extra = (Column(NOTE, "text"),)

    def __init__(self, learner: Learner, signature: Signature) -> None:
        super().__init__(learner, signature.class_names, signature.feature_names)
        self.encoding = encoding_in(signature.structure)

    @property
    def inputs(self) -> tuple[Column, ...]:
        return tuple(Column(column.name, "value", required=False) for column in self.encoding.columns)

    def example(self) -> dict[str, Any]:
        """The middle of each column; no row of the table is like it."""
        return {column.name: _middle(column) for column in self.encoding.columns}

    def say(self, asked: Questions) -> Said:
        names = [column.name for column in self.encoding.columns]
        if not any(name in asked.values for name in names):
            raise InputError(f"the input has none of the model's columns; expected are {listed(names)}")
        nothing = [""] * len(asked)
        cells = {name: texts_of(name, asked.values.get(name, nothing)) for name in names}
        features, notes = self.encoding.encode(cells)
        said = super().say(replace(asked, numbers=torch.from_numpy(features)))
        return replace(said, extra={**said.extra, NOTE: np.array(notes, dtype=object)})


def texts_of(name: str, values: Any) -> list[str]:
    """A column's values as cells."""
    found = []
    for row, value in enumerate(values):
        try:
            found.append(text_of(value))
        except InputError as error:
            raise InputError(f"{name!r}, row {row}: {error}") from None
    return found


def _middle(column: EncodedColumn) -> Any:
    if column.kind == "categorical":
        return column.categories[0] if column.categories else ""
    encoded = np.zeros(column.stop - column.start, dtype=np.float32)
    encoded[0] = column.fill
    word = column.reading(encoded)
    return float(word) if column.kind == "numeric" else word
