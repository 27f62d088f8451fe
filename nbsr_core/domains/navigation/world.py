"""The grid world: what cells there are, what an agent sees of them through its 5x5 view, and what its moves do.

All of it works on many maps at once: 1,000 episodes advance together, one tensor operation a step. The gymnasium
environment is the same world with one map.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from nbsr_core.errors import InputError

SIDE = 11
"""Maps are 11 x 11 cells."""
REACH = 2
"""The agent sees so far in each direction."""
VIEW = 2 * REACH + 1

ACTIONS = ("up", "down", "left", "right")
MOVES = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])


class Cell(IntEnum):
    """What a cell holds. A trap looks like a goal; cues are signs on walls."""

    FLOOR = 0
    WALL = 1
    OBSTACLE = 2
    CUE_LEFT = 3
    CUE_RIGHT = 4
    GOAL = 5
    TRAP = 6
    ALIEN = 7


CHANNELS = ("wall", "obstacle", "left cue", "right cue", "goal", "alien")
"""What the agent's view shows; nothing in training ever lights the alien's channel."""

BLOCKING = torch.tensor([cell in (Cell.WALL, Cell.OBSTACLE, Cell.CUE_LEFT, Cell.CUE_RIGHT) for cell in Cell])
FAR_GOAL = 0.5
"""Brightness of a goal beyond the view, on the border cell that lies towards it."""


def _appearance() -> Tensor:
    looks = torch.zeros(len(Cell), len(CHANNELS))
    for cell, shown in {
        Cell.WALL: ("wall",),
        Cell.OBSTACLE: ("obstacle",),
        Cell.CUE_LEFT: ("wall", "left cue"),
        Cell.CUE_RIGHT: ("wall", "right cue"),
        Cell.GOAL: ("goal",),
        Cell.TRAP: ("goal",),
        Cell.ALIEN: ("alien",),
    }.items():
        for channel in shown:
            looks[cell, CHANNELS.index(channel)] = 1.0
    return looks


APPEARANCE = _appearance()


@dataclass(frozen=True, eq=False)
class Maps:
    """Grids with a start each.

    Attributes:
        cells: codes of `Cell`.
        start: row and column where the agent begins.
        compass: whether a goal beyond the view shows, dimmed, on the border of the view towards it.
        alien: brightness of an alien in its channel.
    """

    cells: Int[Tensor, "N side side"]
    start: Int[Tensor, "N 2"]
    compass: bool
    alien: float = 1.0

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Tensor | slice) -> Maps:
        return Maps(self.cells[index], self.start[index], self.compass, self.alien)

    def goal(self) -> Int[Tensor, "N 2"]:
        """Where the goal of each map is."""
        return places_of(self.cells, Cell.GOAL)


def places_of(cells: Int[Tensor, "N side side"], kind: Cell) -> Int[Tensor, "N 2"]:
    """Row and column of the one cell of this kind on each map."""
    found = (cells == kind).flatten(1)
    if not bool((found.sum(1) == 1).all()):
        raise InputError(f"every map needs exactly one {kind.name.lower()}")
    flat = found.to(torch.uint8).argmax(1)
    return torch.stack([flat // cells.shape[2], flat % cells.shape[2]], dim=1)


def look(maps: Maps, position: Int[Tensor, "N 2"]) -> Float[Tensor, "N C view view"]:
    """What the agents see: 5x5 cells around them, one channel per feature. Beyond the map is wall."""
    padded = F.pad(maps.cells, (REACH,) * 4, value=int(Cell.WALL))
    around = torch.arange(VIEW)
    rows = position[:, 0, None, None] + around[:, None]
    columns = position[:, 1, None, None] + around
    patch = padded[torch.arange(len(maps))[:, None, None], rows, columns]
    view = APPEARANCE[patch.long()].permute(0, 3, 1, 2).contiguous()
    view[:, CHANNELS.index("alien")] *= maps.alien
    if maps.compass:
        offset = maps.goal() - position
        beyond = (offset.abs() > REACH).any(1).nonzero().squeeze(1)
        mark = offset[beyond].clamp(-REACH, REACH) + REACH
        view[beyond, CHANNELS.index("goal"), mark[:, 0], mark[:, 1]] = FAR_GOAL
    return view


@dataclass(frozen=True, eq=False)
class Moved:
    """What became of a move: the new position, and what was met on the way."""

    position: Int[Tensor, "N 2"]
    bumped: Bool[Tensor, " N"]
    on_goal: Bool[Tensor, " N"]
    in_trap: Bool[Tensor, " N"]
    in_alien: Bool[Tensor, " N"]


def move(maps: Maps, position: Int[Tensor, "N 2"], action: Int[Tensor, " N"]) -> Moved:
    """Go one cell; whoever bumps into a wall or an obstacle stays where it is."""
    target = (position + MOVES[action]).clamp(0, maps.cells.shape[1] - 1)
    rows = torch.arange(len(maps))
    bumped = BLOCKING[maps.cells[rows, target[:, 0], target[:, 1]].long()] | (target == position).all(1)
    reached = torch.where(bumped.unsqueeze(1), position, target)
    met = maps.cells[rows, reached[:, 0], reached[:, 1]]
    return Moved(reached, bumped, met == Cell.GOAL, met == Cell.TRAP, met == Cell.ALIEN)
