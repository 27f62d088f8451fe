"""What a domain gives: data in splits, models by name, and an evaluation. It does not train, log or plot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nbsr_core.errors import InputError


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and labels that belong together."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"a split needs as many labels as inputs, got {len(self.y)} and {len(self.x)}")

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Splits:
    """All data of a domain.

    Attributes:
        source: where the data comes from, in words that a report can print.
        synthetic: whether it was generated; shown wherever a result on it shows.
        augment: changes a training batch, all randomness from the generator (fresh noise each epoch); None for none.
        extra: further evaluation sets by name (out-of-distribution inputs, noise draws).
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

    def __post_init__(self) -> None:
        taken = sorted({"train", "valid", "test"} & self.extra.keys())
        if taken:
            raise InputError(f"an extra split cannot be called {', '.join(taken)}")

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def fingerprint(self) -> str:
        """A hash of every value in every split, and of what classes and features are called."""
        names = [list(self.class_names), list(self.feature_names)]
        digest = hashlib.sha256(json.dumps(names).encode())
        splits = {"train": self.train, "valid": self.valid, "test": self.test, **self.extra}
        for name, split in splits.items():
            for tensor in (split.x, split.y):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]
