"""One trial on several workers: Ray Train (DDP; gloo on CPUs, nccl on GPUs), a checkpoint per epoch, restarts.

Worth its start (tens of seconds) for trainings of minutes. Workers share every batch that one worker alone would have
seen, so the result is that of one worker up to the order of sums.

Checkpoints lie under the trial's weights key (`trials.checkpoints`). Ray's own list of them is not asked: it runs one
behind, and is of no use where the driver died while writing it.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

from nbsr_core.errors import NbsrError
from nbsr_core.learning import EpochRecord
from nbsr_core.learning.learners import Execution
from nbsr_platform.execution.on_ray.compat import raised_by_worker
from nbsr_platform.execution.on_ray.placement import Team
from nbsr_platform.trials.checkpoints import CHECKPOINT, Checkpoints, write_records
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import StaleError, Trial

POLL_SECONDS = 0.5


class TrainingFailedError(NbsrError, RuntimeError):
    """The workers of one trial were lost more often than allowed."""


@ray.remote(num_cpus=0, max_concurrency=4, max_restarts=-1, max_task_retries=-1)
class Collector:
    """Takes the epochs of trials on several workers; lives beside the driver."""

    def __init__(self) -> None:
        self.epochs: dict[str, dict[int, EpochRecord]] = {}

    def put_epoch(self, key: str, record: EpochRecord) -> None:
        """An epoch that is repeated after a restart replaces itself."""
        self.epochs.setdefault(key, {})[record.epoch] = record

    def epochs_after(self, key: str, epoch: int) -> list[EpochRecord]:
        records = self.epochs.get(key, {})
        return [records[number] for number in sorted(records) if number > epoch]

    def forget(self, key: str) -> None:
        """The trial has ended."""
        self.epochs.pop(key, None)


def run_distributed(trial: Trial, team: Team, kept: Checkpoints, collector: Any) -> Iterator[EpochRecord | TrialResult]:
    """The trial on a team of workers: records as they come in, at last the result."""
    trainer = TorchTrainer(
        _worker_loop,
        train_loop_config={
            "trial": trial,
            "collector": collector,
            "threads": team.cpus_per_worker,
            "kept": kept,
        },
        scaling_config=team.scaling,
        torch_config=TorchConfig(backend=team.backend),
        run_config=train.RunConfig(
            name=uuid4().hex,
            storage_path=str(kept.own),
            failure_config=train.FailureConfig(max_failures=team.retries),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
        ),
    )
    fitted: dict[str, Any] = {}

    def fit() -> None:
        try:
            fitted["result"] = trainer.fit()
        except Exception as error:
            fitted["error"] = error

    runner = threading.Thread(target=fit, name=f"train {trial.key}", daemon=True)
    runner.start()
    seen = -1
    while True:
        alive = runner.is_alive()
        for record in ray.get(collector.epochs_after.remote(trial.key, seen)):
            seen = record.epoch
            yield record
        if not alive:
            break
        time.sleep(POLL_SECONDS)
    if "error" in fitted:
        _raise_stale(fitted["error"])
        raise TrainingFailedError(f"training on {team.workers} workers failed: {fitted['error']}")
    yield fitted["result"].return_value


def _raise_stale(error: Exception) -> None:
    """Raise what a worker of the team said of a trial that is not the one that was asked for."""
    for failure in getattr(error, "worker_failures", {}).values():
        said = raised_by_worker(failure)
        if isinstance(said, StaleError):
            raise said


def _worker_loop(config: dict[str, Any]) -> TrialResult | None:
    """What each worker of the team runs."""
    from nbsr_platform.execution.worker import run_trial

    trial, context = config["trial"], train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(max(1, int(config["threads"])))
    device = str(train.torch.get_device())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CHECKPOINT
        records = config["kept"].restore(path.parent)
        if rank == 0:  # another driver than the one that saw these epochs may be waiting now
            ray.get([config["collector"].put_epoch.remote(trial.key, record) for record in records])
        execution = Execution(device=device, checkpoint=path, shard=(rank, world), wrap=_wrap)
        for event in run_trial(trial, device, execution):
            if isinstance(event, TrialResult):
                return event
            if rank == 0:
                records.append(event)
                write_records(path.parent, records)
                ray.get(config["collector"].put_epoch.remote(trial.key, event))
            checkpoint = train.Checkpoint.from_directory(folder) if rank == 0 else None
            train.report({"epoch": event.epoch}, checkpoint=checkpoint)
    return None


def _wrap(module: nn.Module) -> nn.Module:
    """DDP. A level that no sample of a batch reaches has no gradient there, hence the search for unused parameters."""
    wrapped: nn.Module = train.torch.prepare_model(
        module, move_to_device=False, parallel_strategy_kwargs={"find_unused_parameters": True}
    )
    return wrapped
