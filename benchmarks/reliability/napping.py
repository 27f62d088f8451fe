"""Iris that takes its time: before every batch of training it naps, and writes down who naps."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nbsr_core.domains.base import Splits
from nbsr_core.domains.iris import Iris


@dataclass(frozen=True)
class Naps:
    """How long each nap is, and the file that counts them; beside this one unless told."""

    seconds: float = 0.1
    log: str = ""


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

        return replace(super().load(None, seed), augment=nap)
