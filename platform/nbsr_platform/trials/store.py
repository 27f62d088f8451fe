"""The results of finished trials, each under its key, and beside them what their models learned.

A result refers to its weights: many may have the same, which were trained once and judged in many ways. Weights are
saved first, so that a result never stands without; where one of the two is damaged, the trial is not there, and the
next run makes again what is missing of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.sealed import AGAIN, DamagedError, SealedFolders
from nbsr_platform.trials.weights import MODEL, Learned, WeightsStore

RESULT = "result.json"
# What a result says of its weights becomes part of a path.
WEIGHTS_KEY = re.compile(r"\w{1,64}")


class ResultStore(SealedFolders):
    """Finished trials by key."""

    required = frozenset({RESULT})
    optional = frozenset({MODEL})  # earlier versions kept the model beside each result

    @property
    def weights(self) -> WeightsStore:
        """What the trials' models learned."""
        return WeightsStore(self.root.with_name("weights"))

    def damage(self, key: str) -> str | None:
        """What is wrong with a trial that was saved, or with its weights; None if nothing is."""
        found = super().damage(key)
        if found is None and (weights := self.load(key).weights):
            found = self.weights.damage(weights)
        return found

    def check(self, key: str) -> None:
        super().check(key)
        self.load(key)

    def load(self, key: str) -> TrialResult:
        content = self.read(key, RESULT)
        path = self.folder(key) / RESULT
        try:
            result = TrialResult.from_json(content.decode())
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path}: not a readable trial result ({error}); {AGAIN}") from None
        if result.key != key:
            raise DamagedError(f"{path} is the result of another trial, {result.key!r}; {AGAIN}")
        if result.weights and not WEIGHTS_KEY.fullmatch(result.weights):
            raise DamagedError(f"{path} names weights {result.weights!r}, which is no key; {AGAIN}")
        return result

    def load_state(self, key: str) -> dict[str, Any] | None:
        """What the trial's model learned; None if it was saved without. Nothing in it can run code."""
        if weights := self.load(key).weights:
            return self.weights.load(weights).state
        if MODEL not in self.names(key):
            return None
        self.read(key, MODEL)
        from nbsr_core.learning.checkpoint import load_checkpoint

        return load_checkpoint(self.folder(key) / MODEL)

    def save(self, result: TrialResult) -> None:
        """Keep a finished trial: first what its model learned, where that is new, then its result."""

        def write(folder: Path) -> None:
            (folder / RESULT).write_text(result.to_json())

        self.save_weights(result)
        self.keep(result.key, write)

    def save_weights(self, result: TrialResult) -> None:
        """Keep what a trial's model learned, where it comes with its result."""
        if result.state is not None:
            if not result.weights:
                raise ValueError(f"the result of trial {result.key} has weights and no key for them")
            self.weights.save(Learned(result.weights, result.epochs, result.environment, result.state))

    def sweep(self) -> None:
        super().sweep()
        self.weights.sweep()
