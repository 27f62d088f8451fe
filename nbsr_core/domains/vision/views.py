"""From bytes to what a backbone sees: its size, the paper's augmentation, its scaling; in batches, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from nbsr_core.errors import InputError


@dataclass(frozen=True)
class Augmentation:
    """What may happen to a training picture; the defaults are the paper's.

    Attributes:
        flip: chance of a horizontal flip.
        rotation: largest angle in degrees, either way; corners that come into sight are black.
        brightness: largest change of all pixels, as a share.
    """

    flip: float = 0.5
    rotation: float = 15.0
    brightness: float = 0.2

    def __post_init__(self) -> None:
        rules = {"flip": 1.0, "rotation": 180.0, "brightness": 1.0}
        for name, most in rules.items():
            if not 0 <= getattr(self, name) <= most:
                raise InputError(f"augment.{name} must lie in [0, {most:g}], got {getattr(self, name)}")

    def __call__(self, x: Float[Tensor, "B 3 S S"], generator: torch.Generator) -> Float[Tensor, "B 3 S S"]:
        """Every picture in its own way, all chance from the generator: the same for batches of any size."""
        draws = torch.rand(len(x), 3, generator=generator).T.to(x.device)
        mirrored = torch.where(draws[0] < self.flip, -1.0, 1.0)
        angle = (2 * draws[1] - 1) * math.radians(self.rotation)
        cos, sin, none = angle.cos(), angle.sin(), torch.zeros_like(angle)
        rows = [torch.stack([mirrored * cos, -mirrored * sin, none], -1), torch.stack([sin, cos, none], -1)]
        grid = F.affine_grid(torch.stack(rows, 1).to(x.dtype), list(x.shape), align_corners=False)
        turned = F.grid_sample(x, grid, mode="bilinear", align_corners=False)
        light = 1 + (2 * draws[2] - 1) * self.brightness
        return (turned * light.to(x.dtype).view(-1, 1, 1, 1)).clamp(0, 1)


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
