"""What a trial left behind, as plain values that become JSON and come back from it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from nbsr_platform.shape import check_shape

# A trial is stale when what its key speaks of (data, code, files) changed before it ran.
Status = Literal["finished", "pruned", "failed", "stale"]

# In JSON, {NAMED: "inf"} stands for the number of that name.
NAMED = "$float"


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
        check_shape(TrialResult, plain)
        if plain.get("seconds") is None:
            raise TypeError("seconds is not what it should be")
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
