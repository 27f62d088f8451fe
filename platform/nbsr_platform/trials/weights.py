"""What trainings left behind, each under its weights key: for all trials that differ only in how they are judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbsr_platform.base import plain_json
from nbsr_platform.base.shape import check_shape
from nbsr_platform.trials.results import as_floats
from nbsr_platform.trials.sealed import AGAIN, DamagedError, SealedFolders

TRAINING, MODEL = "training.json", "model.pt"


@dataclass
class Learned:
    """What a training left behind.

    Attributes:
        key: the weights key.
        epochs: one flat dictionary of figures for each epoch.
        environment: where it was trained.
        state: what the model learned, see `Learner.state`; kept in a file of its own.
    """

    key: str
    epochs: list[dict[str, float]]
    environment: dict[str, str]
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of all epochs."""
        return sum(epoch.get("seconds") or 0.0 for epoch in self.epochs)


class WeightsStore(SealedFolders):
    """What was learned, by weights key."""

    required = frozenset({TRAINING, MODEL})

    def save(self, learned: Learned) -> None:
        """Keep it, unless it is there: equal keys, equal weights."""
        if not self.has(learned.key):
            self.keep(learned.key, lambda folder: _write(folder, learned))

    def check(self, key: str) -> None:
        super().check(key)
        self._training(key)

    def load(self, key: str) -> Learned:
        """Nothing in it can run code."""
        from nbsr_core.learning.checkpoint import load_checkpoint

        learned = self._training(key)
        self.read(key, MODEL)
        learned.state = load_checkpoint(self.folder(key) / MODEL)
        return learned

    def find(self, key: str) -> Learned | None:
        """What was learned under a key; None where there is no such, or it is damaged: it is learned again then."""
        try:
            return self.load(key) if self.folder(key).is_dir() else None
        except DamagedError:
            return None

    def _training(self, key: str) -> Learned:
        """Without the state."""
        path = self.folder(key) / TRAINING
        try:
            learned = _from_json(self.read(key, TRAINING).decode())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path}: not a readable training ({error}); {AGAIN}") from None
        if learned.key != key:
            raise DamagedError(f"{path} is the training of another trial, {learned.key!r}; {AGAIN}")
        return learned


def _write(folder: Path, learned: Learned) -> None:
    import torch  # only to write and read what models learned

    plain = {"key": learned.key, "epochs": learned.epochs, "environment": learned.environment}
    (folder / TRAINING).write_text(plain_json.dumps(plain))
    torch.save(learned.state, folder / MODEL)


def _from_json(text: str) -> Learned:
    plain: Mapping[str, Any] = json.loads(text)
    check_shape(Learned, plain)
    return Learned(plain["key"], [as_floats(epoch) for epoch in plain["epochs"]], plain["environment"])
