"""What plots and reports show of a model, as plain rows: frontier, reliability, belief, entropy, usage and audits.

Rows are small whatever the size of the test split (curves are thinned, histograms binned), so that every trial of a
study can keep its own. A domain with an evaluation of its own calls the same functions and gets the same report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.belief import dirichlet
from nbsr_core.evaluation.attribution import Attribution, attribute, strongest_features, varied
from nbsr_core.learning.splits import Splits
from nbsr_core.model.network import NBSR
from nbsr_core.trace.belief_trace import BeliefTrace
from nbsr_core.trace.by_depth import ByDepth
from nbsr_core.trace.frontier import exit_depths
from nbsr_core.trace.visit import OFF_CHART, Feature

Row = dict[str, float | int | str | None]

CALIBRATION_BINS, HISTOGRAM_BINS, CURVE_POINTS = 10, 40, 100
# Edges that nobody took are kept for a picture of the whole graph, unless there are more than anybody could draw.
MOST_UNUSED_EDGES = 500
TOP_CLASSES, TOP_FEATURES, TOP_FEATURES_OF_EXPERT = 5, 10, 4


def reliability_rows(probs: Float[Tensor, "N K"], y: Int[Tensor, " N"], depth: int | None) -> list[Row]:
    """Confidence against accuracy by bin; `depth` is None for the final answer."""
    diagram = metrics.reliability(probs, y, CALIBRATION_BINS)
    edges = diagram.edges.tolist()
    columns = zip(diagram.confidence.tolist(), diagram.accuracy.tolist(), diagram.count.tolist(), strict=True)
    return [
        {"depth": depth, "low": low, "high": high, "confidence": confidence, "accuracy": accuracy, "count": count}
        for low, high, (confidence, accuracy, count) in zip(edges, edges[1:], columns, strict=False)
        if count
    ]


def raw_reliability_rows(trace: BeliefTrace, y: Int[Tensor, " B"]) -> list[Row]:
    """The same by depth for the belief as it was before calibration; none where nothing was calibrated."""
    if trace.temperature is None:
        return []
    rows: list[Row] = []
    for depth in range(1, trace.depth + 1):
        belief = trace.beliefs[depth]
        rows += reliability_rows(belief / belief.sum(-1, keepdim=True), y, depth)
    return rows


def risk_coverage_rows(score: str, confidence: Float[Tensor, " N"], correct: Bool[Tensor, " N"]) -> list[Row]:
    """Error rate among those that are answered if the least sure are not; `score` names what sureness means."""
    curve = metrics.risk_coverage(confidence, correct)
    shown = _evenly(len(curve.coverage), CURVE_POINTS)
    points = zip(curve.coverage[shown].tolist(), curve.risk[shown].tolist(), strict=True)
    return [{"score": score, "coverage": coverage, "risk": risk} for coverage, risk in points]


def frontier_rows(trace: ByDepth, y: Int[Tensor, " B"], etas: Sequence[float] | None) -> list[Row]:
    """The frontier with the calibration error at each threshold."""
    frontier = trace.frontier(y, etas)
    rows: list[Row] = list(map(dict, frontier.rows()))
    means = torch.stack([trace.probabilities(depth) for depth in range(1, trace.depth + 1)])
    confidence, label = (part.cpu() for part in means.max(-1))
    gap = (label == y.cpu()).double() - confidence.double()
    inner = torch.arange(1, CALIBRATION_BINS, dtype=torch.float64) / CALIBRATION_BINS
    place = torch.bucketize(confidence.double(), inner)
    samples, errors = torch.arange(len(trace)), []
    for depth in exit_depths(trace.doubt[1:].detach().cpu(), frontier.eta, trace.length.cpu()):
        stop = (depth - 1, samples)
        bins = place[stop] + CALIBRATION_BINS * torch.arange(len(depth)).unsqueeze(1)
        sums = bins.flatten().bincount(gap[stop].flatten(), minlength=CALIBRATION_BINS * len(depth))
        # |sum of (right - confidence)| over a bin is the bin's share of the error, times N.
        errors += (sums.view(-1, CALIBRATION_BINS).abs().sum(1) / len(trace)).tolist()
    for row, error in zip(rows, errors, strict=True):
        row["ece"] = error
    return rows


def belief_rows(trace: BeliefTrace) -> list[Row]:
    """How the belief sharpens with depth: means over samples, and where 90% of them lie."""
    rows: list[Row] = []
    for depth in range(trace.depth + 1):
        variance = dirichlet.variance(trace.belief(depth), validate_args=False).max(-1).values
        precision, entropy = trace.precision[depth], _on_chart(trace, depth)
        rows.append(
            {
                "depth": depth,
                "precision": float(precision.mean()),
                "precision_low": _quantile(precision, 0.05),
                "precision_high": _quantile(precision, 0.95),
                "entropy": float(entropy.mean()),
                "entropy_low": _quantile(entropy, 0.05),
                "entropy_high": _quantile(entropy, 0.95),
                "largest_variance": float(variance.double().mean()),
                "vacuity": float((trace.prior.sum() / precision).mean()),
            }
        )
    return rows


def _on_chart(trace: BeliefTrace, depth: int) -> Float[Tensor, " B"]:
    """Entropies of one depth, those off the chart at its edge: one of -1e8 would leave nothing to see of the others."""
    return trace.entropy[depth].double().clamp_min(-OFF_CHART * len(trace.prior))


def entropy_rows(traces: Mapping[str, BeliefTrace]) -> list[Row]:
    """Histograms of the entropy at the end of the walks, one for each set of samples, all over the same bins.

    What is off the chart (`nbsr_core.trace.visit.OFF_CHART`) is in the bin at its edge.
    """
    ends = {name: _on_chart(trace, -1).cpu() for name, trace in traces.items()}
    low = min(float(values.min()) for values in ends.values())
    high = max(float(values.max()) for values in ends.values())
    edges = torch.linspace(low, high, HISTOGRAM_BINS + 1, dtype=torch.float64)
    rows: list[Row] = []
    for name, values in ends.items():
        counts = torch.bucketize(values, edges[1:-1]).bincount(minlength=HISTOGRAM_BINS)
        for index in counts.nonzero().flatten().tolist():
            share = float(counts[index]) / len(values)
            rows.append({"set": name, "low": float(edges[index]), "high": float(edges[index + 1]), "share": share})
    return rows


def separation_rows(traces: Mapping[str, BeliefTrace], known: str = "test") -> list[Row]:
    """How well entropy, and precision, tell the samples of each other set from the known ones (AUROC)."""
    inside = traces[known]
    return [
        {
            "set": name,
            "entropy_auroc": metrics.auroc(-inside.entropy[-1].double(), -trace.entropy[-1].double()),
            "precision_auroc": metrics.auroc(inside.precision[-1], trace.precision[-1]),
        }
        for name, trace in traces.items()
        if name != known
    ]


def usage_rows(trace: BeliefTrace) -> list[Row]:
    """Share of the walks that visit each node."""
    shares = trace.usage.tolist()
    return [
        {"node": node.name, "level": node.level, "share": share}
        for node, share in zip(trace.graph.nodes, shares, strict=True)
    ]


def edge_rows(trace: BeliefTrace) -> list[Row]:
    """Share of the walks that take each edge of the graph."""
    nodes, count = trace.graph.nodes, len(trace.graph)
    taken = torch.zeros(0, dtype=torch.int64)
    for here, step, walked in zip(trace.nodes, trace.steps, trace.walking, strict=False):
        taken = torch.cat([taken, (here * count + step.node)[walked].cpu()])
    codes, visits = taken.unique(return_counts=True)
    share = {divmod(code, count): n / len(trace) for code, n in zip(codes.tolist(), visits.tolist(), strict=True)}
    edges = [(index, child) for index, node in enumerate(nodes) for child in node.children]
    if len(edges) - len(share) > MOST_UNUSED_EDGES:
        edges = [edge for edge in edges if edge in share]
    return [
        {"parent": nodes[parent].name, "child": nodes[child].name, "share": share.get((parent, child), 0.0)}
        for parent, child in edges
    ]


def audit_walks(
    model: NBSR,
    trace: BeliefTrace,
    y: Int[Tensor, " N"],
    splits: Splits,
    *,
    count: int,
    eta: float | None,
    max_vacuity: float | None,
) -> list[dict[str, Any]]:
    """Walks of test samples in full: what a person needs to follow them, with the features behind them.

    A third of them, as far as there are so many, are wrong and a third abstain (where nobody may, the least sure ones
    take their place); the others are the first of the split. `trace` and labels `y` are those of the whole test split;
    where a walk is not that of one input (a token's in a text), there are no features to name.
    """
    full, early = trace.exit(None, max_vacuity), trace.exit(eta, max_vacuity)
    y = y.to(full.label.device)
    chosen = _chosen_samples(full.label == y, full.abstained, full.vacuity, count)
    if not chosen:
        return []
    x, attribution = splits.test.x, None
    numbers = varied(x[chosen]) if len(x) == len(trace) else None
    if numbers is not None:
        attribution = attribute(model, numbers.to(model.prior.device))
    return [
        {
            **_walk(trace, index, int(y[index]), splits),
            "verdict": "abstained" if full.abstained[index] else "right" if full.label[index] == y[index] else "wrong",
            "exit_depth": int(early.depth[index]),
            "exit_prediction": splits.class_names[int(early.label[index])],
            **_features(attribution, place, index, splits),
        }
        for place, index in enumerate(chosen)
    ]


def _chosen_samples(
    correct: Bool[Tensor, " N"], abstained: Bool[Tensor, " N"], vacuity: Float[Tensor, " N"], count: int
) -> list[int]:
    third = count // 3
    chosen = (~correct & ~abstained).nonzero().flatten().tolist()[:third]
    unsure = vacuity.argsort(descending=True, stable=True).tolist()
    if bool(abstained.any()):
        unsure = [index for index in unsure if abstained[index]]
    chosen += [index for index in unsure[:third] if index not in chosen]
    chosen += [index for index in range(min(count, len(correct))) if index not in chosen]
    return sorted(chosen[:count])


def _walk(trace: BeliefTrace, index: int, label: int, splits: Splits) -> dict[str, Any]:
    trail = trace.audit(index, splits.class_names)
    return {
        "sample": index,
        "true": splits.class_names[label],
        "predicted": splits.class_names[trail.steps[-1].prediction],
        "density": trail.density,
        "text": trail.render(),
        "steps": [step.visit(splits.class_names, TOP_CLASSES).to_row() for step in trail.steps],
    }


def _features(attribution: Attribution | None, place: int, index: int, splits: Splits) -> dict[str, Any]:
    """The inputs behind the belief, in all and by expert; empty where the input cannot be varied."""
    if attribution is None:
        return {"features": [], "features_by_step": []}

    def plain(features: tuple[Feature, ...]) -> list[dict[str, Any]]:
        return [{"name": f"{f.name} ({f.reading})", "attribution": f.attribution} for f in features]

    parts, x = attribution.by_expert[:, place], splits.test.x[index]
    return {
        "features": plain(strongest_features(parts.sum(0), x, splits, TOP_FEATURES)),
        "features_by_step": [plain(strongest_features(part, x, splits, TOP_FEATURES_OF_EXPERT)) for part in parts],
    }


def _evenly(count: int, most: int) -> list[int]:
    """Indices of at most so many of `count` entries, first and last among them."""
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def _quantile(values: Float[Tensor, " N"], share: float) -> float:
    """Nearest-rank quantile: torch's own refuses more than 16 million values."""
    rank = max(1, math.ceil(share * len(values)))
    return float(values.kthvalue(rank).values)
