"""Models that are fitted to all training rows at once, without epochs: what trees have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.learning import EpochRecord, TrainingConfig, epoch_seed
from nbsr_core.learning.learners import NO_WALK, Execution, Learner
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.metrics.names import TRAIN, VALID, named

MOST_ROWS = 500_000
"""Rows that a model is fitted to at most, all draws together: more would fill a machine's memory."""
MOST_VALUES = 2**27
"""Values of all these rows at most (512 MB): rows of pictures, or of what a backbone made of them, are long."""


def draws_of(splits: Splits, epochs: int, seed: int) -> list[Split]:
    """The training rows as networks see them: where noise is fresh in every epoch, as many draws as there are epochs.

    There are fewer draws than epochs where more would make over `MOST_ROWS` rows or `MOST_VALUES` values, but always
    one.
    """
    train, augment = splits.train, splits.augment
    if augment is None:
        return [train]
    draws = max(1, min(epochs, MOST_ROWS // max(len(train), 1), MOST_VALUES // max(train.x.numel(), 1)))
    seeds = (epoch_seed(seed, draw, "draws") for draw in range(draws))
    return [replace(train, x=augment(train.x, torch.Generator().manual_seed(each))) for each in seeds]


def joined(draws: Sequence[Split]) -> Split:
    """All draws as one table."""
    if len(draws) == 1:
        return draws[0]
    weights = [draw.weight for draw in draws if draw.weight is not None]
    x, y = torch.cat([draw.x for draw in draws]), torch.cat([draw.y for draw in draws])
    return Split(x, y, torch.cat(weights) if weights else None)


def weights_of(rows: Split) -> NDArray[np.float64] | None:
    """How much each row counts, as libraries of trees want to be told."""
    return None if rows.weight is None else rows.weight.double().numpy()


class FittedAtOnce(Learner):
    """A model without epochs: `training.epochs` says how many draws of fresh noise it sees, the rest does not count."""

    family = "baseline"

    @abstractmethod
    def fit(self, draws: Sequence[Split], seed: int) -> None:
        """Learn from these draws of the training rows."""

    def train(self, splits: Splits, config: TrainingConfig, seed: int, execution: Execution) -> Iterator[EpochRecord]:
        began = perf_counter()
        draws = draws_of(splits, config.epochs, seed)
        self.fit(draws, seed)
        seconds = perf_counter() - began
        loss = metrics.nll(self.raw_probabilities(splits.train.x), splits.train.y)
        valid = self.raw_probabilities(splits.valid.x)
        figures = {"nll": metrics.nll(valid, splits.valid.y), "accuracy": metrics.accuracy(valid, splits.valid.y)}
        yield EpochRecord(0, {"loss": loss}, figures, 0.0, 0.0, seconds, sum(map(len, draws)) / seconds)

    @property
    def epoch_figures(self) -> set[str] | None:
        return named(VALID, ("nll", "accuracy")) | named(TRAIN, ("loss",))

    @property
    def ignores(self) -> dict[str, str]:
        others = (f"training.{item.name}" for item in fields(TrainingConfig) if item.name != "epochs")
        return {**dict.fromkeys(others, "trees are fitted by options of their own"), **NO_WALK}


def label_columns(probs: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """Columns for all classes [..., K], where a model knows only those that it saw, [..., seen]."""
    whole = probs.new_zeros(*probs.shape[:-1], num_classes)
    whole[..., classes] = probs
    return whole
