"""Trainings leave checkpoints; the next one that begins with the same epochs goes on from the newest whole one.

That may be after a lost worker, a lost driver or Ctrl-C, or because more epochs are asked for than before. A checkpoint
is a folder: the trainer's state, the epochs that led to it, and whatever else a learner keeps beside them. When a trial
has ended, the driver removes its checkpoints but the one after its last epoch, from which more can follow.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from nbsr_core.errors import InputError
from nbsr_core.learning import EpochRecord
from nbsr_core.learning.checkpoint import load_checkpoint
from nbsr_core.learning.learners import Execution
from nbsr_platform.trials.home import FINISHED
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

logger = logging.getLogger("nbsr.checkpoints")

CHECKPOINT, EPOCHS = "trainer.pt", "epochs.json"
# A trial on one worker leaves a checkpoint after so much work: small ones leave their last epoch only, and lose little.
SECONDS_BETWEEN = 60.0
KEPT = 2  # one more than needed, for the case that the newest is damaged

Events = Iterator[EpochRecord | TrialResult]


@dataclass(frozen=True)
class Checkpoints:
    """Where the checkpoints of a trial lie, beside those of trials that differ only in their number of epochs.

    Attributes:
        shared: folder of all trainings that begin with the same epochs.
        own: folder of this trial's checkpoints while it is under way.
        epochs: that the trial asks for.
    """

    shared: Path
    own: Path
    epochs: int

    @staticmethod
    def of(root: Path, trial: Trial) -> Checkpoints:
        """Those of a trial, in the store's folder of checkpoints."""
        shared = root / trial.lineage_key
        return Checkpoints(shared, shared / trial.weights_key, int(trial.training["epochs"]))

    def restore(self, folder: Path) -> list[EpochRecord]:
        """Copy the newest whole checkpoint into a folder; returns the epochs that led to it."""
        saved = self.last_good()
        if saved is None:
            return []
        shutil.copytree(saved.parent, folder, dirs_exist_ok=True)
        return _records_of(saved)

    def last_good(self) -> Path | None:
        """The file of the newest whole checkpoint, whoever wrote it, that is on the trial's way; None begins anew.

        All workers of a team find the same one: a new one takes all of them.
        """
        found = self.shared.glob(f"**/checkpoint_*/{CHECKPOINT}")
        for file in sorted(found, key=lambda file: file.stat().st_mtime_ns, reverse=True):
            try:
                state, records = load_checkpoint(file), _records_of(file)
            except (InputError, OSError, ValueError, TypeError) as error:
                logger.warning("%s; trying the one before", error)
                continue
            if file.is_relative_to(self.own) or (state.get("grows") and len(records) <= self.epochs):
                return file
        return None

    def add(self, folder: Path, records: Sequence[EpochRecord]) -> None:
        """Copy a checkpoint to where it outlives this process, whole or not at all. Training goes on without, too."""
        place = self.own / "alone"
        try:
            write_records(folder, records)
            unique = uuid4().hex
            copy = shutil.copytree(folder, place / f".{unique}")
            copy.rename(place / f"checkpoint_{len(records):06d}_{unique}")
            for old in sorted(place.glob("checkpoint_*"))[:-KEPT]:
                shutil.rmtree(old)
        except OSError as error:
            logger.warning("no checkpoint after epoch %d: %s", len(records), error)

    def end(self, epochs: int | None) -> None:
        """The trial has ended: of its checkpoints, only the one after its last epoch is kept.

        Args:
            epochs: that it was trained for; None keeps nothing of it.
        """
        finished = self.shared / FINISHED
        for file in self.own.glob(f"**/checkpoint_*/{CHECKPOINT}") if epochs else ():
            try:
                if len(_records_of(file)) == epochs:
                    finished.mkdir(exist_ok=True)
                    file.parent.rename(finished / f"checkpoint_{epochs:06d}_{uuid4().hex}")
                    break
            except (OSError, ValueError, TypeError) as error:
                logger.warning("%s: not kept for more epochs: %s", file, error)
        shutil.rmtree(self.own, ignore_errors=True)
        for shorter in sorted(finished.glob("checkpoint_*"))[:-1]:
            shutil.rmtree(shorter, ignore_errors=True)
        if not any(self.shared.glob("*")):
            shutil.rmtree(self.shared, ignore_errors=True)


def run_alone(
    run: Callable[[Execution], Events], device: str, kept: Checkpoints, seconds: float = SECONDS_BETWEEN
) -> Events:
    """A trial on one worker, from its newest checkpoint if there is one: all epochs, at last the result."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / CHECKPOINT
        records = kept.restore(path.parent)
        before = sum(record.seconds for record in records)
        yield from records
        written = _written_at(path)
        for event in run(Execution(device=device, checkpoint=path, checkpoint_seconds=seconds)):
            if isinstance(event, EpochRecord):
                records.append(event)
                if _written_at(path) != written:
                    written = _written_at(path)
                    kept.add(path.parent, records)
            else:
                event.seconds += before
            yield event


def write_records(folder: Path, records: Sequence[EpochRecord]) -> None:
    """Put the epochs beside the checkpoint to which they led."""
    (folder / EPOCHS).write_text(json.dumps([asdict(record) for record in records]))


def _records_of(checkpoint: Path) -> list[EpochRecord]:
    """The epochs that led to a checkpoint."""
    return [EpochRecord(**record) for record in json.loads(checkpoint.with_name(EPOCHS).read_text())]


def _written_at(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None
