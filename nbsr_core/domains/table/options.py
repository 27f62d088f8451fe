"""What a study says about its table; checked without torch and without opening the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nbsr_core.errors import InputError
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import check_choice

Kind = Literal["numeric", "categorical", "boolean", "date"]
ColumnChoice = Literal["numeric", "categorical", "boolean", "date", "ignore"]
SplitRule = Literal["random", "column", "group", "time"]
Scaling = Literal["quantile", "standard"]
ClassWeights = Literal["none", "balanced"]

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A", "?")
"""Cells that say that nothing is known."""

MOST_HELD_OUT = 0.8


@dataclass(frozen=True)
class SplitOptions:
    """Which rows are trained on, which validate, which test.

    Attributes:
        by: `random` (each class cut by the shares), by a `column` that says train, valid or test of each row, by
            `group` (rows with the same value of the column stay together: patients, households), or by `time` (the
            column's earliest rows train, the latest test).
        column: that column; it is no feature then, unless it is a date by which `time` splits.
        valid: share of the rows for validation.
        test: share of the rows for the test.
    """

    by: SplitRule = "random"
    column: str | None = field(default=None, metadata=counts_when("by is not random", lambda s: s.by != "random"))
    valid: float = field(default=0.2, metadata=counts_when("by is not column", lambda s: s.by != "column"))
    test: float = field(default=0.2, metadata=counts_when("by is not column", lambda s: s.by != "column"))

    def __post_init__(self) -> None:
        check_choice("split.by", self.by, SplitRule)
        if (self.column is None) != (self.by == "random"):
            raise InputError(f"split.column must be given exactly if split.by is not random, got {self.column!r}")
        for name in ("valid", "test"):
            share = getattr(self, name)
            if not 0 < share < 1:
                raise InputError(f"split.{name} must be a share between 0 and 1, got {share!r}")
        if self.valid + self.test > MOST_HELD_OUT:
            raise InputError(
                f"split.valid and split.test must leave at least {1 - MOST_HELD_OUT:.0%} of the rows for training, got "
                f"{self.valid} and {self.test}"
            )


@dataclass(frozen=True)
class TableData:
    """A table with one row per sample, and which of its columns is to be predicted.

    Attributes:
        file: a CSV file (any separator) or a Parquet file; `nbsr new FILE --target COLUMN` writes a study for it.
        target: column with the classes.
        columns: kind of a column, where another one than the inferred is meant: numeric, categorical, boolean, date, or
            ignore. Constant columns, and those that only name their row, are left out unless they stand here.
        split: which rows are trained on.
        separator: of a CSV file; found out by default.
        encoding: of a CSV file; found out by default (UTF-8, UTF-16 with its mark, else Windows-1252).
        missing: cells that say that nothing is known.
        scaling: of numbers and dates, fitted on the training rows: their place among the training rows as a normal
            deviate (`quantile`: neither outliers nor skew matter), or distance from the mean in deviations
            (`standard`).
        rare: a category that fewer training rows have is `(other)`, as are those that no training row has.
        most_categories: categories of a column at most, the most frequent; the rest are `(other)`.
        row_weights: column that says how much each training row counts; it is no feature then.
        class_weights: `balanced` makes all classes count alike in training, whatever their frequency; the model's
            probabilities are then those of a world where classes are equally frequent.
        taxonomy: classes in groups, nested as deep as wanted: `{Animal: [cat, dog], Vehicle: {Road: [car], ...}}`.
        hierarchy: columns that say the groups of each row's class, the broadest first; they are no features then.
        side: columns that only the routers of NBSR see, its experts do not. Other models see all columns.
    """

    file: Path
    target: str
    columns: Mapping[str, ColumnChoice] = field(default_factory=dict)
    split: SplitOptions = field(default_factory=SplitOptions)
    separator: str | None = None
    encoding: str | None = None
    missing: tuple[str, ...] = MISSING
    scaling: Scaling = "quantile"
    rare: int = 5
    most_categories: int = 50
    row_weights: str | None = None
    class_weights: ClassWeights = "none"
    taxonomy: Mapping[str, Any] | None = None
    hierarchy: tuple[str, ...] = ()
    side: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("scaling", self.scaling, Scaling)
        check_choice("class_weights", self.class_weights, ClassWeights)
        for name, choice in self.columns.items():
            check_choice(f"columns.{name}", choice, ColumnChoice)
        if not self.target:
            raise InputError(f"target must be the name of a column, got {self.target!r}")
        if self.separator is not None and len(self.separator) != 1:
            raise InputError(f"separator must be one character, got {self.separator!r}")
        if self.rare < 1:
            raise InputError(f"rare must be a whole number >= 1, got {self.rare}")
        if self.most_categories < 2:
            raise InputError(f"most_categories must be a whole number >= 2, got {self.most_categories}")
        if self.taxonomy is not None and self.hierarchy:
            raise InputError("taxonomy and hierarchy both say which groups there are: give one of them")
        roles = {"target": (self.target,), "hierarchy": self.hierarchy, "side": self.side}
        roles |= {"row_weights": (self.row_weights,)} if self.row_weights else {}
        seen: dict[str, str] = {}
        for role, names in roles.items():
            for name in names:
                if name in seen:
                    raise InputError(f"{role}: {name!r} is already the column of {seen[name]}")
                seen[name] = role
        if self.target == self.split.column:
            raise InputError(f"split.column: {self.target!r} is already the column of target")
        ignored = [name for name in seen if self.columns.get(name) == "ignore"]
        if ignored:
            raise InputError(f"columns.{ignored[0]}: it is ignored, but {seen[ignored[0]]} needs it")
