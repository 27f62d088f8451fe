"""What is computed from a set of images once and then read for ever: decoded pixels, or a frozen backbone's features.

A table lies in a folder named by a hash of all that determines it (images, transform, weights). It is computed in
shards, each a file that is whole or not there; a computation that was killed goes on with the shards that are missing,
and several processes may share the work. Once all are there, they become one file that is mapped into memory, so that
many workers on a machine share one copy. All files carry checksums: what is damaged is computed again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from nbsr_core.code.sources import checksum
from nbsr_core.domains.vision.backbones import BackboneOptions, channels_last, scaling_of, weights_hash, width
from nbsr_core.domains.vision.images import ImageSet
from nbsr_core.domains.vision.views import Augmentation, scaled
from nbsr_core.errors import InputError
from nbsr_core.files import user_path
from nbsr_core.learning.devices import best_device

logger = logging.getLogger("nbsr.cache")

FOLDER_VARIABLE = "NBSR_CACHE"
WHOLE = "table.npy"
ABOUT = "about.json"
FORMAT = 2  # of the files; a change of what a recipe computes must raise it
# Px of a batch: what a network makes of so many stays in the cache of a CPU's core; larger batches are slower.
CACHED_PIXELS = 8 * 128 * 128
BATCH_ON_GPU = 256  # pictures


def cache_folder(given: str | None) -> Path:
    """Where tables are kept: as given, or as the environment variable NBSR_CACHE says, or in the user's cache."""
    return user_path(given or os.environ.get(FOLDER_VARIABLE) or "~/.cache/nbsr")


class Recipe(ABC):
    """How a row of a table follows from a picture."""

    shard_rows: int

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """All that determines the result, beside the images."""

    @abstractmethod
    def compute(self, images: ImageSet, rows: Sequence[int]) -> np.ndarray:
        """The given rows of the table."""


@dataclass(frozen=True)
class Pixels(Recipe):
    """Decoded pictures at one size, as bytes [N, 3, size, size]."""

    size: int
    shard_rows: int = 10_000

    def identity(self) -> dict[str, object]:
        return {"pixels": self.size}

    def compute(self, images: ImageSet, rows: Sequence[int]) -> np.ndarray:
        return images.decode(rows, self.size).numpy()


@dataclass(frozen=True)
class Features(Recipe):
    """A frozen backbone's features [N, d].

    Attributes:
        source_size: px at which files are decoded before they are scaled to what the backbone wants.
        view: 0 for the picture as it is, else the number of an augmented view.
        batch_size: pictures at a time; None for as many as suit the device.
    """

    backbone: BackboneOptions
    source_size: int = 32
    view: int = 0
    augmentation: Augmentation = field(default_factory=Augmentation)
    batch_size: int | None = None
    shard_rows: int = 2000

    def identity(self) -> dict[str, object]:
        network = _network(self.backbone)
        chance = {"view": self.view, **asdict(self.augmentation)} if self.view else {}
        return {
            "backbone": self.backbone.name,
            "weights": weights_hash(network),
            "code": checksum(self.backbone.own_code()),
            "size": [self.source_size, self.backbone.input_size],
            "scaling": asdict(scaling_of(network)),
            **chance,
        }

    def compute(self, images: ImageSet, rows: Sequence[int]) -> np.ndarray:
        network, size = _network(self.backbone), self.backbone.input_size
        scaling = scaling_of(network)
        device = next(iter(network.parameters())).device
        table = np.empty((len(rows), width(network, size)), dtype=np.float32)
        generator = torch.Generator().manual_seed(self.view * 1_000_003 + (rows[0] if rows else 0))
        pixels = images.decode(rows, self.source_size)
        fitting = max(1, CACHED_PIXELS // size**2) if device.type == "cpu" else BATCH_ON_GPU
        batch_size = self.batch_size or fitting
        with torch.inference_mode():
            for start in range(0, len(rows), batch_size):
                x = scaled(pixels[start : start + batch_size].to(device), size)
                if self.view:
                    x = self.augmentation(x, generator)
                x = scaling(x).contiguous(memory_format=torch.channels_last)
                table[start : start + len(x)] = network(x).cpu().numpy()
        return table


@lru_cache(maxsize=1)
def _network(options: BackboneOptions) -> nn.Module:
    """The backbone, ready to be asked; kept, because every shard of a process asks the same one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a network without trained weights is the same one for all who read the table
        network = options.build()
    return channels_last(network.eval().requires_grad_(False).to(best_device()))


@dataclass(frozen=True, eq=False)
class Table:
    """A table of one row an image, on disk.

    Attributes:
        folder: that of all tables; this one has a folder of its own in it.
        images: what it is computed from.
        recipe: how.
    """

    folder: Path
    images: ImageSet
    recipe: Recipe

    @property
    def place(self) -> Path:
        """The folder of this table."""
        words = json.dumps([FORMAT, self.images.fingerprint, self.recipe.identity()], sort_keys=True)
        return self.folder / hashlib.sha256(words.encode()).hexdigest()[:20]

    @property
    def whole(self) -> Path:
        return self.place / WHOLE

    def shards(self, rows: Int[Tensor, " n"] | None = None) -> list[Shard]:
        """The pieces of work that make these rows of the table, by default all of them.

        Files that are damaged are removed first, as if never made.
        """
        place, step = self.place, self.recipe.shard_rows
        _remove_if_damaged(place)
        starts = range(0, len(self.images), step)
        wanted = range(len(starts)) if rows is None else (rows // step).unique().tolist()
        return [Shard(self, place, starts[part], min(starts[part] + step, len(self.images))) for part in wanted]

    def read(self, rows: Int[Tensor, " n"]) -> Tensor:
        """The given rows; whatever of them is missing is computed first, here and now.

        A table that is complete is mapped into memory, one that is not is read from its shards.
        """
        shards = self.shards()
        if not self.whole.exists():
            wanted = self.shards(rows)
            for shard in wanted:
                if not shard.done:
                    shard.run()
            if not all(shard.done for shard in shards):
                step = self.recipe.shard_rows
                parts = torch.tensor([shard.start // step for shard in wanted])
                places = torch.searchsorted(parts, rows // step) * step + rows % step
                return torch.from_numpy(np.concatenate([shard.read() for shard in wanted]))[places]
            self._assemble(shards)
        # Copy on write: a tensor wants memory that it may write to, the file stays as it is.
        return _picked(torch.from_numpy(np.load(self.whole, mmap_mode="c")), rows)

    def _assemble(self, shards: Sequence[Shard]) -> None:
        """One file out of all shards; another process may do the same at the same time."""
        try:
            first = shards[0].read()
            temporary = self.place / f"table.{os.getpid()}.tmp"
            table = np.lib.format.open_memmap(temporary, "w+", first.dtype, (len(self.images), *first.shape[1:]))
            for shard in shards:
                table[shard.start : shard.stop] = shard.read()
            table.flush()
        except FileNotFoundError:
            if self.whole.exists():
                return
            raise
        about = {"images": self.images.name, "rows": len(self.images), **self.recipe.identity()}
        about["checksum"] = _checksum(temporary)
        (self.place / ABOUT).write_text(json.dumps(about, indent=1))
        os.replace(temporary, self.whole)
        for shard in shards:
            shard.file.unlink(missing_ok=True)


def _picked(table: Tensor, rows: Int[Tensor, " n"]) -> Tensor:
    """Some rows of a table; a stretch of them stays mapped, so that all processes share it, others are copied."""
    start, length = int(rows[0]), len(rows)
    return table[start : start + length] if torch.equal(rows, start + torch.arange(length)) else table[rows]


@dataclass(frozen=True, eq=False)
class Shard:
    """Some rows of a table: a piece of work that any process may do."""

    table: Table
    place: Path
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.table.images.name} rows {self.start:,}-{self.stop:,}"

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def file(self) -> Path:
        return self.place / f"{self.start:08d}.npz"

    @property
    def done(self) -> bool:
        return zipfile.is_zipfile(self.file) or (self.place / WHOLE).exists()

    def read(self) -> np.ndarray:
        """The rows; computed again where the file is damaged (a zip knows the checksum of what is in it)."""
        try:
            return self._content()
        except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
            logger.warning("%s is damaged (%s) and made again", self.file, error)
        self.run()
        return self._content()

    def _content(self) -> np.ndarray:
        with np.load(self.file) as archive:
            rows: np.ndarray = archive["rows"]
        return rows

    def run(self) -> None:
        """Compute and keep the rows; the file is whole or not there, whenever the process may be killed."""
        rows = range(self.start, self.stop)
        content = self.table.recipe.compute(self.table.images, rows)
        if len(content) != self.size:
            raise InputError(f"{self.name}: {len(content)} rows were computed, not {self.size}")
        self.place.mkdir(parents=True, exist_ok=True)
        temporary = self.file.with_suffix(f".{os.getpid()}.tmp")
        with open(temporary, "wb") as stream:
            np.savez(stream, rows=content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, self.file)


def _remove_if_damaged(place: Path) -> None:
    """Remove a table that is not what was written, so that it is computed again."""
    table = place / WHOLE
    if not table.exists():
        return
    try:
        expected = json.loads((place / ABOUT).read_text())["checksum"]
    except (OSError, ValueError, KeyError, TypeError):
        expected = None
    about = table.stat()
    if _checksum_of(table, about.st_mtime_ns, about.st_size) != expected:
        logger.warning("%s is damaged and made again", table)
        table.unlink(missing_ok=True)


@lru_cache(maxsize=64)
def _checksum_of(file: Path, changed_at: int, size: int) -> str:
    """Read once for as long as the file stays as it is."""
    return _checksum(file)


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
