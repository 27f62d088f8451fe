"""Sets of labelled images that are decoded row by row when somebody asks.

A set knows its labels and a fingerprint of its content without decoding anything, so that a cache of what was computed
from it can be found in milliseconds. Its rows are shuffled within classes and the classes dealt out in turn, once and
for all: any stretch of rows is a fair sample, so that a subset, a validation split and a half-computed cache are all
just stretches.
"""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import UInt8
from torch import Tensor

from nbsr_core._extras import extra


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


def png(picture: UInt8[Tensor, "3 H W"]) -> bytes:
    """A picture as the content of a PNG file."""
    with extra("vision"):
        from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(stream, "png")
    return stream.getvalue()
