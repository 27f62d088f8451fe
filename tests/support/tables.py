"""Small tables for tests, written as files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from nbsr_core.domains.table import TableData


def animals(rows: int = 240, seed: int = 0) -> dict[str, list[Any]]:
    """Columns of every kind, from which three animals can be told apart."""
    draw = np.random.default_rng(seed)
    kind = draw.integers(0, 3, rows)
    weight = np.array([4.0, 30.0, 0.1])[kind] * draw.lognormal(0, 0.3, rows)
    born = np.datetime64("2015-01-01") + draw.integers(0, 2000, rows).astype("timedelta64[D]")
    coat = np.where(kind == 2, "feathers", draw.choice(["short", "long"], rows))
    return {
        "tag": [f"T{number:05d}" for number in draw.permutation(rows)],
        "weight": [
            "" if missing else f"{value:.3f}" for value, missing in zip(weight, draw.random(rows) < 0.1, strict=True)
        ],
        "coat": coat.tolist(),
        "indoors": np.where(draw.random(rows) < 0.2 + 0.3 * kind, "yes", "no").tolist(),
        "born": born.astype(str).tolist(),
        "planet": ["Earth"] * rows,
        "owner": draw.integers(1, 25, rows).tolist(),
        "animal": np.array(["cat", "dog", "bird"])[kind].tolist(),
    }


def write_csv(path: Path, columns: dict[str, list[Any]], separator: str = ",", encoding: str = "utf-8") -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def table(folder: Path, cells: dict[str, list[Any]] | None = None, target: str = "animal", **options: Any) -> TableData:
    """Options for a table that is written into a folder."""
    return TableData(write_csv(folder / "table.csv", cells or animals()), target, **options)
