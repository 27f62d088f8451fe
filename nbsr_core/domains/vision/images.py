"""Sets of labelled images that are decoded row by row when somebody asks: folders, zips, idx and pickled files.

A set knows its labels and a fingerprint of its content without decoding anything, so that a cache of what was computed
from it can be found in milliseconds. Its rows are shuffled within classes and the classes dealt out in turn, once and
for all: any stretch of rows is a fair sample, so that a subset, a validation split and a half-computed cache are all
just stretches.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from nbsr_core.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class ImageSet(ABC):
    """Labelled images, square and of one size.

    Attributes:
        name: where they come from, in words that a report can print.
        class_names: by label.
        labels: one a row.
    """

    name: str
    class_names: Sequence[str]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of content and order: equal images, equal fingerprint."""

    @abstractmethod
    def decode(self, rows: Sequence[int], size: int) -> UInt8[Tensor, "n 3 size size"]:
        """The pictures in the given rows, in colour; any that is not `size` px wide and high is scaled to it."""


def dealt_out(labels: Sequence[int], names: Sequence[str]) -> list[int]:
    """An order of rows in which every class is spread evenly, and shuffled by a hash of the rows' names."""
    by_class: dict[int, list[tuple[str, int]]] = {}
    for row, (label, name) in enumerate(zip(labels, names, strict=True)):
        by_class.setdefault(label, []).append((hashlib.sha256(name.encode()).hexdigest(), row))
    places = [
        ((turn + 0.5) / len(members), label, row)
        for label, members in by_class.items()
        for turn, (_, row) in enumerate(sorted(members))
    ]
    return [row for _, _, row in sorted(places)]


@dataclass(frozen=True, eq=False)
class PixelSet(ImageSet):
    """Images that are in memory as bytes [N, 3, H, W]."""

    name: str
    class_names: Sequence[str]
    labels: Sequence[int]
    pixels: UInt8[Tensor, "N 3 H W"]

    @staticmethod
    def dealt(
        name: str, class_names: Sequence[str], labels: Sequence[int], pixels: UInt8[Tensor, "N 3 H W"]
    ) -> PixelSet:
        """From pictures in any order."""
        order = dealt_out(labels, [str(row) for row in range(len(labels))])
        return PixelSet(name, class_names, [int(labels[row]) for row in order], pixels[torch.tensor(order)])

    @cached_property
    def _hash(self) -> str:
        digest = hashlib.sha256(f"{tuple(self.pixels.shape)} {list(self.labels)}".encode())
        digest.update(self.pixels.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        return self._hash

    def decode(self, rows: Sequence[int], size: int) -> UInt8[Tensor, "n 3 size size"]:
        chosen = self.pixels[torch.as_tensor(rows, dtype=torch.long)]
        if chosen.shape[-2:] == (size, size):
            return chosen
        scaled = torch.nn.functional.interpolate(
            chosen.float(), (size, size), mode="bilinear", antialias=size < max(chosen.shape[-2:])
        )
        return scaled.round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True, eq=False)
class FileSet(ImageSet):
    """Image files in a folder or a zip.

    Attributes:
        source: the folder, or the zip.
        files: path of each image inside it.
        checks: one checksum a file.
    """

    name: str
    class_names: Sequence[str]
    labels: Sequence[int]
    source: Path
    files: Sequence[str]
    checks: Sequence[str]

    @cached_property
    def _hash(self) -> str:
        lines = "\n".join(
            f"{file} {check} {label}" for file, check, label in zip(self.files, self.checks, self.labels, strict=True)
        )
        return hashlib.sha256(lines.encode()).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        return self._hash

    def decode(self, rows: Sequence[int], size: int) -> UInt8[Tensor, "n 3 size size"]:
        pictures = np.empty((len(rows), size, size, 3), dtype=np.uint8)
        if self.source.is_dir():
            for place, row in enumerate(rows):
                pictures[place] = _decoded((self.source / self.files[row]).read_bytes(), size, self.files[row])
        else:
            with zipfile.ZipFile(self.source) as archive:
                for place, row in enumerate(rows):
                    pictures[place] = _decoded(archive.read(self.files[row]), size, self.files[row])
        return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


def _decoded(content: bytes, size: int, file: str) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(content)).convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"{file} is not an image that can be read ({error})") from None
    if picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture)


def png(picture: UInt8[Tensor, "3 H W"]) -> bytes:
    """A picture as the content of a PNG file."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(stream, "png")
    return stream.getvalue()


def image_tree(source: Path, part: str, class_names: Sequence[str] | None = None) -> FileSet:
    """The images under `<source>/<part>/<class>/...`, where `source` is a folder or a zip.

    `part` may be empty. Without class folders (or with `class_names` that no folder bears) a picture has label 0 of a
    single class, which is all that an out-of-distribution set needs.
    """
    listed = _listing(source)
    prefix = f"{part}/" if part else ""
    inside = sorted((file, check) for file, check in listed if file.startswith(prefix))
    if not inside:
        raise InputError(f"{source} has no images under {prefix or 'it'!s} ({', '.join(SUFFIXES)})")
    folders = [file[len(prefix) :].split("/")[0] if "/" in file[len(prefix) :] else "" for file, _ in inside]
    names = list(class_names) if class_names is not None else sorted(set(folders))
    strangers = sorted(set(folders) - set(names))
    if strangers and class_names is not None:
        raise InputError(f"{source}/{part} must have the class folders {', '.join(names)}; it has {strangers[0]!r} too")
    number = {name: label for label, name in enumerate(names)}
    order = dealt_out([number[folder] for folder in folders], [file for file, _ in inside])
    return FileSet(
        f"{source.name}/{part}" if part else source.name,
        names,
        [number[folders[row]] for row in order],
        source,
        [inside[row][0] for row in order],
        [inside[row][1] for row in order],
    )


def _listing(source: Path) -> list[tuple[str, str]]:
    """Every image file inside, with a checksum of its content."""
    if source.is_dir():
        return [
            (str(file.relative_to(source).as_posix()), hashlib.sha256(file.read_bytes()).hexdigest()[:16])
            for file in source.rglob("*")
            if file.suffix.lower() in SUFFIXES
        ]
    try:
        with zipfile.ZipFile(source) as archive:
            return [
                (entry.filename, f"{entry.CRC:08x}{entry.file_size:x}")
                for entry in archive.infolist()
                if entry.filename.lower().endswith(SUFFIXES)
            ]
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{source} is neither a folder nor a zip of images ({error})") from None


def cifar10_batches(folder: Path, train: bool) -> PixelSet:
    """CIFAR-10 from the pickled batches that torchvision downloads (`cifar-10-batches-py`)."""
    files = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
    parts, labels = [], []
    for file in files:
        with open(folder / file, "rb") as stream:
            batch = _PlainUnpickler(stream, encoding="bytes").load()
        parts.append(np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32))
        labels += [int(label) for label in batch[b"labels"]]
    name = f"{folder.name}/{'train' if train else 'test'}"
    return PixelSet.dealt(name, CIFAR10, labels, torch.from_numpy(np.vstack(parts)))


class _PlainUnpickler(pickle.Unpickler):
    """Arrays and plain values only: a data file must not be able to run code."""

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype", "scalar"):
            return super().find_class(module, name)
        raise InputError(f"a data file that asks for {module}.{name} is not CIFAR-10")


def idx_images(images: Path, labels: Path) -> PixelSet:
    """MNIST's idx files, plain or gzipped: grey pictures, shown in three equal channels."""
    pixels = _idx(images, 3)
    numbers = _idx(labels, 1)
    colour = torch.from_numpy(pixels).unsqueeze(1).expand(-1, 3, -1, -1).contiguous()
    return PixelSet.dealt(images.name, [str(digit) for digit in range(10)], numbers.tolist(), colour)


def _idx(path: Path, dimensions: int) -> np.ndarray:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if content[:3] != b"\x00\x00\x08" or content[3] != dimensions:
        raise InputError(f"{path} is not an idx file of bytes with {dimensions} dimensions")
    head = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:head], dtype=">i4")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(*shape).copy()


def svhn(path: Path) -> PixelSet:
    """SVHN's cropped digits from the Matlab file that torchvision downloads (`test_32x32.mat`)."""
    from scipy.io import loadmat

    content = loadmat(path)
    pixels = torch.from_numpy(np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1)))
    labels = [int(label) % 10 for label in content["y"].ravel()]
    return PixelSet.dealt(path.name, [str(digit) for digit in range(10)], labels, pixels)
