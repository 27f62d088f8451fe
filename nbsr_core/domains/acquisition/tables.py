"""Tables with prices as splits: what models are built from is the structure `panels` and `budgets`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.domains.acquisition import cubes
from nbsr_core.domains.acquisition.data import DRAWN, READ, AcquisitionData
from nbsr_core.domains.table.data import TableSplits, load_table
from nbsr_core.domains.table.encoding import Encoding
from nbsr_core.errors import InputError
from nbsr_core.files import user_path
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.acquisition import Panels

# Of tables that are read: shares of the rows for validation and for the test.
HELD_OUT = 0.2
SIDE, TILE = 8, 2


def load(options: AcquisitionData, seed: int) -> Splits:
    """All splits; the seed decides on every row that is drawn, and on the cut of rows that are read."""
    if options.source in READ:
        return _read(options, seed)
    return _drawn(options, seed) if options.source in DRAWN else _digits(options, seed)


def _read(options: AcquisitionData, seed: int) -> TableSplits:
    """A file as `domain: table` reads it, with prices on its columns."""
    if options.source == "physionet":
        options = replace(options, file=_stays(options.root))
    splits = load_table(options, seed)
    panels = panels_of(options, splits.encoding)
    return replace(
        splits,
        source=f"{splits.source}; {len(panels)} panels for {sum(panels.costs):g} in all",
        structure={**splits.structure, **panels.structure(options.budgets)},
    )


def panels_of(options: AcquisitionData, encoding: Encoding) -> Panels:
    """What can be bought of a table: which features a column became, its encoding says.

    In the order of the table, whatever order the study names panels in: equal studies have equal panels.
    """
    places = {column.name: tuple(range(column.start, column.stop)) for column in encoding.columns}
    wanted = {name: (panel.columns, panel.cost) for name, panel in options.panels.items()}
    wanted |= {name: ((name,), cost) for name, cost in options.costs.items()}
    named = {column for columns, _ in wanted.values() for column in columns}
    for column in sorted(named - places.keys()):
        close = get_close_matches(column, places, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{options.file}: {column!r} has a price, but is no column that models see{hint}")
    if options.other_cost is not None:
        wanted |= {name: ((name,), options.other_cost) for name in places if name not in named}
    features = {panel: [place for name in names for place in places[name]] for panel, (names, _) in wanted.items()}
    panels = sorted(wanted, key=lambda panel: min(features[panel]))
    costs = [float(wanted[panel][1]) for panel in panels]
    return Panels.of(tuple(panels), costs, [features[panel] for panel in panels], encoding.width)


def _stays(root: str | None) -> Path:
    """The table of stays in intensive care."""
    folder = root or os.environ.get("NBSR_DATA")
    if not folder:
        raise InputError("source: physionet needs data.root, or NBSR_DATA, a folder with physionet/physionet.csv in it")
    return user_path(folder) / "physionet" / "physionet.csv"


def _drawn(options: AcquisitionData, seed: int) -> Splits:
    cube = getattr(cubes, options.source)(options.deviation)
    columns, costs = zip(*cube.panels.values(), strict=True)
    panels = Panels.of(tuple(cube.panels), costs, columns, len(cube.feature_names))
    counts = (options.train_rows, options.valid_rows, options.test_rows)
    x, y = cube.rows(sum(counts), seed)
    source = f"{options.source} (drawn), deviation {options.deviation:g}, {options.train_rows:,} rows for training"
    names = [str(label) for label in range(cubes.CLASSES)]
    splits = _splits(options, panels, x, y, counts, names, cube.feature_names, source, synthetic=True)
    drawn = {"source": options.source, "deviation": options.deviation}
    return replace(splits, structure={**splits.structure, "drawn": drawn})


def _digits(options: AcquisitionData, seed: int) -> Splits:
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(seed))
    x = torch.from_numpy(found.data).float()[order] / 16
    y = torch.from_numpy(found.target).long()[order]
    tiles, per_side = {}, SIDE // TILE
    for tile in range(per_side**2):
        top, left = TILE * (tile // per_side), TILE * (tile % per_side)
        pixels = tuple(SIDE * (top + down) + left + right for down in range(TILE) for right in range(TILE))
        tiles[f"rows {top}-{top + 1}, columns {left}-{left + 1}"] = pixels
    panels = Panels.of(tuple(tiles), [1.0] * len(tiles), tuple(tiles.values()), SIDE**2)
    held_out = round(HELD_OUT * len(y))
    counts = (len(y) - 2 * held_out, held_out, held_out)
    names = [str(digit) for digit in range(10)]
    features = [f"pixel {place // SIDE}, {place % SIDE}" for place in range(SIDE**2)]
    source = "scikit-learn's handwritten digits, in tiles of 2 x 2 pixels"
    return _splits(options, panels, x, y, counts, names, features, source, synthetic=False)


def _splits(
    options: AcquisitionData,
    panels: Panels,
    x: Float[Tensor, "N F"],
    y: Int[Tensor, " N"],
    counts: Sequence[int],
    class_names: Sequence[str],
    feature_names: Sequence[str],
    source: str,
    *,
    synthetic: bool,
) -> Splits:
    """One table, cut as the counts say: training, validation, test."""
    train, valid, test = map(Split, x.split(list(counts)), y.split(list(counts)))
    return Splits(
        train=train,
        valid=valid,
        test=test,
        class_names=class_names,
        feature_names=feature_names,
        source=source,
        synthetic=synthetic,
        structure=panels.structure(options.budgets),
    )
