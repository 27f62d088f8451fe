"""Iris that takes its time: before every batch of training it naps, and writes down who naps."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nbsr_core.domains.iris import Iris
from nbsr_core.learning.splits import Splits


@dataclass(frozen=True)
class Naps:
    """How long each nap is, and which files are used.

    Attributes:
        log: the file that counts naps; beside this one by default.
        labels: a file with the labels of the training set; Iris's own by default.
    """

    seconds: float = 0.1
    log: str = ""
    labels: str = ""


class Napping(Iris):
    """90 flowers: in batches of 30, an epoch has three naps."""

    name = "napping"
    data = Naps  # type: ignore[assignment]

    def load(self, data: Naps, seed: int) -> Splits:
        book = Path(data.log) if data.log else Path(__file__).with_name("naps.log")

        def nap(x: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
            with book.open("a") as log:
                log.write(f"{os.getpid()}\n")
            time.sleep(data.seconds)
            return x

        splits = replace(super().load(None, seed), augment=nap)
        if not data.labels:
            return splits
        labels = torch.tensor([int(line) for line in Path(data.labels).read_text().split()])
        return replace(splits, train=replace(splits.train, y=labels))
