"""Episodes: a policy really moves, on all maps at once. A step is one look, one decision and one move of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.domains.navigation.expert import best_actions, distances
from nbsr_core.domains.navigation.world import Maps, look, move

STEP_LIMIT = 60


OF_AN_EPISODE = (
    *("success", "reached_goal", "wrong_door", "crashes", "halts", "lost"),
    *("collisions", "steps"),
)


@dataclass(frozen=True, eq=False)
class Decision:
    """What a policy does next; `depth` is 0 for policies that do not walk."""

    action: Int[Tensor, " N"]
    halted: Bool[Tensor, " N"]
    depth: Int[Tensor, " N"]


@runtime_checkable
class Policy(Protocol):
    """Decides step by step; `state` is what it remembers of each episode, None before the first step.

    `max_vacuity` is the vacuity, or the doubt of a policy that knows none, above which it halts; None never does.
    """

    def decide(
        self, frames: Float[Tensor, "N C view view"], state: Any, eta: float | None, max_vacuity: float | None
    ) -> tuple[Decision, Any]: ...


@dataclass(frozen=True, eq=False)
class Episodes:
    """What happened on N maps; exactly one of the four ends, or none where the steps ran out.

    Attributes:
        frames: all that was seen, [N, T, C, 5, 5]; NaN after the end.
        actions: all that was done, -1 after the end and where the agent halted.
        expert: what the expert would have done in the same place, -1 after the end.
        position: where the agent stood before each step and after the last, [N, T+1, 2].
        depth: of the walk behind each decision, 0 where there was none.
        bumps: collisions with walls and obstacles.
        steps: decisions made.
    """

    frames: Float[Tensor, "N T C view view"]
    actions: Int[Tensor, "N T"]
    expert: Int[Tensor, "N T"]
    position: Int[Tensor, "N positions 2"]
    depth: Int[Tensor, "N T"]
    on_goal: Bool[Tensor, " N"]
    in_trap: Bool[Tensor, " N"]
    in_alien: Bool[Tensor, " N"]
    halted: Bool[Tensor, " N"]
    bumps: Int[Tensor, " N"]
    steps: Int[Tensor, " N"]

    @property
    def success(self) -> Bool[Tensor, " N"]:
        """At the goal without a single collision (the paper: reaching the goal without crashing)."""
        return self.on_goal & (self.bumps == 0)

    def figures(self) -> dict[str, float]:
        """Shares of the episodes, and steps and collisions an episode."""
        walked = self.depth > 0

        def share(what: Tensor) -> float:
            return float(what.double().mean())

        figures = {
            "success": share(self.success),
            "reached_goal": share(self.on_goal),
            "wrong_door": share(self.in_trap),
            "crashes": share(self.in_alien),
            "halts": share(self.halted),
            "lost": share(~(self.on_goal | self.in_trap | self.in_alien | self.halted)),
            "collisions": share(self.bumps),
            "steps": share(self.steps),
        }
        if bool(walked.any()):
            figures["mean_depth"] = float(self.depth[walked].double().mean())
        return figures


@torch.no_grad()
def run_episodes(
    policy: Policy,
    maps: Maps,
    *,
    eta: float | None = None,
    max_vacuity: float | None = None,
    step_limit: int = STEP_LIMIT,
) -> Episodes:
    """Let the policy walk every map until it is over. Maps whose episode has ended leave the batch."""
    count = len(maps)
    steps_to_goal, position = distances(maps), maps.start.clone()
    ends = {name: torch.zeros(count, dtype=torch.bool) for name in ("on_goal", "in_trap", "in_alien", "halted")}
    bumps, steps = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
    frames, actions, experts, depths, positions = [], [], [], [], [position.clone()]
    here, state = torch.arange(count), None  # the maps still under way, and what is remembered of them
    for _ in range(step_limit):
        under_way = maps[here]
        seen = look(under_way, position[here])
        decision, state = policy.decide(seen, state, eta, max_vacuity)
        wanted = best_actions(under_way, steps_to_goal[here], position[here])
        moved = move(under_way, position[here], decision.action)
        goes = ~decision.halted
        frames.append(_spread(seen, here, count, math.nan))
        actions.append(_spread(decision.action.masked_fill(decision.halted, -1), here, count, -1))
        experts.append(_spread(wanted, here, count, -1))
        depths.append(_spread(decision.depth, here, count, 0))
        position = position.index_copy(0, here[goes], moved.position[goes])
        positions.append(position.clone())
        ends["halted"][here] = decision.halted
        for name in ("on_goal", "in_trap", "in_alien"):
            ends[name][here] = getattr(moved, name) & goes
        bumps[here] += moved.bumped & goes
        steps[here] += 1
        going = ~(ends["on_goal"] | ends["in_trap"] | ends["in_alien"] | ends["halted"])[here]
        here = here[going]
        if not len(here):
            break
        state = None if state is None else state[:, going]
    return Episodes(
        frames=torch.stack(frames, 1),
        actions=torch.stack(actions, 1),
        expert=torch.stack(experts, 1),
        position=torch.stack(positions, 1),
        depth=torch.stack(depths, 1),
        bumps=bumps,
        steps=steps,
        **ends,
    )


def _spread(part: Tensor, rows: Tensor, count: int, rest: float | int) -> Tensor:
    whole = part.new_full((count, *part.shape[1:]), rest)
    whole[rows] = part
    return whole
