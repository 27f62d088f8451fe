"""What is known of a trained model: figures, tables and warnings, the same for every model of a domain."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nbsr_core import dirichlet, metrics
from nbsr_core.domains.base import Split, Splits
from nbsr_core.errors import InputError
from nbsr_core.exits import check_max_vacuity, is_vacuous
from nbsr_core.learners import Learner, NbsrLearner
from nbsr_core.trace import BeliefTrace

Row = dict[str, float | int | str | None]


@dataclass(frozen=True)
class EvaluationOptions:
    """What to look at after training.

    Attributes:
        eta: exit threshold of the Fast operating point; None chooses it on the validation split.
        max_accuracy_loss: what the chosen threshold may cost there, as a share of the samples.
        etas: thresholds of the frontier; None takes all that make a difference.
        max_vacuity: abstain above it; None never does.
        audits: walks of test samples to keep.
    """

    eta: float | None = None
    max_accuracy_loss: float = 0.005
    etas: tuple[float, ...] | None = None
    max_vacuity: float | None = None
    audits: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.max_accuracy_loss < 1:
            raise InputError(f"max_accuracy_loss must lie in [0, 1), got {self.max_accuracy_loss!r}")
        check_max_vacuity(self.max_vacuity)
        if self.audits < 0:
            raise InputError(f"audits must be at least 0, got {self.audits!r}")


@dataclass
class Evaluation:
    """The outcome of a trial.

    Attributes:
        metrics: figures by name; `test/...` at full depth, `fast/...` with early exit, `<set>/...` for further sets.
        tables: rows for plots and reports: frontier, reliability by depth, belief by depth, usage, confusion, audits.
        warnings: what a reader must know before believing a figure.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    audits: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, prefix: str, figures: dict[str, float]) -> None:
        self.metrics |= {f"{prefix}/{name}": value for name, value in figures.items()}


def evaluate_classification(learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
    """Figures on the test split and on every further labelled set; for NBSR also by depth and by threshold."""
    evaluation = Evaluation()
    probs = learner.probabilities(splits.test.x)
    evaluation.add("test", metrics.classification_metrics(probs, splits.test.y))
    evaluation.metrics["model/parameters"] = float(learner.size)
    evaluation.tables["reliability"] = _reliability(probs, splits.test.y, depth=None)
    evaluation.tables["confusion"] = _confusion(probs, splits)
    for name, split in {"valid": splits.valid, **splits.extra}.items():
        evaluation.add(name, metrics.classification_metrics(learner.probabilities(split.x), split.y))
    if isinstance(learner, NbsrLearner):
        _evaluate_walks(evaluation, learner, splits, options)
    return evaluation


def _evaluate_walks(evaluation: Evaluation, learner: NbsrLearner, splits: Splits, options: EvaluationOptions) -> None:
    trace, y, graph = learner.trace(splits.test.x), splits.test.y, learner.model.graph
    valid, eta = learner.trace(splits.valid.x), options.eta
    if eta is None:
        eta = valid.frontier(splits.valid.y).cheapest(options.max_accuracy_loss)
    elif is_vacuous(eta, learner.model.prior):
        highest = float(dirichlet.entropy(learner.model.prior))
        evaluation.warnings.append(
            f"eta = {eta:g} is no test: the prior's own entropy, {highest:.2f}, is already below it, "
            "so every sample exits at depth 1"
        )
    evaluation.metrics |= {
        "test/mean_depth": float(trace.length.double().mean()),
        "test/mean_cost": float(trace.cost[-1].mean()),
        "test/vacuity": float((trace.prior.sum() / trace.precision[-1]).mean()),
    }
    if math.isfinite(eta):
        evaluation.metrics["fast/eta"] = eta
    elif trace.depth > 1:
        evaluation.warnings.append(
            f"every early exit costs more than {options.max_accuracy_loss:.1%} accuracy on the validation split: "
            "Fast walks deep"
        )
    _add_fast(evaluation, "fast", trace, splits.test, eta)
    _add_fast(evaluation, "valid/fast", valid, splits.valid, eta)
    for name, split in splits.extra.items():
        _add_fast(evaluation, f"{name}/fast", learner.trace(split.x), split, eta)
    if options.max_vacuity is not None:
        _add_abstention(evaluation, trace, y, options.max_vacuity)
    evaluation.tables["frontier"] = list(map(dict, trace.frontier(y, options.etas).rows()))
    evaluation.tables["belief"] = _belief_by_depth(trace)
    for depth in range(1, trace.depth + 1):
        probs = trace.probabilities(depth)
        evaluation.add(f"depth{depth}", metrics.classification_metrics(probs, y))
        evaluation.tables["reliability"] += _reliability(probs, y, depth)
    evaluation.tables["usage"] = [
        {"node": node.name, "level": node.level, "share": float(share)}
        for node, share in zip(graph.nodes, trace.usage, strict=True)
    ]
    mids = trace.usage[graph.levels[1].start : graph.levels[1].stop]
    evaluation.metrics["test/smallest_mid_usage"] = float(mids.min())
    if learner.admissible is not None:
        evaluation.metrics["test/routing_agreement"] = routing_agreement(trace, y, learner.admissible)
    for index in range(min(options.audits, len(trace))):
        evaluation.audits.append(_audit(trace, index, y, splits))


def _add_fast(evaluation: Evaluation, prefix: str, trace: BeliefTrace, split: Split, eta: float) -> None:
    stopped = trace.exit(eta)
    evaluation.add(prefix, metrics.classification_metrics(stopped.probs, split.y))
    evaluation.metrics |= {
        f"{prefix}/mean_depth": float(stopped.depth.double().mean()),
        f"{prefix}/exited": float((stopped.depth < trace.length).double().mean()),
    }


def _add_abstention(evaluation: Evaluation, trace: BeliefTrace, y: Tensor, max_vacuity: float) -> None:
    stopped = trace.exit(None, max_vacuity)
    answered = ~stopped.abstained
    correct = stopped.label == y
    evaluation.metrics["test/abstained"] = float(stopped.abstained.double().mean())
    if bool(answered.any()):
        evaluation.metrics["test/accuracy_answered"] = float(correct[answered].double().mean())


def routing_agreement(trace: BeliefTrace, y: Tensor, admissible: Tensor) -> float:
    """Share of samples whose first node owns their class: does the learned routing follow the taxonomy?"""
    first = trace.nodes[1]
    return float(admissible.to(y.device)[first, y].double().mean())


def _reliability(probs: Tensor, y: Tensor, depth: int | None) -> list[Row]:
    diagram = metrics.reliability(probs, y)
    edges = diagram.edges.tolist()
    columns = zip(diagram.confidence.tolist(), diagram.accuracy.tolist(), diagram.count.tolist(), strict=True)
    return [
        {"depth": depth, "low": low, "high": high, "confidence": confidence, "accuracy": accuracy, "count": count}
        for low, high, (confidence, accuracy, count) in zip(edges, edges[1:], columns, strict=False)
        if count
    ]


def _confusion(probs: Tensor, splits: Splits) -> list[Row]:
    table = metrics.confusion(probs.argmax(-1), splits.test.y, splits.num_classes)
    return [
        {"true": splits.class_names[i], "predicted": splits.class_names[j], "count": int(table[i, j])}
        for i, j in table.nonzero().tolist()
    ]


def _belief_by_depth(trace: BeliefTrace) -> list[Row]:
    rows: list[Row] = []
    for depth in range(trace.depth + 1):
        variance = dirichlet.variance(trace.belief(depth), validate_args=False).max(-1).values
        rows.append(
            {
                "depth": depth,
                "precision": float(trace.precision[depth].mean()),
                "entropy": float(trace.entropy[depth].double().mean()),
                "largest_variance": float(variance.double().mean()),
                "vacuity": float((trace.prior.sum() / trace.precision[depth]).mean()),
            }
        )
    return rows


def _audit(trace: BeliefTrace, index: int, y: Tensor, splits: Splits) -> dict[str, Any]:
    trail = trace.audit(index)
    return {
        "sample": index,
        "true": splits.class_names[int(y[index])],
        "predicted": splits.class_names[trail.steps[-1].prediction],
        "text": trail.render(splits.class_names),
        "steps": [
            {
                "node": step.node,
                "route_probability": step.route_probability,
                "alternatives": step.alternatives,
                "belief_shift": step.belief_shift,
                "entropy": step.entropy,
                "vacuity": step.vacuity,
                "prediction": splits.class_names[step.prediction],
                "confidence": step.confidence,
            }
            for step in trail.steps
        ],
    }
