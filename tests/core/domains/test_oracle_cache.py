"""Tables of features: the same as without a cache, whole after a kill, found again only where nothing changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.domains.vision.embedded import digits
from nbsr_core.domains.vision.images import PixelSet
from nbsr_core.domains.vision.oracle_cache import Features, Pixels, Recipe, Table, _network, cache_folder
from nbsr_core.domains.vision.views import Augmentation, Scaling, scaled


def some(rows: int, offset: int = 0) -> PixelSet:
    generator = torch.Generator().manual_seed(offset)
    pixels = torch.randint(0, 256, (rows, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return PixelSet("random", ["a", "b"], [row % 2 for row in range(rows)], pixels)


@dataclass(frozen=True)
class Sums(Recipe):
    """Sum of each picture; counts how often it is asked."""

    asked: list[int]
    shard_rows: int = 10

    def identity(self) -> dict[str, object]:
        return {"sums": 1}

    def compute(self, images: PixelSet, rows: range) -> np.ndarray:  # type: ignore[override]
        self.asked.append(rows[0])
        return images.decode(rows, 8).flatten(1).long().sum(1).numpy()


def test_rows_are_those_of_the_pictures(tmp_path: Path) -> None:
    images, recipe = some(35), Sums([])
    table = Table(tmp_path, images, recipe).read(torch.arange(35))
    assert torch.equal(table, images.pixels.flatten(1).long().sum(1))
    assert recipe.asked == [0, 10, 20, 30]
    again = Sums([])
    assert torch.equal(Table(tmp_path, images, again).read(torch.arange(35)), table)
    assert again.asked == []


def test_a_part_costs_only_that_part(tmp_path: Path) -> None:
    images, recipe = some(35), Sums([])
    whole = images.pixels.flatten(1).long().sum(1)
    assert torch.equal(Table(tmp_path, images, recipe).read(torch.arange(12)), whole[:12])
    assert recipe.asked == [0, 10]
    assert torch.equal(Table(tmp_path, images, recipe).read(torch.arange(35)), whole)
    assert recipe.asked == [0, 10, 20, 30]
    assert torch.equal(Table(tmp_path, images, recipe).read(torch.arange(12)), whole[:12])
    assert recipe.asked == [0, 10, 20, 30]


@given(st.lists(st.integers(0, 34), min_size=1, max_size=40), st.booleans())
def test_any_rows_in_any_order(rows: list[int], is_complete: bool) -> None:
    images, recipe = some(35), Sums([])
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder), images, recipe)
        if is_complete:
            table.read(torch.arange(35))
        read = table.read(torch.tensor(rows))
    assert torch.equal(read, images.pixels.flatten(1).long().sum(1)[rows])
    assert is_complete or recipe.asked == sorted({row // 10 * 10 for row in rows})


def test_the_file_is_safe_from_those_who_read_it(tmp_path: Path) -> None:
    images = some(20)
    first = Table(tmp_path, images, Sums([])).read(torch.arange(20))
    kept = first.clone()
    first.zero_()
    assert torch.equal(Table(tmp_path, images, Sums([])).read(torch.arange(20)), kept)


def test_half_written_files_do_not_count(tmp_path: Path) -> None:
    images, recipe = some(20), Sums([])
    table = Table(tmp_path, images, recipe)
    table.place.mkdir(parents=True)
    for shard in table.shards():
        shard.file.with_suffix(".123.tmp").write_bytes(b"half")
    assert torch.equal(table.read(torch.arange(20)), images.pixels.flatten(1).long().sum(1))


SLOW_WORKER = """
import sys, time
import torch
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_oracle_cache import Sums, some
from nbsr_core.domains.vision.oracle_cache import Table

class Slow(Sums):
    def compute(self, images, rows):
        time.sleep(0.1)
        return super().compute(images, rows)

print("ready", flush=True)
Table(Path(sys.argv[1]), some(1000), Slow([])).read(torch.arange(1000))
"""


def test_kill_and_go_on(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    worker = subprocess.Popen(
        [sys.executable, "-c", SLOW_WORKER, str(tmp_path), here], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    images, recipe = some(1000), Sums([])
    table = Table(tmp_path, images, recipe)
    until = time.monotonic() + 60
    while sum(shard.done for shard in table.shards()) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    done = [shard.start for shard in table.shards() if shard.done]
    assert 3 <= len(done) < 100
    assert torch.equal(table.read(torch.arange(1000)), images.pixels.flatten(1).long().sum(1))
    assert sorted([*recipe.asked, *done]) == list(range(0, 1000, 10))


class TestFeatures:
    OPTIONS = BackboneOptions("small", "none", 16)

    @pytest.mark.parametrize("batch_size", [None, 7])
    def test_equal_to_the_network_itself(self, tmp_path: Path, batch_size: int | None) -> None:
        images = digits()[1]
        recipe = Features(self.OPTIONS, batch_size=batch_size, shard_rows=50)
        cached = Table(tmp_path, images, recipe).read(torch.arange(120))
        with torch.no_grad():
            direct = _network(self.OPTIONS)(Scaling()(scaled(images.decode(range(120), 32), 16)))
        assert torch.allclose(cached, direct, atol=1e-5)

    def test_every_view_is_another_and_stays_what_it_is(self, tmp_path: Path) -> None:
        images = digits()[1]
        tables = [
            Table(tmp_path, images, Features(self.OPTIONS, view=view, shard_rows=40)).read(torch.arange(40))
            for view in (0, 1, 2, 1)
        ]
        assert torch.equal(tables[1], tables[3])
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert bool(((tables[one] - tables[other]).abs().amax(1) > 1e-4).float().mean() > 0.9)

    def test_whatever_matters_gives_another_table(self, tmp_path: Path) -> None:
        weights = tmp_path / "weights.pt"
        torch.manual_seed(1)
        torch.save(BackboneOptions("small").build().state_dict(), weights)
        recipe, images = Features(self.OPTIONS), some(20)
        places = [
            Table(tmp_path, images, recipe).place,
            Table(tmp_path, some(20, 1), recipe).place,
            Table(tmp_path, images, replace(recipe, source_size=20)).place,
            Table(tmp_path, images, replace(recipe, view=1)).place,
            Table(tmp_path, images, replace(recipe, view=1, augmentation=Augmentation(flip=0.0))).place,
            Table(tmp_path, images, replace(recipe, backbone=replace(self.OPTIONS, size=20))).place,
            Table(tmp_path, images, Pixels(8)).place,
        ]
        _network.cache_clear()
        places.append(
            Table(tmp_path, images, replace(recipe, backbone=replace(self.OPTIONS, weights=str(weights)))).place
        )
        assert len(set(places)) == len(places)


def test_where_tables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBSR_CACHE", "/elsewhere")
    assert cache_folder(None) == Path("/elsewhere")
    assert cache_folder("/mine") == Path("/mine")
    monkeypatch.delenv("NBSR_CACHE")
    assert cache_folder(None) == Path("~/.cache/nbsr").expanduser()
