"""What was learned before, on its way from the driver's disk to a worker that judges it, on whatever node that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nbsr_core.learning.devices import best_device
from nbsr_platform.execution.on_ray.placement import Team
from nbsr_platform.execution.worker import judge_again
from nbsr_platform.trials.checkpoints import Events
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial
from nbsr_platform.trials.weights import Learned, WeightsStore


@dataclass(frozen=True)
class Shelf:
    """Where the driver keeps what was learned: a folder of its own node, which others need not see."""

    root: Path
    node: str

    @staticmethod
    def of_driver(weights: WeightsStore) -> Shelf:
        """Called by the driver."""
        return Shelf(weights.root, ray.get_runtime_context().get_node_id())

    def fetch(self, key: str) -> Learned | None:
        """What was learned under a weights key; called by a worker. None where it is damaged: it is trained then.

        A task on the driver's node reads it: nothing waits in Ray's memory until a worker has time for it.
        """
        if ray.get_runtime_context().get_node_id() == self.node:
            return WeightsStore(self.root).find(key)
        there = NodeAffinitySchedulingStrategy(self.node, soft=False)
        found: Learned | None = ray.get(_read.options(scheduling_strategy=there).remote(self.root, key))
        return found


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def _read(root: Path, key: str) -> Learned | None:
    return WeightsStore(root).find(key)


def judged_by_one(trial: Trial, team: Team, shelf: Shelf, train: Callable[[], Events]) -> Events:
    """A trial that a team would train, judged again by one worker; trained where what was learned is damaged."""
    asked = _judge.options(
        num_cpus=team.cpus_per_worker,
        num_gpus=team.gpus_per_worker,
        max_retries=team.retries,
        scheduling_strategy="DEFAULT",  # not in the place of Tune's trial, which only starts the team's workers
    )
    result: TrialResult | None = ray.get(asked.remote(trial, team, shelf))
    if result is None:
        yield from train()
    else:
        yield result


@ray.remote  # type: ignore[untyped-decorator]
def _judge(trial: Trial, team: Team, shelf: Shelf) -> TrialResult | None:
    learned = shelf.fetch(trial.weights_key)
    if learned is None:
        return None
    torch.set_num_threads(max(1, int(team.cpus_per_worker)))
    device = str(best_device()) if team.gpus_per_worker else "cpu"
    return next(judge_again(trial, device, learned, team.workers))
