"""Which table, and what its columns cost; checked without torch and without opening a file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nbsr_core.domains.acquisition.options import checked_budgets
from nbsr_core.domains.table.options import TableData
from nbsr_core.errors import InputError
from nbsr_core.files import path_except
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import check_choice

Source = Literal["file", "physionet", "digits", "cube", "cube_nm", "cube_prices"]
READ, DRAWN = ("file", "physionet"), ("cube", "cube_nm", "cube_prices")
_READ = counts_when("source is file or physionet", lambda data: data.source in READ)
_DRAWN = counts_when("source is a cube", lambda data: data.source in DRAWN)
PHYSIONET = "Outcome"
"""The column of the ICU stays' table that is to be predicted."""


@dataclass(frozen=True)
class PanelOptions:
    """Columns that are bought together.

    Attributes:
        columns: their names.
        cost: what they cost together.
    """

    columns: tuple[str, ...]
    cost: float

    def __post_init__(self) -> None:
        if not self.columns:
            raise InputError("columns must name at least one column, got none")
        check_price("cost", self.cost)


@dataclass(frozen=True)
class AcquisitionData(TableData):
    """Which table, and what its columns cost; the options of `domain: table` say how a file is read.

    Attributes:
        file: a CSV or Parquet file, for `source: file`.
        target: column with the classes.
        source: a `file`; `physionet`, 12,000 stays in intensive care with 41 measurements
            (`physionet/physionet.csv` under `root`); `digits`, scikit-learn's 1,797 handwritten digits of 8 x 8 pixels,
            to be bought in 16 tiles of 2 x 2 pixels at price 1; or a table that is drawn: `cube`, `cube_nm` and
            `cube_prices`, see `nbsr_core.domains.acquisition.cubes`.
        root: folder of the `physionet` file; by default, the one that NBSR_DATA names.
        panels: columns that are bought together: `{blood: {columns: [urea, sodium], cost: 10}}`.
        costs: prices of single columns.
        other_cost: price of each column that has none; None is free.
        budgets: what may be spent at most, one figure each (`budget/<B>/accuracy`); rollouts end at the largest. None
            by default: everything is bought in the end.
        side: of the table domain alone; here routers and experts see the same columns.
        deviation: of the features that show a bit of the class.
        train_rows: how many rows are drawn for training.
        valid_rows: how many for validation.
        test_rows: how many for the test.
    """

    file: Path = Path()
    target: str = ""
    source: Source = "file"
    root: str | None = field(
        default=None,
        metadata={
            **path_except(),
            **counts_when("source is physionet", lambda data: data.source == "physionet"),
        },
    )
    panels: Mapping[str, PanelOptions] = field(default_factory=dict, metadata=_READ)
    costs: Mapping[str, float] = field(default_factory=dict, metadata=_READ)
    other_cost: float | None = field(default=None, metadata=_READ)
    budgets: tuple[float, ...] = ()
    side: tuple[str, ...] = field(default=(), metadata=counts_when("domain is table", lambda data: False))
    deviation: float = field(default=0.1, metadata=_DRAWN)
    train_rows: int = field(default=20_000, metadata=_DRAWN)
    valid_rows: int = field(default=4_000, metadata=_DRAWN)
    test_rows: int = field(default=4_000, metadata=_DRAWN)

    def __post_init__(self) -> None:
        check_choice("source", self.source, Source)
        object.__setattr__(self, "budgets", checked_budgets(self.budgets))
        for name in ("train_rows", "valid_rows", "test_rows"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be a whole number >= 1, got {getattr(self, name)!r}")
        if self.source == "physionet":
            object.__setattr__(self, "target", self.target or PHYSIONET)
        if self.source in READ:
            super().__post_init__()
            self._check_prices()
        if self.source == "file" and self.file == Path():
            raise InputError("file must be the path of a CSV or Parquet file where source is file, got none")

    def _check_prices(self) -> None:
        for name, cost in self.costs.items():
            check_price(f"costs.{name}", cost)
        if self.other_cost is not None:
            check_price("other_cost", self.other_cost)
        if not (self.panels or self.costs or self.other_cost is not None):
            raise InputError(
                "costs, panels or other_cost must give a price to some column; without any, use domain: table"
            )
        priced = Counter([*self.costs, *(column for panel in self.panels.values() for column in panel.columns)])
        twice = [name for name, times in priced.items() if times > 1]
        if twice:
            raise InputError(f"panels and costs: {twice[0]!r} has several prices, and a column has one")
        same = self.panels.keys() & self.costs.keys()
        if same:
            raise InputError(f"panels.{min(same)}: a column with a price of its own is called so; rename the panel")


def check_price(name: str, cost: Any) -> None:
    """A price is a finite number above 0: what costs nothing is free by having no price."""
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost < math.inf:
        raise InputError(f"{name} must be a finite number > 0, got {cost!r}; columns without a price are free")
