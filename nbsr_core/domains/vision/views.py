"""From bytes to what a backbone sees: its size, the paper's augmentation, its scaling; in batches, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from nbsr_core.errors import InputError
from nbsr_core.options.conditions import counts_when


@dataclass(frozen=True)
class Augmentation:
    """What may happen to a training picture; the defaults are the paper's.

    Attributes:
        flip: chance of a horizontal flip.
        rotation: largest angle in degrees, either way; corners that come into sight are black.
        brightness: largest change of all pixels, as a share.
        shift: largest way in px, both up or down and left or right; what comes into sight is mirrored at the edge.
        by_turns: in training every picture is flipped in every second epoch, a half of them in each: both sides of a
            picture are seen equally often, and no chance is left to `flip`.
    """

    flip: float = field(default=0.5, metadata=counts_when("by_turns is false", lambda augment: not augment.by_turns))
    rotation: float = 15.0
    brightness: float = 0.2
    shift: int = 0
    by_turns: bool = False

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise InputError(f"augment.shift must be at least 0 px, got {self.shift}")
        rules = {"flip": 1.0, "rotation": 180.0, "brightness": 1.0}
        for name, most in rules.items():
            if not 0 <= getattr(self, name) <= most:
                raise InputError(f"augment.{name} must lie in [0, {most:g}], got {getattr(self, name)}")

    def __call__(
        self, x: Float[Tensor, "B 3 S S"], generator: torch.Generator, flipped: Bool[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B 3 S S"]:
        """Every picture in its own way, all chance from the generator: the same for batches of any size.

        Args:
            x: pictures of values from 0 to 1.
            generator: of all chance.
            flipped: which pictures are flipped, where that is no chance.
        """
        draws = torch.rand(len(x), 5 if self.shift else 3, generator=generator).T.to(x.device)
        flipped = draws[0] < self.flip if flipped is None else flipped.to(x.device)
        if self.rotation:
            turned = _turned(x, flipped, (2 * draws[1] - 1) * math.radians(self.rotation))
        else:
            turned = torch.where(flipped.view(-1, 1, 1, 1), x.flip(-1), x)
        if self.shift:
            ways = (draws[3:] * (2 * self.shift + 1)).long().clamp_max(2 * self.shift)
            turned = _shifted(turned, ways, self.shift)
        light = 1 + (2 * draws[2] - 1) * self.brightness
        return (turned * light.to(x.dtype).view(-1, 1, 1, 1)).clamp(0, 1)


def _turned(x: Float[Tensor, "B 3 S S"], flipped: Bool[Tensor, " B"], angle: Float[Tensor, " B"]) -> Tensor:
    mirrored = torch.where(flipped, -1.0, 1.0)
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [torch.stack([mirrored * cos, -mirrored * sin, none], -1), torch.stack([sin, cos, none], -1)]
    grid = F.affine_grid(torch.stack(rows, 1).to(x.dtype), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", align_corners=False)


def _shifted(x: Float[Tensor, "B 3 S S"], start: Int[Tensor, "2 B"], most: int) -> Float[Tensor, "B 3 S S"]:
    """A window of each picture, beginning so many px below and right of the corner that it has with its margin."""
    size = x.shape[-1]
    if most >= size:
        raise InputError(f"augment.shift must be less than the pictures' {size} px, got {most}")
    wider = F.pad(x, [most] * 4, mode="reflect")
    rows, columns = (begin.unsqueeze(1) + torch.arange(size, device=x.device) for begin in start)
    each = torch.arange(len(x), device=x.device).view(-1, 1, 1)
    # With the colours last, as an index in several dimensions leaves them, and back again.
    return wider.permute(0, 2, 3, 1)[each, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def flipped_by_turns(rows: Int[Tensor, " B"], epoch: int) -> Bool[Tensor, " B"]:
    """Whether the pictures of these rows are flipped in this epoch: all in every second one, half of all in each.

    Which half begins follows from a hash of the row (the last steps of MurmurHash3): neighbours have nothing in common.
    """
    mixed = rows.long() & 0xFFFFFFFF
    for factor, far in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        mixed = ((mixed ^ (mixed >> far)) * factor) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 16)) + epoch) % 2 == 1


@dataclass(frozen=True)
class StoredPictures:
    """An augmentation of pictures as they are stored, with values from 0 to 255: what a training is given."""

    augmentation: Augmentation

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self._changed(x, generator)

    def in_epoch(self, x: Tensor, generator: torch.Generator, rows: Int[Tensor, " B"], epoch: int) -> Tensor:
        """The same where it is known which pictures these are: flips may go by turns."""
        return self._changed(x, generator, flipped_by_turns(rows, epoch) if self.augmentation.by_turns else None)

    def _changed(self, x: Tensor, generator: torch.Generator, flipped: Tensor | None = None) -> Tensor:
        return self.augmentation(scaled(x, x.shape[-1]), generator, flipped) * 255


def scaled(pixels: UInt8[Tensor, "B 3 H W"] | Float[Tensor, "B 3 H W"], size: int) -> Float[Tensor, "B 3 S S"]:
    """Values from 0 to 255 become [0, 1] at `size` x `size` px."""
    x = pixels.float() / 255
    if x.shape[-2:] == (size, size):
        return x
    return F.interpolate(x, (size, size), mode="bilinear", antialias=size < max(x.shape[-2:]))


@dataclass(frozen=True)
class Scaling:
    """The values that a network expects: `(x - mean) / spread` of x in [0, 1], channel by channel.

    The defaults are ImageNet's mean and spread, with which torchvision's networks were trained. Pretrained weights that
    see other values still answer, only worse: whoever brings weights says how their pictures were scaled.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    spread: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.spread) != 3 or not all(map(math.isfinite, (*self.mean, *self.spread))):
            raise InputError(f"mean and spread must be three numbers each, got {self.mean} and {self.spread}")
        if min(self.spread) <= 0:
            raise InputError(f"spread must be above 0, got {self.spread}")

    def __call__(self, x: Float[Tensor, "B 3 S S"]) -> Float[Tensor, "B 3 S S"]:
        mean, spread = x.new_tensor(self.mean).view(1, 3, 1, 1), x.new_tensor(self.spread).view(1, 3, 1, 1)
        return (x - mean) / spread
