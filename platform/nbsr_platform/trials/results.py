"""What a trial left behind, as plain values that become JSON and come back from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from nbsr_core.metrics import names
from nbsr_platform.base import plain_json
from nbsr_platform.base.shape import check_shape

# A trial is stale when what its key speaks of (data, code, files) changed before it ran.
Status = Literal["finished", "pruned", "failed", "stale"]


@dataclass
class TrialResult:
    """The outcome of a trial, whoever ran it.

    Attributes:
        epochs: one flat dictionary of figures an epoch.
        metrics: final figures by name (`test/accuracy`, ...).
        tables, audits, warnings: see `nbsr_core.evaluation.evaluation.Evaluation`.
        data: source, whether synthetic, fingerprint, class and feature names.
        trial: the trial itself as plain values, so that its model can be rebuilt.
        error: last line and full text where it failed.
        weights: key of what was learned, under which `ResultStore` keeps it; empty where nothing was.
        trained_in: environment of the training, where that was another run; the trial was judged again then.
        state: what was learned, where the trial was trained now; not part of the JSON.
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
    weights: str = ""
    trained_in: dict[str, str] = field(default_factory=dict)
    state: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Short: Ray Tune makes a text of every report, and all tables and tensors would be in it."""
        return f"TrialResult({self.key!r}, {self.status!r})"

    @property
    def last_words(self) -> str:
        """The line of the error that says most."""
        lines = (self.error or "").strip().splitlines()
        return lines[-1] if lines else "no error text"

    @property
    def was_judged_again(self) -> bool:
        """Whether its model had been trained before."""
        return bool(self.trained_in)

    @property
    def environments(self) -> list[dict[str, str]]:
        """All in which it was made: that of the training, where it was another one, and that of the judging."""
        return [self.trained_in, self.environment] if self.was_judged_again else [self.environment]

    def max_vacuity(self, evaluation: Mapping[str, Any]) -> float | None:
        """Above it the model abstains, with early exit where it has one: chosen on validation, or as its trial says."""
        chosen = [self.metrics.get(name) for name in (names.fast("max_vacuity"), names.test("max_vacuity"))]
        return next((limit for limit in chosen if limit is not None), evaluation.get("max_vacuity"))

    def to_json(self) -> str:
        plain = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("state", "trial")
        }
        return plain_json.dumps({**plain, "trial": plain_json.with_names(self.trial)})

    @staticmethod
    def from_json(text: str) -> TrialResult:
        plain = json.loads(text)
        check_shape(TrialResult, plain)
        if plain.get("seconds") is None:
            raise TypeError("seconds is not what it should be")
        return TrialResult(
            **{
                **plain,
                "seconds": float(plain["seconds"]),
                "epochs": [as_floats(epoch) for epoch in plain.get("epochs", [])],
                "metrics": as_floats(plain.get("metrics", {})),
                "trial": plain_json.without_names(plain.get("trial", {})),
            }
        )


def as_floats(figures: Mapping[str, float | None]) -> dict[str, Any]:
    """JSON has one kind of number: a figure that came as `2` is the float it was annotated as."""
    return {name: None if value is None else float(value) for name, value in figures.items()}
