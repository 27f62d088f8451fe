"""What the plots of a report draw, as plain data: frontiers, calibration, belief, usage and training.

Curves that belong to a model are taken over all its seeds; where only one trial can be drawn (a histogram, a graph),
it is that of the first seed, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nbsr_core.domains.acquisition.words import in_plain_words
from nbsr_core.metrics import names
from nbsr_platform.base.shape import fits
from nbsr_platform.report.drawable import WalkRow
from nbsr_platform.report.groups import Ended, Group
from nbsr_platform.report.numbers import evenly
from nbsr_platform.report.purchases import is_of_purchases
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.trials.results import TrialResult

Rows = list[dict[str, Any]]
# Points of all frontiers together: a browser draws these at once, and a page stays small.
FRONTIER_POINTS, LEAST_POINTS, MOST_POINTS = 6000, 8, 100
COVERAGES = np.linspace(0.02, 1.0, 50)
MOST_EPOCHS, WIDEST_LEVEL = 150, 24


def frontier(all_results: Sequence[StudyResults]) -> dict[str, Any]:
    """Every threshold of every NBSR trial, and the baselines beside them.

    A point is [accuracy, mean depth, mean cost, ECE, share of early exits, eta, mean multiply-adds].
    """
    groups = [(study_results, group) for study_results in all_results for group in study_results.shown]
    walkers = sum(len(group.members) for _, group in groups if group.family == "nbsr")
    room = min(MOST_POINTS, max(LEAST_POINTS, FRONTIER_POINTS // max(walkers, 1)))
    models: list[dict[str, Any]] = []
    for study_results, group in groups:
        prefix = f"{study_results.study.name}: " if len(all_results) > 1 else ""
        trials = [_trial_points(ended, room) for ended in group.members]
        models.append({"name": f"{prefix}{group.name}", "family": group.family, "trials": trials})
    points = [point for model in models for trial in model["trials"] for point in trial["points"]]
    costly = any(point[2] is not None and abs(point[2] - (point[1] or 0)) > 1e-6 for point in points)
    return {"models": models, "costly": costly}


def _trial_points(ended: Ended, room: int) -> dict[str, Any]:
    trial, result = ended
    figures = result.metrics
    rows = result.tables.get("frontier", [])
    if not rows:
        flat = [
            figures.get(names.test("accuracy")),
            None,
            figures.get(names.test("mean_cost")),
            figures.get(names.test("ece")),
            None,
            None,
            figures.get(names.test("mean_macs")),
        ]
        return {"name": trial.name, "points": [flat], "chosen": None}
    columns = ("accuracy", "mean_depth", "mean_cost", "ece", "exited", "eta", "mean_macs")
    points = [[row.get(name) for name in columns] for row in evenly(rows, room)]
    eta = figures.get(names.ETA)
    chosen = None
    if figures.get(names.fast("accuracy")) is not None:
        cost = None if eta is None else _nearest(rows, eta).get("mean_cost")
        fast = [figures.get(names.fast(name)) for name in ("accuracy", "mean_depth", "ece", "exited", "mean_macs")]
        chosen = [
            fast[0],
            fast[1],
            figures.get(names.test("mean_cost")) if eta is None else cost,
            fast[2],
            fast[3],
            eta,
            fast[4],
        ]
    return {"name": trial.name, "points": points, "chosen": chosen}


def _nearest(rows: Rows, eta: float) -> dict[str, Any]:
    known = [row for row in rows if row["eta"] is not None]
    return min(known, key=lambda row: abs(row["eta"] - eta), default=rows[0])


def calibration(group: Group) -> dict[str, Any]:
    """Reliability pooled over seeds (by depth where there is any, before and after calibration), and risk-coverage."""
    after = _pooled(group.results, "reliability")
    if len(after) > 1:
        after.pop("final", None)  # that of the last depth, said twice
    return {
        "name": group.name,
        "after": after,
        "before": _pooled(group.results, "reliability_raw"),
        "risk": _risk(group.results),
    }


def _pooled(results: Iterable[TrialResult], table: str) -> dict[str, Any]:
    """Bins of all seeds together: {depth or `final`: {bins: [[confidence, accuracy, count], ...], ece}}."""
    sums: dict[str, dict[float, list[float]]] = {}
    for result in results:
        for row in result.tables.get(table, []):
            if row["count"] <= 0:
                continue
            name = "final" if row["depth"] is None else str(row["depth"])
            cell = sums.setdefault(name, {}).setdefault(row["low"], [0.0, 0.0, 0.0])
            for place, value in enumerate((row["confidence"], row["accuracy"], 1.0)):
                cell[place] += value * row["count"]
    pooled = {}
    for name, cells in sums.items():
        bins = [[confidence / n, right / n, n] for _, (confidence, right, n) in sorted(cells.items())]
        total = sum(n for _, _, n in bins)
        pooled[name] = {"bins": bins, "ece": sum(abs(right - said) * n for said, right, n in bins) / total}
    return pooled


def _risk(results: Iterable[TrialResult]) -> dict[str, list[list[float]]]:
    curves: dict[str, list[Any]] = {}
    for result in results:
        by_score: dict[str, Rows] = {}
        for row in result.tables.get("risk_coverage", []):
            by_score.setdefault(row["score"], []).append(row)
        for score, rows in by_score.items():
            known = [row["coverage"] for row in rows], [row["risk"] for row in rows]
            curves.setdefault(score, []).append(np.interp(COVERAGES, *known))
    return {
        score: [[float(x), float(y)] for x, y in zip(COVERAGES, np.mean(found, axis=0), strict=True)]
        for score, found in curves.items()
    }


def belief(group: Group) -> dict[str, Any] | None:
    """Precision and entropy by depth (mean over seeds), terminal entropies, and the graph with its usage."""
    tables = [result.tables["belief"] for result in group.results if result.tables.get("belief")]
    if not tables:
        return None
    _, first = group.first
    columns = ("precision", "precision_low", "precision_high", "entropy", "entropy_low", "entropy_high", "vacuity")
    depths = range(min(map(len, tables)))

    def mean(name: str, depth: int) -> float | None:
        values = [table[depth].get(name) for table in tables]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    histograms: dict[str, list[list[float]]] = {}
    for row in first.tables.get("entropy", []):
        histograms.setdefault(row["set"], []).append([row["low"], row["high"], row["share"]])
    return {
        "name": group.name,
        "depths": [{"depth": depth, **{name: mean(name, depth) for name in columns}} for depth in depths],
        "entropy": histograms,
        "separation": first.tables.get("separation", []),
        "graph": graph(first),
    }


def graph(result: TrialResult) -> dict[str, Any]:
    """Nodes by level and edges between them; of wide levels the most used, and those on walks that are shown."""
    walked = {step["node"] for audit in _walks(result) for step in audit["steps"]}
    levels: dict[int, Rows] = {}
    for row in result.tables.get("usage", []):
        levels.setdefault(row["level"], []).append(row)
    nodes: Rows = []
    hidden = []
    for level in sorted(levels):
        rows = levels[level]
        if len(rows) > WIDEST_LEVEL:
            kept = sorted(rows, key=lambda row: (row["node"] not in walked, -row["share"]))[:WIDEST_LEVEL]
            hidden.append({"level": level, "count": len(rows) - len(kept)})
            rows = [row for row in rows if row in kept]
        nodes += rows
    place = {row["node"]: index for index, row in enumerate(nodes)}
    edges = [
        [place[row["parent"]], place[row["child"]], row["share"]]
        for row in result.tables.get("edges", [])
        if row["parent"] in place and row["child"] in place
    ]
    return {"nodes": [[row["node"], row["level"], row["share"]] for row in nodes], "edges": edges, "hidden": hidden}


def training(group: Group) -> dict[str, Any] | None:
    """Terms of the loss and figures on the validation split by epoch, mean over the seeds that got so far.

    Of the validation split, each seed's own curve as well: a mean hides the seed that never learned.
    """
    epochs = max((len(result.epochs) for result in group.results), default=0)
    if not epochs:
        return None
    shown = evenly(range(epochs), MOST_EPOCHS)
    reported = dict.fromkeys(name for result in group.results for epoch in result.epochs[:1] for name in epoch)
    curves = {}
    for name in reported:
        head, _, tail = name.partition("/")
        if head in (names.TRAIN, names.VALID) and tail not in ("learning_rate", "temperature", "samples_per_second"):
            curves[name] = [_mean_of_epoch(group.results, epoch, name) for epoch in shown]
    seeds = {
        name: [[_mean_of_epoch([result], epoch, name) for epoch in shown] for result in group.results]
        for name in curves
        if name.startswith(f"{names.VALID}/") and len(group.results) > 1
    }
    return {"name": group.name, "family": group.family, "epochs": shown, "curves": curves, "seeds": seeds}


def _mean_of_epoch(results: Iterable[TrialResult], epoch: int, name: str) -> float | None:
    values = [result.epochs[epoch].get(name) for result in results if epoch < len(result.epochs)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def walks(group: Group) -> dict[str, Any] | None:
    """Walks of the first seed's trial, with the graph that they walk on; None where its domain tells other stories."""
    trial, result = group.first
    audits = _walks(result)
    if not audits:
        return None
    samples = [{name: value for name, value in audit.items() if name != "text"} for audit in audits]
    for sample in samples:
        sample.setdefault("verdict", "right" if sample["true"] == sample["predicted"] else "wrong")
    return {
        "name": group.name,
        "trial": trial.name,
        "samples": samples,
        "graph": graph(result),
        "max_vacuity": result.metrics.get(names.test("max_vacuity"), trial.evaluation.get("max_vacuity")),
        "eta": result.metrics.get(names.ETA),
    }


def _walks(result: TrialResult) -> Rows:
    """Audits that are walks over a graph; a domain may tell other stories."""
    return [audit for audit in result.audits if fits(audit, WalkRow)]


def _words(audit: dict[str, Any]) -> str:
    """A story as its domain told it; purchases in today's words, whenever they were stored."""
    return "\n".join(in_plain_words(audit)) if is_of_purchases(audit) else str(audit["text"])


def stories(group: Group) -> dict[str, Any] | None:
    """What a domain tells of samples in words of its own, where it is no walk over a fixed graph."""
    trial, result = group.first
    told = [[f"{audit['sample']}: {audit['true']}", _words(audit)] for audit in result.audits if "text" in audit]
    return {"name": group.name, "trial": trial.name, "told": told} if told and walks(group) is None else None
