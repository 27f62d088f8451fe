"""The folder in which finished trials are kept: whole or not at all, checked whenever they are read.

Each trial has a folder under its key with its result, what its model learned, and a manifest: the key, and a checksum
of each file. What does not fit its manifest is as good as not there: the next run makes it again. Many drivers may
share one store.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nbsr_core.errors import InputError, NbsrError
from nbsr_core.training.checkpoint import load_checkpoint
from nbsr_platform import leftovers
from nbsr_platform.results import TrialResult

RESULT, MODEL, MANIFEST = "result.json", "model.pt", "manifest.json"
# Bytes that a store must have room for to be called writable: a small result has as many.
PROBE = 100_000
AGAIN = "run its study again to make it anew"


class StoreError(NbsrError, RuntimeError):
    """The disk under the store is full, read-only or gone."""

    def __init__(self, place: Path, error: OSError) -> None:
        super().__init__(
            f"cannot write to the store {place}: {error.strerror}; what is done is kept, and the same command goes on "
            "when there is room"
        )


class DamagedError(InputError):
    """A trial's folder is not what was saved there."""


@dataclass(frozen=True)
class ResultStore:
    """Finished trials by key. A folder appears under its key only when all its files are on disk."""

    root: Path

    def folder(self, key: str) -> Path:
        return self.root / key

    def keys(self) -> list[str]:
        """Keys of all trials that were saved here, whole or not."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if path.name[0] != "." and path.is_dir())

    def has(self, key: str) -> bool:
        """Whether the trial is here, and every file of it is as it was saved."""
        return self.folder(key).is_dir() and self.damage(key) is None

    def damage(self, key: str) -> str | None:
        """What is wrong with a trial that was saved; None if nothing is."""
        try:
            for name in self._manifest(key):
                self._verify(key, name)
            self.load(key)
        except DamagedError as error:
            return str(error)
        return None

    def load(self, key: str) -> TrialResult:
        content = self._verify(key, RESULT)
        path = self.folder(key) / RESULT
        try:
            result = TrialResult.from_json(content.decode())
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path}: not a readable trial result ({error}); {AGAIN}") from None
        if result.key != key:
            raise DamagedError(f"{path} is the result of another trial, {result.key!r}; {AGAIN}")
        return result

    def load_state(self, key: str) -> dict[str, Any] | None:
        """What the trial's model learned; None if it was saved without. Nothing in it can run code."""
        if MODEL not in self._manifest(key):
            return None
        self._verify(key, MODEL)
        return load_checkpoint(self.folder(key) / MODEL)

    def save(self, result: TrialResult) -> None:
        """Keep a finished trial. Written beside its place, then renamed: a crash leaves nothing half-done."""
        try:
            self._save(result)
        except OSError as error:
            raise StoreError(self.root, error) from None
        except RuntimeError:
            self.check_writable()  # torch has no better word for a full disk
            raise

    def check_writable(self) -> None:
        """Raise where nothing more can be kept."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as file:
                file.write(bytes(PROBE))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(self.root, error) from None

    def sweep(self) -> None:
        """Remove what killed processes left half-written; what a living one is writing stays."""
        if self.root.is_dir():
            leftovers.sweep(self.root)

    def _save(self, result: TrialResult) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        with leftovers.temporary_place(self.root, result.key) as beside:
            beside.mkdir()
            (beside / RESULT).write_text(result.to_json())
            if result.state is not None:
                torch.save(result.state, beside / MODEL)
            seal(beside, result.key)
            for path in beside.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            self._publish(beside, result.key)

    def _publish(self, beside: Path, key: str) -> None:
        """Give a whole folder its name. Another driver may do the same with an equal one at the same time."""
        while not self.has(key):
            with leftovers.temporary_place(self.root, f"damaged-{key}") as aside:
                with suppress(FileNotFoundError):
                    self.folder(key).rename(aside)
                try:
                    beside.rename(self.folder(key))
                except OSError:
                    if not self.folder(key).exists():
                        raise  # otherwise somebody else was quicker: look at what is there now

    def _manifest(self, key: str) -> dict[str, str]:
        """Checksums of a trial's files by name."""
        path = self.folder(key) / MANIFEST
        try:
            plain = json.loads(path.read_bytes())
            found = {str(name): str(checksum) for name, checksum in plain["files"].items()}
            owner = plain["key"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise DamagedError(f"{path}: no readable list of checksums; {AGAIN}") from None
        if owner != key or RESULT not in found or found.keys() - {RESULT, MODEL}:
            raise DamagedError(f"{path} does not belong to trial {key}; {AGAIN}")
        return found

    def _verify(self, key: str, name: str) -> bytes:
        """The content of a trial's file, if it is what was saved."""
        path = self.folder(key) / name
        expected = self._manifest(key).get(name)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DamagedError(f"{path}: {error.strerror}; {AGAIN}") from None
        if _checksum(content) != expected:
            raise DamagedError(f"{path} is not what was saved: its checksum differs; {AGAIN}")
        return content


def seal(folder: Path, key: str) -> None:
    """Write the manifest of a trial's folder as its files are now."""
    files = [folder / name for name in (RESULT, MODEL) if (folder / name).exists()]
    checksums = {path.name: _checksum(path.read_bytes()) for path in files}
    (folder / MANIFEST).write_text(json.dumps({"key": key, "files": checksums}))


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
