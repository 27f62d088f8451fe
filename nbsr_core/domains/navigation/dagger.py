"""Where cloning gets its episodes: the expert's demonstrations, and (DAgger) the expert's word on the agent's own ways.

A cloned agent errs, and then stands where no demonstration has ever been. DAgger (Ross et al. 2011) lets it walk as it
would, asks the expert what it should have done at each place, and trains on that too. The supervision stays the paper's
(the expert's action for a frame); only the places are the agent's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nbsr_core.domains.navigation.rollout import Policy, run_episodes
from nbsr_core.domains.navigation.world import Maps
from nbsr_core.errors import InputError
from nbsr_core.learning.batches import TensorBatches, epoch_seed
from nbsr_core.learning.checkpoint import load_checkpoint, save_atomically
from nbsr_core.learning.splits import Split
from nbsr_core.options.conditions import counts_when

WITH_ROUNDS = counts_when("rounds is above 0", lambda dagger: dagger.rounds > 0)


@dataclass(frozen=True)
class DaggerOptions:
    """Rounds spread evenly over the epochs; none unless asked for.

    Attributes:
        rounds: how often the agent walks and is corrected.
        episodes: training maps that it walks each time.
        step_limit: longest episode; what comes after is going in circles.
    """

    rounds: int = 0
    episodes: int = field(default=1000, metadata=WITH_ROUNDS)
    step_limit: int = field(default=30, metadata=WITH_ROUNDS)

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise InputError(f"dagger rounds must be at least 0, got {self.rounds}")
        if min(self.episodes, self.step_limit) < 1:
            raise InputError(f"dagger episodes and step_limit must be at least 1, got {self!r}")


@dataclass
class EpisodeBatches:
    """Batches of whole episodes, cut to the longest in each; grows by the agent's own episodes.

    Attributes:
        policy: the agent under training, as it is at the moment.
        maps: training maps for DAgger; None where there is nowhere to walk.
        epochs: of the whole training.
        memory: file that keeps gathered episodes beside a checkpoint, so that a resumed training has them, or None.
        shard: (rank, world): this process's share of the maps that are walked; all get the episodes of all.
    """

    demonstrations: Split
    batch_size: int
    epochs: int
    options: DaggerOptions
    policy: Policy
    maps: Maps | None
    memory: Path | None = None
    shard: tuple[int, int] = (0, 1)
    gathered: dict[int, Split] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.options.rounds and self.maps is None:
            raise InputError("dagger needs maps to walk on: choose task tmaze or obstacles, or dagger.rounds: 0")
        if self.options.rounds >= self.epochs:
            raise InputError(f"dagger rounds must be fewer than epochs ({self.epochs}), got {self.options.rounds}")
        if self.options.rounds and self.options.episodes < self.shard[1]:
            raise InputError(
                f"dagger needs an episode for each of {self.shard[1]} workers, got {self.options.episodes}"
            )
        if self.memory is not None and self.memory.exists():
            kept = load_checkpoint(self.memory)
            self.gathered = {int(number): Split(*pair) for number, pair in kept.items()}

    def epoch(self, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over demonstrations and all that was gathered by now."""
        known = epoch * (self.options.rounds + 1) // self.epochs
        for number in range(1, known + 1):
            if number not in self.gathered:
                self._gather(seed, number)
        pieces = [self.demonstrations, *(self.gathered[number] for number in range(1, known + 1))]
        longest = max(piece.y.shape[1] for piece in pieces)
        x, y = (torch.cat([_padded(piece, longest, which) for piece in pieces]) for which in ("x", "y"))
        for frames, actions in TensorBatches(x, y, self.batch_size).epoch(seed, epoch):
            length = int((actions >= 0).sum(1).max())
            yield frames[:, :length], actions[:, :length]

    def _gather(self, seed: int, number: int) -> None:
        assert self.maps is not None
        generator = torch.Generator().manual_seed(epoch_seed(seed, number, "dagger"))
        chosen = torch.randperm(len(self.maps), generator=generator)[: self.options.episodes]
        rank, world = self.shard
        walked = run_episodes(self.policy, self.maps[chosen[rank::world]], step_limit=self.options.step_limit)
        mine = Split(walked.frames, walked.expert)
        self.gathered[number] = mine if world == 1 else _of_all_workers(mine, world)
        if self.memory is not None:
            save_atomically({str(n): (split.x, split.y) for n, split in self.gathered.items()}, self.memory)


def _of_all_workers(mine: Split, world: int) -> Split:
    """Everybody's episodes, in the order in which one worker alone would have walked them."""
    parts: list[Any] = [None] * world
    torch.distributed.all_gather_object(parts, (mine.x, mine.y))
    splits = [Split(*part) for part in parts]
    longest = max(split.y.shape[1] for split in splits)
    place = torch.cat([torch.arange(sum(map(len, splits)))[rank::world] for rank in range(world)]).argsort()
    x, y = (torch.cat([_padded(split, longest, which) for split in splits])[place] for which in ("x", "y"))
    return Split(x, y)


def _padded(split: Split, steps: int, which: str) -> Tensor:
    values: Tensor = getattr(split, which)
    missing = steps - values.shape[1]
    if not missing:
        return values
    filler = values.new_full((len(values), missing, *values.shape[2:]), math.nan if which == "x" else -1)
    return torch.cat([values, filler], dim=1)
