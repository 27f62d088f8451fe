"""The expert that is cloned: it sees the whole map and walks a shortest way to the goal (breadth-first search)."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from nbsr_core.domains.navigation.world import BLOCKING, MOVES, Cell, Maps

UNREACHABLE = 10_000


def distances(maps: Maps) -> Int[Tensor, "N side side"]:
    """Steps to the goal from every cell of every map: one wave from all goals at once, a cell further a sweep.

    Walls, obstacles, traps and aliens are `UNREACHABLE`, and so is what they enclose.
    """
    passable = ~BLOCKING[maps.cells.long()] & (maps.cells != Cell.TRAP) & (maps.cells != Cell.ALIEN)
    far = torch.full(maps.cells.shape, UNREACHABLE, dtype=torch.int64)
    reached = maps.cells == Cell.GOAL
    far[reached] = 0
    step = 0
    while True:
        step += 1
        ring = F.pad(reached, (1, 1, 1, 1))
        beside = ring[:, :-2, 1:-1] | ring[:, 2:, 1:-1] | ring[:, 1:-1, :-2] | ring[:, 1:-1, 2:]
        fresh = beside & passable & ~reached
        if not bool(fresh.any()):
            return far
        far[fresh] = step
        reached = reached | fresh


def best_actions(
    maps: Maps, steps_to_goal: Int[Tensor, "N side side"], position: Int[Tensor, "N 2"]
) -> Int[Tensor, " N"]:
    """The expert's move. Of equally short ways it takes the one along the axis on which the goal is further.

    Who clones it sees roughly where the goal is: a tie broken by what can be seen can be learned, one broken by the
    order of the actions only teaches noise.
    """
    rows, last = torch.arange(len(maps)), maps.cells.shape[1] - 1
    target = position.unsqueeze(1) + MOVES
    inside = ((target >= 0) & (target <= last)).all(-1)
    target = target.clamp(0, last)
    remaining = steps_to_goal[rows[:, None], target[..., 0], target[..., 1]].masked_fill(~inside, UNREACHABLE)
    offset = maps.goal() - position
    along = (offset.unsqueeze(1) * MOVES).sum(-1)  # how much of the way to the goal lies in each direction
    return (remaining * 100 - along).argmin(1)
