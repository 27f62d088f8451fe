"""Maps: T-mazes whose turn must be remembered, fields of obstacles, and aliens put in the way. All from one generator.

Every map is generated, from a stream of its own for each purpose: training, validation and held-out maps share no draw.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nbsr_core.domains.navigation.expert import UNREACHABLE, best_actions, distances
from nbsr_core.domains.navigation.world import SIDE, Cell, Maps, look, move
from nbsr_core.errors import InputError

NEAREST_ALIEN = 3
"""An alien stands at least so many steps from the start: beyond the view, so that every agent meets it on its way."""


def t_mazes(count: int, generator: torch.Generator) -> Maps:
    """A corridor, a junction, two doors that look alike: the sign beside the start says which of them is the goal.

    Corridor and arms vary in length, everything around them in looks: a cell that cannot be entered is a wall or an
    obstacle at random. Neither door can be seen from the junction, and the sign cannot be seen beyond two steps.
    """

    def draw(low: int, high: int) -> Tensor:
        return torch.randint(low, high + 1, (count,), generator=generator)

    looks = torch.rand(count, SIDE, SIDE, generator=generator) < 0.3
    cells = torch.where(looks, int(Cell.OBSTACLE), int(Cell.WALL)).to(torch.int8)
    column, junction, length = draw(4, 6), draw(1, 3), draw(4, 7)
    arm, goes_left = draw(3, 4), draw(0, 1).bool()
    start = junction + length
    across, down = torch.arange(SIDE)[None, None, :], torch.arange(SIDE)[None, :, None]
    column_, junction_, start_, arm_ = (value[:, None, None] for value in (column, junction, start, arm))
    corridor = (across == column_) & (down >= junction_) & (down <= start_)
    arms = (down == junction_) & ((across - column_).abs() <= arm_)
    cells[corridor | arms] = int(Cell.FLOOR)
    rows, side = torch.arange(count), torch.where(goes_left, -1, 1)
    cells[rows, junction, column + side * arm] = int(Cell.GOAL)
    cells[rows, junction, column - side * arm] = int(Cell.TRAP)
    sign = torch.where(goes_left, int(Cell.CUE_LEFT), int(Cell.CUE_RIGHT)).to(torch.int8)
    cells[rows, start, column + side] = sign
    return Maps(cells, torch.stack([start, column], dim=1), compass=False)


def obstacle_fields(count: int, generator: torch.Generator, share: float) -> Maps:
    """A walled field with obstacles on a share of its cells, start and goal anywhere with a way between them.

    The way is at least 4 steps long. The goal's direction shows at the edge of the view, its distance does not, and
    neither does what stands between: dead ends must be noticed and left again.
    """
    found: list[Maps] = []
    missing, tries = count, 0
    while missing > 0:
        tries += 1
        if tries > 200:
            raise InputError(f"obstacle_share {share} leaves hardly any map with a way from start to goal; lower it")
        candidates = _fields(max(missing * 2, 64), generator, share)
        steps = distances(candidates)
        rows = torch.arange(len(candidates))
        way = steps[rows, candidates.start[:, 0], candidates.start[:, 1]]
        good = ((way >= 4) & (way < UNREACHABLE)).nonzero().squeeze(1)[:missing]
        found.append(candidates[good])
        missing -= len(good)
    cells, start = torch.cat([maps.cells for maps in found]), torch.cat([maps.start for maps in found])
    return Maps(cells, start, compass=True)


def _fields(count: int, generator: torch.Generator, share: float) -> Maps:
    inner = SIDE - 2
    cells = torch.full((count, SIDE, SIDE), int(Cell.WALL), dtype=torch.int8)
    blocked = torch.rand(count, inner, inner, generator=generator) < share
    cells[:, 1:-1, 1:-1] = torch.where(blocked, int(Cell.OBSTACLE), int(Cell.FLOOR)).to(torch.int8)
    order = torch.rand(count, inner * inner, generator=generator).argsort(1)
    rows = torch.arange(count)
    start, goal = (torch.stack([place // inner, place % inner], dim=1) + 1 for place in (order[:, 0], order[:, 1]))
    cells[rows, start[:, 0], start[:, 1]] = int(Cell.FLOOR)
    cells[rows, goal[:, 0], goal[:, 1]] = int(Cell.GOAL)
    return Maps(cells, start, compass=True)


def with_aliens(maps: Maps, generator: torch.Generator, brightness: float) -> Maps:
    """The same maps with an alien on the expert's way, at a random place beyond the first view and before the goal.

    Maps whose way is too short for that are left out.
    """
    steps, rows = distances(maps), torch.arange(len(maps))
    length = steps[rows, maps.start[:, 0], maps.start[:, 1]]
    roomy = (length > NEAREST_ALIEN).nonzero().squeeze(1)
    maps, steps, length = maps[roomy], steps[roomy], length[roomy]
    span = length - NEAREST_ALIEN
    place = NEAREST_ALIEN + (torch.rand(len(maps), generator=generator) * span).long().clamp_max(span - 1)
    position, cells = maps.start, maps.cells.clone()
    for step in range(1, int(length.max())):
        position = move(maps, position, best_actions(maps, steps, position)).position
        here = (place == step).nonzero().squeeze(1)
        cells[here, position[here, 0], position[here, 1]] = int(Cell.ALIEN)
    return Maps(cells, maps.start, maps.compass, brightness)


def demonstrations(maps: Maps) -> tuple[Tensor, Tensor]:
    """What the expert saw and did on each map: frames [N, T, C, 5, 5] and actions [N, T], NaN and -1 after the goal."""
    steps, rows = distances(maps), torch.arange(len(maps))
    length = steps[rows, maps.start[:, 0], maps.start[:, 1]]
    position, frames, actions = maps.start, [], []
    for step in range(int(length.max())):
        action, under_way = best_actions(maps, steps, position), step < length
        frames.append(look(maps, position).masked_fill(~under_way.view(-1, 1, 1, 1), math.nan))
        actions.append(torch.where(under_way, action, -1))
        position = torch.where(under_way.unsqueeze(1), move(maps, position, action).position, position)
    return torch.stack(frames, dim=1), torch.stack(actions, dim=1)
