"""Where batches and randomness come from: both follow from a seed and the number of the epoch."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.errors import InputError


@runtime_checkable
class Batches(Protocol):
    """Training data: a fresh iteration for a given epoch, whose order follows from the seed."""

    def epoch(self, seed: int, epoch: int) -> Iterable[tuple[Tensor, Tensor]]: ...


@runtime_checkable
class CountedBatches(Batches, Protocol):
    """Batches that know how many they are: what a learning rate that changes from step to step needs."""

    def steps(self) -> int:
        """Batches of one epoch, the same for every epoch."""


def steps_of(batches: Batches) -> int:
    """Batches of one epoch, where they are counted."""
    if not isinstance(batches, CountedBatches):
        raise InputError(
            "training.scheduler: linear has to know how many batches an epoch has, and "
            f"{type(batches).__name__} does not say; choose another"
        )
    return batches.steps()


@runtime_checkable
class AugmentsByTurns(Protocol):
    """An augmentation that may do by turns what others leave to chance, once it knows the rows and the epoch."""

    def in_epoch(self, x: Tensor, generator: torch.Generator, rows: Int[Tensor, " B"], epoch: int) -> Tensor:
        """Change the inputs of these rows of the training split, for this epoch."""


@dataclass(frozen=True, eq=False)
class TensorBatches:
    """Batches of tensors that fit into memory, shuffled each epoch.

    Attributes:
        augment: changes a batch of inputs, with the given generator as its only source of randomness (fresh noise);
            where it `AugmentsByTurns`, it is also told which rows these are, and the epoch.
        weight: how often a row is drawn in an epoch, on average; once each by default. Rows that count more come more
            often, whatever the loss: so every model that learns from batches learns with weights.
    """

    x: Tensor
    y: Tensor
    batch_size: int = 128
    augment: Callable[[Tensor, torch.Generator], Tensor] | AugmentsByTurns | None = None
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"inputs and labels must be as many, got {len(self.x)} and {len(self.y)}")
        if len(self.x) == 0:
            raise InputError("the training set is empty")
        if self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {self.batch_size}")

    def steps(self) -> int:
        return math.ceil(len(self.x) / self.batch_size)

    def epoch(self, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch, "batches"))
        order = torch.randperm(len(self.x), generator=generator)
        if self.weight is not None:
            order = drawn(self.weight, generator)[order]
        for index in order.split(self.batch_size):
            yield self._augmented(index, generator, epoch), self.y[index]

    def _augmented(self, rows: Int[Tensor, " B"], generator: torch.Generator, epoch: int) -> Tensor:
        x = self.x[rows]
        if self.augment is None:
            return x
        if isinstance(self.augment, AugmentsByTurns):
            return self.augment.in_epoch(x, generator, rows, epoch)
        return self.augment(x, generator)


def drawn(weight: Float[Tensor, " N"], generator: torch.Generator) -> Int[Tensor, " N"]:
    """As many rows as there are weights, each `N weight / sum` times, rounded up or down by chance.

    Systematic resampling: evenly spaced marks on the line of all weights, at a random start. Whole weights give each
    row exactly that often; drawing rows one by one would add noise of its own.
    """
    rows = len(weight)
    ends = weight.double().cumsum(0)
    start = torch.rand((), dtype=torch.float64, generator=generator)
    marks = (torch.arange(rows, dtype=torch.float64) + start) * (ends[-1] / rows)
    return torch.searchsorted(ends, marks, right=True).clamp_max(rows - 1)


def epoch_seed(seed: int, epoch: int, purpose: str = "model") -> int:
    """A seed for one purpose in one epoch, well mixed: neighbours in seed, epoch or purpose have nothing in common.

    Were the order of the batches and the routes drawn from one seed, they would be drawn from the same numbers.
    """
    if seed < 0:
        raise InputError(f"a seed must be at least 0, got {seed}")
    entropy = [seed, epoch, *purpose.encode()]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


GLOBAL_GENERATOR = threading.RLock()
"""Torch's global generator has one user at a time: a trial that trains here, or a thread that builds a model beside it.

Whoever puts the generator back to where it was (`torch.random.fork_rng`) would else take from the trial what it drew
meanwhile, and the trial would no longer follow from its seed.
"""


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch; call it before a model is made, so that its first weights follow from the seed."""
    if seed < 0:
        raise InputError(f"a seed must be at least 0, got {seed}")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
