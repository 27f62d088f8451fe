"""A small convolutional network that learns fast: it sees whitened patches, and its layers start as plain copies.

It follows the public records of training speed on CIFAR-10 (Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU",
2024): a fixed whitening convolution, three groups of two convolutions, batch norm without a scale of its own. It is
made for the optimiser `muon` and some eight passes over the training pictures, which is what a CPU can afford.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

PATCH = 2  # px, width and height of what is whitened
COLOURS = 3
WIDTHS = (64, 256, 256)  # channels of the three groups
SMALLEST_SIZE = 9  # px: each group halves what is left, and one pixel must be left
NEW_SHARE = 0.4  # of a batch in the running statistics: eight epochs of large batches leave no time for a slower mean
FLOOR = 5e-4  # added to each variance before it is divided by: directions without any are not blown up
ROWS_AT_ONCE = 500  # pictures whose patches are in memory together


class Whitening(nn.Module):
    """2 x 2 patches in uncorrelated directions of equal variance, each direction and its opposite, then GELU.

    The directions are computed from training pictures and never learned; only a bias is. They are buffers, so that a
    stored model brings them along. Until they are fitted, they are the values of a patch as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        values = COLOURS * PATCH * PATCH
        self.register_buffer("filters", _both_ways(torch.eye(values)))
        self.register_buffer("fitted", torch.tensor(False))
        self.filters: Tensor
        self.fitted: Tensor
        self.bias = nn.Parameter(torch.zeros(2 * values))

    @torch.no_grad()
    def fit(self, pictures: Float[Tensor, "N 3 S S"]) -> None:
        """Principal directions of all patches, each divided by its deviation; what was fitted once stays.

        Filters behind it were learned for these directions: those that came with stored weights are kept.
        """
        if self.fitted:
            return
        count, total = 0, torch.zeros(len(self.bias) // 2, dtype=torch.float64)
        products = torch.zeros(len(total), len(total), dtype=torch.float64)
        for part in pictures.split(ROWS_AT_ONCE):
            patches = F.unfold(part.double(), PATCH).transpose(1, 2).flatten(0, 1)
            count, total, products = count + len(patches), total + patches.sum(0), products + patches.T @ patches
        mean = total / count
        variances, directions = torch.linalg.eigh(products / count - torch.outer(mean, mean))
        # Either sign is an eigenvector; the same one everywhere makes the filters follow from the pictures alone.
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        scaled = directions * largest.sign() / (variances.clamp_min(0) + FLOOR).sqrt()
        self.filters.copy_(_both_ways(scaled.T))
        self.fitted.fill_(True)

    def forward(self, x: Float[Tensor, "B 3 S S"]) -> Float[Tensor, "B 24 s s"]:
        return F.gelu(F.conv2d(x, self.filters, self.bias))


def _both_ways(rows: Float[Tensor, "n values"]) -> Float[Tensor, "2*n 3 2 2"]:
    """Rows as filters, in the order in which `unfold` lays out a patch, and the same with the opposite sign."""
    filters = rows.reshape(len(rows), COLOURS, PATCH, PATCH)
    return torch.cat([filters, -filters])


class UnitBatchNorm(nn.BatchNorm2d):
    """Batch norm with a learned bias and a fixed scale of 1: the convolution after it would undo any other."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=NEW_SHARE)
        del self.weight
        self.register_buffer("weight", torch.ones(channels), persistent=False)


class Group(nn.Module):
    """Two 3 x 3 convolutions, each with batch norm and GELU; pooling after the first halves the picture."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = _copying(inputs, outputs), _copying(outputs, outputs)
        self.pool = nn.MaxPool2d(2)
        self.first_norm, self.second_norm = UnitBatchNorm(outputs), UnitBatchNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first_norm(self.pool(self.first(x))))
        return F.gelu(self.second_norm(self.second(x)))


def _copying(inputs: int, outputs: int) -> nn.Conv2d:
    """A convolution whose first outputs are at the start copies of its inputs, as many as there are."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight.data[:inputs])
    return layer


class Whitened(nn.Module):
    """Pictures [B, 3, S, S] to features [B, 256]; the parts are a chain, so that one may stop after any group.

    At 32 px a picture costs 21.9 million multiply-adds up to the end of the first group, 83.9 up to that of the second,
    and 118.1 in all.
    """

    mean, spread = (0.49, 0.48, 0.45), (0.25, 0.25, 0.25)

    def __init__(self) -> None:
        super().__init__()
        self.whiten = Whitening()
        self.group1 = Group(len(self.whiten.bias), WIDTHS[0])
        self.group2 = Group(WIDTHS[0], WIDTHS[1])
        self.group3 = Group(WIDTHS[1], WIDTHS[2])
        self.pool = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten())

    def fit_pictures(self, pictures: Float[Tensor, "N 3 S S"]) -> None:
        """Whitens the patches of these pictures from now on."""
        self.whiten.fit(pictures)

    def forward(self, x: Float[Tensor, "B 3 S S"]) -> Float[Tensor, "B 256"]:
        features: Tensor = self.pool(self.group3(self.group2(self.group1(self.whiten(x)))))
        return features
