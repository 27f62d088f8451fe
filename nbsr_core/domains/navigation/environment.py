"""The grid world as a gymnasium environment: `gymnasium.make("nbsr/TMaze-v0")`, `"nbsr/Obstacles-v0"`.

The same rules that evaluation runs on a thousand maps at once, for one map, so that anybody's agent can walk it.
Importing `nbsr_core.domains.navigation` registers both where gymnasium is installed; studies do without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nbsr_core._extras import extra
from nbsr_core.domains.navigation.drawing import map_pixels
from nbsr_core.domains.navigation.expert import best_actions, distances
from nbsr_core.domains.navigation.maps import obstacle_fields, t_mazes, with_aliens
from nbsr_core.domains.navigation.world import ACTIONS, CHANNELS, VIEW, Maps, look, move
from nbsr_core.errors import InputError

with extra("navigation"):
    import gymnasium

STEP_LIMIT = 60
GOAL_REWARD, STEP_REWARD, BUMP_REWARD, FAILURE_REWARD = 1.0, -0.01, -0.1, -1.0

Frame = NDArray[np.float32]
Action = np.int64 | int


class GridWorld(gymnasium.Env[Frame, Action]):
    """Find the goal through a 5x5 view.

    Observation: [6, 5, 5], the channels of `world.CHANNELS`. Actions: up, down, left, right. An episode ends at the
    goal, behind the wrong door, in an alien, or (truncated) after 60 steps. `info["expert"]` is the expert's move.

    Args:
        task: `tmaze` or `obstacles`.
        obstacle_share: of the cells of an obstacle field.
        alien: put an alien on the expert's way.
        render_mode: `rgb_array` draws the map.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (as gymnasium declares it)
        "render_modes": ["rgb_array"],
        "render_fps": 5,
    }

    def __init__(
        self,
        task: str = "tmaze",
        *,
        obstacle_share: float = 0.25,
        alien: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if task not in ("tmaze", "obstacles"):
            raise InputError(f"task must be one of 'tmaze', 'obstacles', got {task!r}")
        self.task, self.obstacle_share, self.alien, self.render_mode = task, obstacle_share, alien, render_mode
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (len(CHANNELS), VIEW, VIEW), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self.maps: Maps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """A new map; `options={"maps": Maps}` with one map walks that one."""
        super().reset(seed=seed)
        given = (options or {}).get("maps")
        self.maps = self._fresh_map() if given is None else given
        if len(self.maps) != 1:
            raise InputError(f"an environment walks one map, got {len(self.maps)}")
        self.position, self.steps, self.bumps = self.maps.start, 0, 0
        self.steps_to_goal = distances(self.maps)
        return self._observation(), self._info()

    def _fresh_map(self) -> Maps:
        generator = torch.Generator().manual_seed(int(self.np_random.integers(2**31)))
        while True:
            maps = t_mazes(1, generator) if self.task == "tmaze" else obstacle_fields(1, generator, self.obstacle_share)
            maps = with_aliens(maps, generator, 1.0) if self.alien else maps
            if len(maps):  # a way may be too short to put an alien on
                return maps

    def step(self, action: Action) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        moved = move(self.maps, self.position, torch.tensor([int(action)]))
        self.position = moved.position
        self.steps += 1
        self.bumps += int(moved.bumped)
        won, failed = bool(moved.on_goal), bool(moved.in_trap) or bool(moved.in_alien)
        reward = STEP_REWARD + BUMP_REWARD * bool(moved.bumped) + GOAL_REWARD * won + FAILURE_REWARD * failed
        truncated = self.steps >= STEP_LIMIT and not (won or failed)
        return self._observation(), reward, won or failed, truncated, self._info()

    def render(self) -> NDArray[np.uint8]:
        """The map from above with the agent on it."""
        row, column = self.position[0].tolist()
        return map_pixels(self.maps.cells[0], [(row, column)])

    def _observation(self) -> Frame:
        view: Frame = look(self.maps, self.position)[0].numpy().astype(np.float32)
        return view

    def _info(self) -> dict[str, Any]:
        expert = int(best_actions(self.maps, self.steps_to_goal, self.position))
        return {"expert": expert, "collisions": self.bumps, "steps": self.steps}


def register() -> None:
    """Make both environments known to `gymnasium.make`."""
    for name, task in (("nbsr/TMaze-v0", "tmaze"), ("nbsr/Obstacles-v0", "obstacles")):
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"{__name__}:GridWorld", kwargs={"task": task})
