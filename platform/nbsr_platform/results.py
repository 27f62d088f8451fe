"""What a trial left behind, and the folder in which it is kept: written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from nbsr_core.errors import InputError, NbsrError
from nbsr_core.training.checkpoint import load_checkpoint

Status = Literal["finished", "pruned", "failed"]

# Bytes that a store must have room for to be called writable: a small result has as many.
PROBE = 100_000

# In JSON, {NAMED: "inf"} stands for the number of that name.
NAMED = "$float"


class StoreError(NbsrError, RuntimeError):
    """The disk under the store is full, read-only or gone."""

    def __init__(self, place: Path, error: OSError) -> None:
        super().__init__(
            f"cannot write to the store {place}: {error.strerror}; what is done is kept, and the same command goes on "
            "when there is room"
        )


@dataclass
class TrialResult:
    """The outcome of a trial, whoever ran it.

    Attributes:
        epochs: one flat dictionary of figures an epoch.
        metrics: final figures by name (`test/accuracy`, ...).
        tables, audits, warnings: see `nbsr_core.evaluation.Evaluation`.
        data: source, whether synthetic, fingerprint, class and feature names.
        trial: the trial itself as plain values, so that its model can be rebuilt.
        error: last line and full text where it failed.
        state: what was learned, for `ResultStore` to keep beside; not part of the JSON.
    """

    key: str
    status: Status
    seconds: float
    epochs: list[dict[str, float]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    audits: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    trial: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    state: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Short: Ray Tune makes a text of every report, and all tables and tensors would be in it."""
        return f"TrialResult({self.key!r}, {self.status!r})"

    @property
    def last_words(self) -> str:
        """The line of the error that says most."""
        lines = (self.error or "").strip().splitlines()
        return lines[-1] if lines else "no error text"

    def to_json(self) -> str:
        plain = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("state", "trial")
        }
        trial = _with_nonfinite_named(self.trial)
        try:
            return json.dumps({**plain, "trial": trial}, allow_nan=False)
        except (TypeError, ValueError):  # seldom: so the thousands of figures are looked at one by one only then
            return json.dumps({**_without_nonfinite(plain), "trial": trial}, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> TrialResult:
        plain = json.loads(text)
        return TrialResult(**{**plain, "trial": _with_names_resolved(plain.get("trial", {}))})


def _without_nonfinite(value: Any) -> Any:
    """JSON knows no NaN or infinity: figures that are none become None."""
    return _each_float(value, lambda number: number if math.isfinite(number) else None)


def _with_nonfinite_named(value: Any) -> Any:
    """An option may well be infinite, and the trial's key depends on it: it is kept by its name."""
    return _each_float(value, lambda number: number if math.isfinite(number) else {NAMED: str(number)})


def _with_names_resolved(value: Any) -> Any:
    """What `_with_nonfinite_named` was given."""
    if isinstance(value, dict):
        if value.keys() == {NAMED}:
            return float(value[NAMED])
        return {k: _with_names_resolved(v) for k, v in value.items()}
    return [_with_names_resolved(v) for v in value] if isinstance(value, list) else value


def _each_float(value: Any, change: Callable[[float], Any]) -> Any:
    if isinstance(value, float):
        return change(value)
    if isinstance(value, Mapping):
        return {k: _each_float(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_each_float(v, change) for v in value]
    return value


@dataclass(frozen=True)
class ResultStore:
    """Finished trials by key. A folder appears under its key only when all its files are on disk."""

    root: Path

    def folder(self, key: str) -> Path:
        return self.root / key

    def has(self, key: str) -> bool:
        return (self.folder(key) / "result.json").exists()

    def load(self, key: str) -> TrialResult:
        path = self.folder(key) / "result.json"
        try:
            return TrialResult.from_json(path.read_text())
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{path}: not a readable trial result ({error}); delete its folder to run it again"
            ) from None

    def load_state(self, key: str) -> dict[str, Any]:
        """What the trial's model learned; tensors and plain values only, nothing in it can run code."""
        path = self.folder(key) / "model.pt"
        path.stat()  # a trial without weights is not a damaged one: FileNotFoundError
        try:
            return load_checkpoint(path)
        except InputError as error:
            raise InputError(f"{error}; delete its folder to run the trial again") from None

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

    def _save(self, result: TrialResult) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=self.root, prefix=f".{result.key}-"))
        try:
            (beside / "result.json").write_text(result.to_json())
            if result.state is not None:
                torch.save(result.state, beside / "model.pt")
            for path in beside.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            if self.has(result.key):
                return
            shutil.rmtree(self.folder(result.key), ignore_errors=True)
            os.replace(beside, self.folder(result.key))
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what a killed process left half-written."""
        if self.root.exists():
            for path in self.root.glob(".*-*"):
                shutil.rmtree(path, ignore_errors=True)
