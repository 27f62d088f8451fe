"""Trials into a table: mean and 95% interval over seeds, the same columns for every model of a domain."""

from __future__ import annotations

import csv
import fnmatch
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbsr_core.metrics import Interval, names
from nbsr_core.metrics.intervals import few_seeds, figure_interval, is_share
from nbsr_core.metrics.names import CEILING, last_part
from nbsr_platform.base.plain_json import finite
from nbsr_platform.report.groups import UNUSABLE
from nbsr_platform.study.paper import Paper
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

NOTHING: Mapping[str, str] = {}
# Shares that people say in percent, by the last part of their names.
PERCENT = ("accuracy", "coverage", "abstained", "error_answered")


@dataclass(frozen=True)
class ComparisonRow:
    """One line of the comparison.

    Attributes:
        config: how the model was used: `deep` and `fast` where it can stop early, a proposal of a search, else empty.
        family: `nbsr` or `baseline`; `ceiling` for what the best possible model would reach, `unusable` for models that
            nobody could use.
        n: number of trials (seeds) behind the figures.
        paper: what a paper reports for this line, by figure.
        why_unusable: of such a model, in a few words; empty for all others.
    """

    study: str
    model: str
    config: str
    family: str
    n: int
    synthetic: bool
    metrics: dict[str, Interval]
    paper: Mapping[str, float] = field(default_factory=dict)
    why_unusable: str = ""

    @property
    def name(self) -> str:
        """As people call the line: model and use."""
        return marked(f"{self.model} {self.config}".strip(), self.why_unusable)

    def to_json(self) -> dict[str, object]:
        return {
            "study": self.study,
            "model": self.model,
            "config": self.config,
            "n": self.n,
            "synthetic": self.synthetic,
            "intervals": few_seeds(self.n) or "95%",
            "metrics": {name: plain_interval(interval) for name, interval in self.metrics.items()},
            **({"paper": dict(self.paper)} if self.paper else {}),
            **({"unusable": self.why_unusable} if self.why_unusable else {}),
        }

    def cell(self, name: str) -> str:
        """One figure as a person reads it in a narrow column: its bounds below it, then the paper's."""
        estimate, spread = _estimate_and_spread(self.metrics.get(name), name)
        ours = f"{estimate}\n{spread}".strip()
        if name not in self.paper:
            return ours
        return f"{ours}\n(paper {short(Interval(self.paper[name], math.nan, math.nan), name)})"


def marked(name: str, why_unusable: str | None) -> str:
    """A name, with the reason behind it where it is that of a model that nobody could use."""
    return f"{name} ({why_unusable})" if why_unusable else name


def plain_interval(interval: Interval) -> dict[str, float | None]:
    """One or two seeds have no interval: JSON says null, not NaN."""
    found: dict[str, float | None] = finite({"mean": interval.estimate, "low": interval.low, "high": interval.high})
    return found


def summarise(
    ended: Iterable[tuple[Trial, TrialResult]], paper: Paper | None = None, unusable: Mapping[str, str] = NOTHING
) -> list[ComparisonRow]:
    """Group finished trials by model (and proposal), deep and fast where it can stop early; the ceiling comes last.

    `unusable` are kinds of models that nobody could use, see `Domain.unusable`.
    """
    groups: dict[tuple[str, str, int | None], list[tuple[Trial, TrialResult]]] = {}
    for trial, result in ended:
        groups.setdefault((trial.study, trial.label, trial.proposal), []).append((trial, result))
    rows, ceilings = [], dict[str, ComparisonRow]()
    for (study, label, proposal), members in groups.items():
        results = [result for _, result in members]
        why = unusable.get(members[0][0].kind, "")
        family = UNUSABLE if why else members[0][0].family
        synthetic = any(bool(result.data.get("synthetic")) for result in results)
        number = "" if proposal is None else f"#{proposal} "
        stops_early = family == "nbsr" or any(names.in_comparison(name, "fast") for name in results[0].metrics)
        uses: dict[str, names.Line] = {"deep": "test", "fast": "fast"} if stops_early else {"": "test"}
        for config, line in uses.items():
            figures = figures_over_seeds(results, line)
            published = {} if paper is None else paper.of(label, config)
            if figures:
                config = f"{number}{config}".strip()
                about = (family, len(members), synthetic)
                rows.append(ComparisonRow(study, label, config, *about, figures, published, why))
        # The ceiling follows from data and seed alone, so the model with the most seeds knows all there is of it.
        figures = figures_over_seeds(results, "ceiling")
        if figures and (study not in ceilings or ceilings[study].n < len(members)):
            ceilings[study] = ComparisonRow(study, CEILING, "", CEILING, len(members), synthetic, figures)
    return rows + list(ceilings.values())


def figures_over_seeds(results: Sequence[TrialResult], line: names.Line) -> dict[str, Interval]:
    """Interval of each figure of a line that every trial has; sets beside the test split keep their name."""
    figures = {}
    for name in results[0].metrics:
        compared = names.in_comparison(name, line)
        if compared is not None:
            values = [result.metrics.get(name) for result in results]
            known = [value for value in values if value is not None and math.isfinite(value)]
            if len(known) == len(values):
                figures[compared] = figure_interval(compared, known)
    return figures


def shown_figures(shown: Sequence[str], rows: Sequence[ComparisonRow]) -> list[str]:
    """The figures that a domain shows first, as far as there are any; `ood/*/auroc` is that of every such set."""
    known = list(dict.fromkeys(name for row in rows for name in row.metrics))
    return list(dict.fromkeys(name for pattern in shown for name in fnmatch.filter(known, pattern)))


def without_interval(rows: Sequence[ComparisonRow]) -> str | None:
    """One line about rows of so few seeds that they have no interval; None if all have one."""
    few = sorted({row.n for row in rows if few_seeds(row.n)})
    if not few:
        return None
    said = few_seeds(few[-1])
    return f"{said}: means only" if len(few) == 1 else f"{few[0]} or {said}: means only"


def table(rows: Sequence[ComparisonRow]) -> pd.DataFrame:
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


def study_metrics(rows: Sequence[ComparisonRow], shown: Sequence[str]) -> dict[str, float]:
    """Figures for a study's own run in MLflow: `<model>/<config>/<figure>/mean`, of those that people compare.

    All others, the intervals and the ceiling are in the table beside (`figures_csv`): a page with hundreds of figures
    shows none.
    """
    figures: dict[str, float] = {}
    for row in rows:
        head = "/".join(part for part in (row.model, row.config.replace("#", "")) if part)
        for name in shown if row.family != CEILING else ():
            mean = plain_interval(row.metrics[name])["mean"] if name in row.metrics else None
            if mean is not None:
                figures[f"{head}/{name}/mean"] = mean
    return figures


def figures_csv(rows: Sequence[ComparisonRow]) -> str:
    """All figures of a comparison, a line each."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["study", "model", "config", "n", "synthetic", "figure", "mean", "low", "high", "paper"])
    for row in rows:
        about = (row.study, row.model, row.config, row.n, "yes" if row.synthetic else "no")
        for name, interval in row.metrics.items():
            writer.writerow([*about, name, *plain_interval(interval).values(), row.paper.get(name)])
    return lines.getvalue()


def short(interval: Interval | None, name: str) -> str:
    """A figure as a person reads it with its interval: percent where it is an accuracy or the like."""
    estimate, spread = _estimate_and_spread(interval, name)
    return f"{estimate} ({spread})" if "–" in spread else f"{estimate} {spread}".strip()


def _estimate_and_spread(interval: Interval | None, name: str) -> tuple[str, str]:
    """`91.0%` and `86.5–94.1`: the bounds of a share are not equally far from its mean; `0.153` and `±0.220` else."""
    if interval is None:
        return "-", ""
    percent = last_part(name) in PERCENT
    scale, digits = (100, 1) if percent else (1, 3 if abs(interval.estimate) < 10 else 1)
    estimate = f"{interval.estimate * scale:.{digits}f}{'%' if percent else ''}"
    if interval.low != interval.low:
        return estimate, ""
    if is_share(name):
        return estimate, f"{interval.low * scale:.{digits}f}–{interval.high * scale:.{digits}f}"
    return estimate, f"±{(interval.high - interval.low) / 2 * scale:.{digits}f}{'%' if percent else ''}"
