"""`nbsr explain` speaks of a table in the table's own words: columns, cells, groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tables import animals
from trained_tables import Trained, nbsr

COLUMNS = {"weight", "coat", "indoors", "born", "owner"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("pets"))


@pytest.mark.parametrize("sample", range(5))
def test_a_row_is_told_by_its_columns_and_cells(trained: Trained, sample: int) -> None:
    told = json.loads(nbsr("explain", "pets", "--sample", str(sample), "--json", "--home", str(trained.home)))
    cells = animals()
    read = {feature["name"]: feature["state"] for feature in told["features"]}
    assert read.keys() <= COLUMNS, "one line for each column, whatever features it became"
    candidates = [*range(len(cells["animal"]))]
    for name in read.keys() & {"coat", "indoors", "born"}:
        candidates = [row for row in candidates if cells[name][row] == read[name]]
    assert candidates, f"no row of the file is like {read}"
    assert told["answer"] in set(cells["animal"])


def test_groups_are_called_by_the_classes_in_them_and_the_picture_too(trained: Trained, tmp_path: Path) -> None:
    picture = tmp_path / "walk.svg"
    said = nbsr("explain", "pets", "--sample", "1", "--home", str(trained.home), "--svg", str(picture))
    assert "Generalist" in said
    assert any(f": {name}" in said for name in ("cat", "dog", "bird"))
    assert "on pets.csv, 240 rows, target animal" in said
    drawn = picture.read_text(encoding="utf-8")
    assert "Generalist" in drawn
    assert "weight" in drawn or "coat" in drawn
