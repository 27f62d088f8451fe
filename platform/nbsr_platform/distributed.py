"""One trial on several workers: Ray Train (DDP; gloo on CPUs, nccl on GPUs), a checkpoint an epoch, restart on failure.

Worth its start (tens of seconds) for trainings of minutes. Workers share every batch that one worker alone would have
seen, so the result is that of one worker up to the order of sums.

Checkpoints lie under the trial's key until it ends, and whoever trains it next goes on from the newest whole one, be it
after a lost worker or after a lost driver. Ray's own list of checkpoints is not asked: it runs one behind, and is of no
use where the driver died while writing it.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

from nbsr_core.errors import InputError, NbsrError
from nbsr_core.learners import Execution
from nbsr_core.training import EpochRecord
from nbsr_core.training.checkpoint import load_checkpoint
from nbsr_platform.placement import Team
from nbsr_platform.results import TrialResult
from nbsr_platform.trial import Trial

logger = logging.getLogger("nbsr.distributed")

CHECKPOINT, EPOCHS = "trainer.pt", "epochs.json"
POLL_SECONDS = 0.5


class TrainingFailedError(NbsrError, RuntimeError):
    """The workers of one trial were lost more often than allowed."""


def run_distributed(trial: Trial, team: Team, storage: Path, collector: Any) -> Iterator[EpochRecord | TrialResult]:
    """The trial on a team of workers: records as they come in, at last the result."""
    kept = storage / trial.key
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
            storage_path=str(kept),
            failure_config=train.FailureConfig(max_failures=team.retries),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
        ),
    )
    outcome: dict[str, Any] = {}

    def fit() -> None:
        try:
            outcome["result"] = trainer.fit()
        except Exception as error:
            outcome["error"] = error

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
    shutil.rmtree(kept, ignore_errors=True)
    if "error" in outcome:
        raise TrainingFailedError(f"training on {team.workers} workers failed: {outcome['error']}")
    yield outcome["result"].return_value


def _worker_loop(config: dict[str, Any]) -> TrialResult | None:
    """What each worker of the team runs."""
    from nbsr_platform.worker import run_trial

    trial, context = config["trial"], train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(max(1, int(config["threads"])))
    device = str(train.torch.get_device())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CHECKPOINT
        records: list[EpochRecord] = []
        if (saved := last_good_checkpoint(config["kept"])) is not None:
            shutil.copy(saved, path)
            records = _records_of(saved)
            if rank == 0:  # another driver than the one that saw these epochs may be waiting now
                ray.get([config["collector"].put_epoch.remote(trial.key, record) for record in records])
        execution = Execution(device=device, checkpoint=path, shard=(rank, world), wrap=_wrap)
        for event in run_trial(trial, device, execution):
            if isinstance(event, TrialResult):
                return event
            if rank == 0:
                records.append(event)
                path.with_name(EPOCHS).write_text(json.dumps([asdict(record) for record in records]))
                ray.get(config["collector"].put_epoch.remote(trial.key, event))
            checkpoint = train.Checkpoint.from_directory(folder) if rank == 0 else None
            train.report({"epoch": event.epoch}, checkpoint=checkpoint)
    return None


def last_good_checkpoint(kept: Path) -> Path | None:
    """The newest checkpoint file of a trial, whoever wrote it, that is whole; None starts from the beginning.

    All workers of a team find the same one: a new one takes all of them.
    """
    for file in sorted(
        kept.glob(f"*/checkpoint_*/{CHECKPOINT}"), key=lambda file: file.stat().st_mtime_ns, reverse=True
    ):
        try:
            load_checkpoint(file)
            _records_of(file)
        except (InputError, OSError, ValueError, TypeError) as error:
            logger.warning("%s; trying the one before", error)
        else:
            return file
    return None


def _records_of(checkpoint: Path) -> list[EpochRecord]:
    """The epochs that led to a checkpoint."""
    return [EpochRecord(**record) for record in json.loads(checkpoint.with_name(EPOCHS).read_text())]


def _wrap(module: nn.Module) -> nn.Module:
    """DDP. A level that no sample of a batch reaches has no gradient there, hence the search for unused parameters."""
    wrapped: nn.Module = train.torch.prepare_model(
        module, move_to_device=False, parallel_strategy_kwargs={"find_unused_parameters": True}
    )
    return wrapped
