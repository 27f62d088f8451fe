"""Anybody's table: a file, a target, and everything in between found out, said and fitted on training rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core.domains.table.data import TableSplits, encoding_in, load_table
    from nbsr_core.domains.table.domain import Table
    from nbsr_core.domains.table.encoding import EncodedColumn, Encoding
    from nbsr_core.domains.table.options import SplitOptions, TableData
    from nbsr_core.domains.table.survey import Survey

__all__ = [
    "EncodedColumn",
    "Encoding",
    "SplitOptions",
    "Survey",
    "Table",
    "TableData",
    "TableSplits",
    "encoding_in",
    "load_table",
]

__getattr__ = on_first_use(
    __name__,
    {
        "EncodedColumn": "encoding",
        "Encoding": "encoding",
        "SplitOptions": "options",
        "Survey": "survey",
        "Table": "domain",
        "TableData": "options",
        "TableSplits": "data",
        "encoding_in": "data",
        "load_table": "data",
    },
)
