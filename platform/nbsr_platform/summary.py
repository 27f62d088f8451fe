"""Trials into a table: mean and 95% interval over seeds, the same columns for every model of a domain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbsr_core.metrics import Interval, seed_interval
from nbsr_platform.paper import Paper
from nbsr_platform.results import TrialResult
from nbsr_platform.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

FULL, FAST, CEILING = "test", "fast", "ceiling"


@dataclass(frozen=True)
class Row:
    """One line of the comparison.

    Attributes:
        config: how the model was used: `deep` and `fast` for NBSR, the proposal for a search, empty otherwise.
        family: `nbsr` or `baseline`; `ceiling` for what the best possible model would reach.
        n: number of trials (seeds) behind the figures.
        paper: what a paper reports for this line, by figure.
    """

    study: str
    model: str
    config: str
    family: str
    n: int
    synthetic: bool
    metrics: dict[str, Interval]
    paper: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "study": self.study,
            "model": self.model,
            "config": self.config,
            "n": self.n,
            "synthetic": self.synthetic,
            "metrics": {name: _plain(interval) for name, interval in self.metrics.items()},
            **({"paper": dict(self.paper)} if self.paper else {}),
        }

    def cell(self, name: str) -> str:
        """One figure as a person reads it, the paper's below it."""
        ours = short(self.metrics.get(name), name)
        if name not in self.paper:
            return ours
        return f"{ours}\n(paper {short(Interval(self.paper[name], math.nan, math.nan), name)})"


def _plain(interval: Interval) -> dict[str, float | None]:
    """One seed has no interval: JSON says null, not NaN."""
    values = {"mean": interval.estimate, "low": interval.low, "high": interval.high}
    return {name: value if value == value else None for name, value in values.items()}


def summarise(ended: Iterable[tuple[Trial, TrialResult]], paper: Paper | None = None) -> list[Row]:
    """Group finished trials by model (and proposal), and each NBSR once deep and once fast; the ceiling comes last."""
    groups: dict[tuple[str, str, int | None], list[tuple[Trial, TrialResult]]] = {}
    for trial, result in ended:
        groups.setdefault((trial.study, trial.label, trial.proposal), []).append((trial, result))
    rows, ceilings = [], dict[str, Row]()
    for (study, label, proposal), members in groups.items():
        results = [result for _, result in members]
        family = members[0][0].family
        synthetic = any(bool(result.data.get("synthetic")) for result in results)
        number = "" if proposal is None else f"#{proposal} "
        uses = {"deep": FULL, "fast": FAST} if family == "nbsr" else {"": FULL}
        for config, prefix in uses.items():
            figures = figures_over_seeds(results, prefix)
            published = {} if paper is None else paper.of(label, config)
            if figures:
                config = f"{number}{config}".strip()
                rows.append(Row(study, label, config, family, len(members), synthetic, figures, published))
        # The ceiling follows from data and seed alone, so the model with the most seeds knows all there is of it.
        figures = figures_over_seeds(results, CEILING)
        if figures and (study not in ceilings or ceilings[study].n < len(members)):
            ceilings[study] = Row(study, CEILING, "", CEILING, len(members), synthetic, figures)
    return rows + list(ceilings.values())


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
    """`test/accuracy` -> `accuracy`; `noise_draws/accuracy` -> itself for the test prefix, likewise with `/fast`.

    A ceiling has the same names after `ceiling/`: `ceiling/test/accuracy` -> `accuracy`.
    """
    if name.startswith(f"{CEILING}/"):
        return _under(name.removeprefix(f"{CEILING}/"), FULL) if prefix == CEILING else None
    head, _, tail = name.rpartition("/")
    if head == prefix:
        return tail
    if prefix == CEILING or head.startswith(("valid", "model")) or head in (FULL, FAST):
        return None
    if prefix == FAST:
        return f"{head.removesuffix('/fast')}/{tail}" if head.endswith("/fast") else None
    return None if head.endswith("/fast") else name


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Means, lower and upper bounds as columns `accuracy`, `accuracy_low`, `accuracy_high`, ..."""
    import pandas as pd  # half a second that a run need not wait for

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
        record |= {f"{name}_paper": value for name, value in row.paper.items()}
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
