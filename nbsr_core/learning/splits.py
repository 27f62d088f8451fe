"""What a domain gives: data in splits, models by name, and an evaluation. It does not train, log or plot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nbsr_core.errors import InputError


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and labels that belong together.

    Attributes:
        weight: how much each row counts in training, 1 on average; None where all count alike. Judging ignores it.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"a split needs as many labels as inputs, got {len(self.y)} and {len(self.x)}")
        if self.weight is not None and self.weight.shape != self.y.shape[:1]:
            raise InputError(f"a split needs as many weights as rows, got {len(self.weight)} and {len(self.y)}")

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class InputReading:
    """What one input of a sample is to a person: a column of a table may be several features of a model.

    Attributes:
        name: what it is called.
        places: the features that stand for it.
        words: its value.
    """

    name: str
    places: range
    words: str


@dataclass(frozen=True, eq=False)
class Splits:
    """All data of a domain.

    Attributes:
        source: where the data comes from, in words that a report can print.
        synthetic: whether it was generated; shown wherever a result on it shows.
        augment: changes a training batch, all randomness from the generator (fresh noise each epoch); None for none.
        extra: further evaluation sets by name (out-of-distribution inputs, noise draws).
        structure: what else models are built from, as plain JSON values: a taxonomy, panels with their prices.
    """

    train: Split
    valid: Split
    test: Split
    class_names: Sequence[str]
    feature_names: Sequence[str]
    source: str
    synthetic: bool
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    extra: dict[str, Split] = field(default_factory=dict)
    structure: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken = sorted({"train", "valid", "test"} & self.extra.keys())
        if taken:
            raise InputError(f"an extra split cannot be called {', '.join(taken)}")

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def readings(self, x: Tensor) -> list[InputReading] | None:
        """One sample as a person knows it, where that is not one reading per feature; None where it is."""
        return None

    def fingerprint(self) -> str:
        """A hash of every value in every split, of what classes and features are called, and of the structure."""
        described: list[Any] = [list(self.class_names), list(self.feature_names)]
        if self.structure:
            described.append(self.structure)
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        splits = {"train": self.train, "valid": self.valid, "test": self.test, **self.extra}
        for name, split in splits.items():
            for tensor in (split.x, split.y, *(() if split.weight is None else (split.weight,))):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]
