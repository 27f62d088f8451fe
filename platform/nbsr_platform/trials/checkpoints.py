"""Trainings that take long leave checkpoints under their weights key; the next one goes on from the newest whole one.

That may be after a lost worker, a lost driver or Ctrl-C. A checkpoint is a folder: the trainer's state, the epochs that
led to it, and whatever else a learner keeps beside them. The driver removes a trial's checkpoints when it has ended.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

from nbsr_core.errors import InputError
from nbsr_core.learning import EpochRecord
from nbsr_core.learning.checkpoint import load_checkpoint
from nbsr_core.learning.learners import Execution
from nbsr_platform.trials.results import TrialResult

logger = logging.getLogger("nbsr.checkpoints")

CHECKPOINT, EPOCHS = "trainer.pt", "epochs.json"
# A trial on one worker leaves a checkpoint after so much work: small ones leave none, and lose little.
SECONDS_BETWEEN = 60.0
KEPT = 2  # one more than needed, for the case that the newest is damaged

Events = Iterator[EpochRecord | TrialResult]


def run_alone(run: Callable[[Execution], Events], device: str, kept: Path, seconds: float = SECONDS_BETWEEN) -> Events:
    """A trial on one worker, from its newest checkpoint in `kept` if there is one: all epochs, at last the result."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / CHECKPOINT
        records = restore(kept, path.parent)
        yield from records
        written = _written_at(path)
        for event in run(Execution(device=device, checkpoint=path, checkpoint_seconds=seconds)):
            if isinstance(event, EpochRecord):
                records.append(event)
                if _written_at(path) != written:
                    written = _written_at(path)
                    _keep(path.parent, records, kept)
            yield event


def restore(kept: Path, folder: Path) -> list[EpochRecord]:
    """Copy the newest whole checkpoint of a trial into a folder; returns the epochs that led to it."""
    saved = last_good_checkpoint(kept)
    if saved is None:
        return []
    shutil.copytree(saved.parent, folder, dirs_exist_ok=True)
    return _records_of(saved)


def write_records(folder: Path, records: Sequence[EpochRecord]) -> None:
    """Put the epochs beside the checkpoint to which they led."""
    (folder / EPOCHS).write_text(json.dumps([asdict(record) for record in records]))


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


def _keep(folder: Path, records: Sequence[EpochRecord], kept: Path) -> None:
    """Copy a checkpoint to where it outlives this process, whole or not at all. Without it training goes on as well."""
    place = kept / "alone"
    try:
        write_records(folder, records)
        unique = uuid4().hex
        copy = shutil.copytree(folder, place / f".{unique}")
        copy.rename(place / f"checkpoint_{len(records):06d}_{unique}")
        for old in sorted(place.glob("checkpoint_*"))[:-KEPT]:
            shutil.rmtree(old)
    except OSError as error:
        logger.warning("no checkpoint after epoch %d: %s", len(records), error)


def _written_at(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None
