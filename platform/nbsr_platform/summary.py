"""Trials into a table: mean and 95% interval over seeds, the same columns for every model of a domain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from nbsr_core.metrics import Interval, seed_interval
from nbsr_platform.results import TrialResult
from nbsr_platform.trial import Trial

# Which figures a person compares first; others are in the JSON and in MLflow.
SHOWN = ("accuracy", "ece", "nll", "mean_depth")
FULL, FAST = "test", "fast"


@dataclass(frozen=True)
class Row:
    """One line of the comparison.

    Attributes:
        config: how the model was used: `deep` and `fast` for NBSR, the proposal for a search, empty otherwise.
        n: number of trials (seeds) behind the figures.
    """

    study: str
    model: str
    config: str
    family: str
    n: int
    synthetic: bool
    metrics: dict[str, Interval]

    def to_json(self) -> dict[str, object]:
        return {
            "study": self.study,
            "model": self.model,
            "config": self.config,
            "n": self.n,
            "synthetic": self.synthetic,
            "metrics": {name: _plain(interval) for name, interval in self.metrics.items()},
        }


def _plain(interval: Interval) -> dict[str, float | None]:
    """One seed has no interval: JSON says null, not NaN."""
    values = {"mean": interval.estimate, "low": interval.low, "high": interval.high}
    return {name: value if value == value else None for name, value in values.items()}


def summarise(ended: Iterable[tuple[Trial, TrialResult]]) -> list[Row]:
    """Group finished trials by model (and proposal), and each NBSR once deep and once fast."""
    groups: dict[tuple[str, str, int | None], list[tuple[Trial, TrialResult]]] = {}
    for trial, result in ended:
        groups.setdefault((trial.study, trial.label, trial.proposal), []).append((trial, result))
    rows = []
    for (study, label, proposal), members in groups.items():
        results = [result for _, result in members]
        family = members[0][0].family
        synthetic = any(bool(result.data.get("synthetic")) for result in results)
        number = "" if proposal is None else f"#{proposal} "
        uses = {"deep": FULL, "fast": FAST} if family == "nbsr" else {"": FULL}
        for config, prefix in uses.items():
            figures = figures_over_seeds(results, prefix)
            if figures:
                rows.append(Row(study, label, f"{number}{config}".strip(), family, len(members), synthetic, figures))
    return rows


def figures_over_seeds(results: Sequence[TrialResult], prefix: str) -> dict[str, Interval]:
    """Interval of each figure under `prefix/` that every trial has; sets beside the test split keep their name."""
    names: list[str] = []
    for name in results[0].metrics:
        if _under(name, prefix) is not None:
            names.append(name)
    figures = {}
    for name in names:
        values = [result.metrics.get(name) for result in results]
        known = [value for value in values if value is not None and math.isfinite(value)]
        short = _under(name, prefix)
        if len(known) == len(values) and short is not None:
            figures[short] = seed_interval(known)
    return figures


def _under(name: str, prefix: str) -> str | None:
    """`test/accuracy` -> `accuracy`; `noise_draws/accuracy` -> itself for the test prefix, likewise with `/fast`."""
    head, _, tail = name.rpartition("/")
    if head == prefix:
        return tail
    if head.startswith(("valid", "depth", "model")) or head in (FULL, FAST):
        return None
    if prefix == FAST:
        return f"{head.removesuffix('/fast')}/{tail}" if head.endswith("/fast") else None
    return None if head.endswith("/fast") else name


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Means, lower and upper bounds as columns `accuracy`, `accuracy_low`, `accuracy_high`, ..."""
    records = []
    for row in rows:
        record: dict[str, object] = {
            "study": row.study,
            "model": row.model,
            "config": row.config,
            "n": row.n,
            "synthetic": row.synthetic,
        }
        for name, interval in row.metrics.items():
            record |= {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}
        records.append(record)
    return pd.DataFrame.from_records(records)


def study_metrics(rows: Sequence[Row]) -> Mapping[str, float]:
    """Figures for a study's own run in MLflow: `<model>/<config>/<figure>/mean`, `/low`, `/high`."""
    figures: dict[str, float] = {}
    for row in rows:
        head = "/".join(part for part in (row.model, row.config.replace("#", "")) if part)
        for name, interval in row.metrics.items():
            for part, value in _plain(interval).items():
                if value is not None:
                    figures[f"{head}/{name}/{part}"] = value
    return figures


def short(interval: Interval | None, name: str) -> str:
    """A figure as a person reads it: percent where it is a share, with half the width of its interval."""
    if interval is None:
        return "-"
    percent = name.endswith("accuracy")
    scale, digits = (100, 1) if percent else (1, 3 if abs(interval.estimate) < 10 else 1)
    text = f"{interval.estimate * scale:.{digits}f}"
    if interval.low == interval.low:
        text += f" ±{(interval.high - interval.low) / 2 * scale:.{digits}f}"
    return text + ("%" if percent else "")
