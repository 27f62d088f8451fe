"""A worker as Ray Tune wants it. Tune places and restarts workers; they stay warm and run one trial after another."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ray import tune

from nbsr_core.learning.devices import best_device
from nbsr_platform.execution.on_ray.placement import Team
from nbsr_platform.execution.on_ray.shelf import Shelf, judged_by_one
from nbsr_platform.execution.worker import TrialWork
from nbsr_platform.trials.checkpoints import Checkpoints
from nbsr_platform.trials.trial import Trial


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """One trial after another in the same process (`reuse_actors`)."""

    def setup(self, config: dict[str, Any]) -> None:
        self.begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.begin(new_config)
        return True

    def begin(self, config: dict[str, Any]) -> None:
        """Prepare the next trial."""
        trial: Trial = config["trial"]
        team: Team = config["team"]
        # Ray counts GPUs that torch may not be able to use: then a trial runs on the CPU it was given as well.
        device = "cpu" if config["device"] == "cpu" else str(best_device())
        shelf: Shelf | None = config["shelf"]
        threads, kept = int(team.cpus_per_worker), Checkpoints.of(Path(config["storage"]), trial)
        if team.workers > 1:
            from nbsr_platform.execution.on_ray.distributed import (
                run_distributed,  # Ray Train, which one worker alone does not need
            )

            train = partial(run_distributed, trial, team, kept, config["collector"])
            progress = train() if shelf is None else judged_by_one(trial, team, shelf, train)
            self.work = TrialWork(trial, device, threads, progress, team.workers)
        elif shelf is None:
            self.work = TrialWork.alone(trial, device, threads, kept)
        else:
            self.work = TrialWork.alone(trial, device, threads, kept, partial(shelf.fetch, trial.weights_key))

    def step(self) -> dict[str, Any]:
        return self.work.step()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: trials leave checkpoints themselves (`trials.checkpoints`), and only finished ones count."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """See `save_checkpoint`."""
