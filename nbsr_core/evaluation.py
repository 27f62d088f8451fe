"""What is known of a trained model: figures, tables and warnings, the same for every model of a domain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nbsr_core import dirichlet, metrics
from nbsr_core.domains.base import Splits
from nbsr_core.errors import InputError
from nbsr_core.exits import check_max_vacuity, is_vacuous
from nbsr_core.learners import Learner, NbsrLearner
from nbsr_core.trace import BeliefTrace
from nbsr_core.walk_tables import (
    Row,
    audit_walks,
    belief_rows,
    edge_rows,
    entropy_rows,
    frontier_rows,
    raw_reliability_rows,
    reliability_rows,
    risk_coverage_rows,
    separation_rows,
    usage_rows,
)


@dataclass(frozen=True)
class EvaluationOptions:
    """What to look at after training.

    Attributes:
        eta: exit threshold of the Fast operating point; None chooses it on the validation split.
        max_accuracy_loss: what the chosen threshold may cost there, as a share of the samples.
        max_nll_loss: what it may cost in nats instead, where accuracy says little (language); None goes by accuracy.
        etas: thresholds of the frontier; None takes all that make a difference.
        max_vacuity: abstain above it; None never does.
        audits: walks of test samples to keep.
    """

    eta: float | None = None
    max_accuracy_loss: float = 0.005
    max_nll_loss: float | None = None
    etas: tuple[float, ...] | None = None
    max_vacuity: float | None = None
    audits: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.max_accuracy_loss < 1:
            raise InputError(f"max_accuracy_loss must lie in [0, 1), got {self.max_accuracy_loss!r}")
        if self.max_nll_loss is not None and not 0 <= self.max_nll_loss < math.inf:
            raise InputError(f"max_nll_loss must be a finite number >= 0 or None, got {self.max_nll_loss!r}")
        check_max_vacuity(self.max_vacuity)
        if self.audits < 0:
            raise InputError(f"audits must be at least 0, got {self.audits!r}")


@dataclass
class Evaluation:
    """The outcome of a trial.

    Attributes:
        metrics: figures by name; `test/...` at full depth, `fast/...` with early exit, `<set>/...` for further sets.
        tables: rows for plots and reports, see `nbsr_core.walk_tables`.
        audits: walks of some test samples in full.
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
    probs, y = learner.probabilities(splits.test.x), learner.labels(splits.test.y)
    evaluation.add("test", metrics.classification_metrics(probs, y))
    evaluation.metrics["model/parameters"] = float(learner.size)
    evaluation.tables["reliability"] = reliability_rows(probs, y, depth=None)
    evaluation.tables["confusion"] = _confusion(probs, y, splits)
    confidence, label = probs.max(-1)
    evaluation.tables["risk_coverage"] = risk_coverage_rows("confidence", confidence, label == y)
    for name, split in {"valid": splits.valid, **splits.extra}.items():
        evaluation.add(name, metrics.classification_metrics(learner.probabilities(split.x), learner.labels(split.y)))
    if isinstance(learner, NbsrLearner):
        _evaluate_walks(evaluation, learner, splits, options)
    return evaluation


def _evaluate_walks(evaluation: Evaluation, learner: NbsrLearner, splits: Splits, options: EvaluationOptions) -> None:
    trace, y = learner.trace(splits.test.x), learner.labels(splits.test.y)
    valid, valid_y, eta = learner.trace(splits.valid.x), learner.labels(splits.valid.y), options.eta
    if eta is None:
        eta = valid.frontier(valid_y).cheapest(options.max_accuracy_loss, max_nll_loss=options.max_nll_loss)
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
    elif trace.depth > 1 and options.eta is None:
        evaluation.warnings.append(
            f"every early exit costs more than {_allowance(options)} on the validation split: Fast walks deep"
        )
    _add_fast(evaluation, "fast", trace, y, eta)
    _add_fast(evaluation, "valid/fast", valid, valid_y, eta)
    extra = {name: learner.trace(split.x) for name, split in splits.extra.items()}
    for name, split in splits.extra.items():
        walks, labels = extra[name], learner.labels(split.y)
        _add_fast(evaluation, f"{name}/fast", walks, labels, eta)
        _add_depths(evaluation, f"{name}/depth", walks, labels)
        _add_routing(evaluation, name, walks, labels, learner)
    if options.max_vacuity is not None:
        _add_abstention(evaluation, trace, y, options.max_vacuity)
    evaluation.tables["frontier"] = frontier_rows(trace, y, options.etas)
    evaluation.tables["belief"] = belief_rows(trace)
    _add_depths(evaluation, "depth", trace, y)
    for depth in range(1, trace.depth + 1):
        evaluation.tables["reliability"] += reliability_rows(trace.probabilities(depth), y, depth)
    _add_walk_tables(evaluation, {"test": trace, **extra}, y)
    _add_routing(evaluation, "test", trace, y, learner)
    evaluation.audits = audit_walks(
        learner.model, trace, y, splits, count=options.audits, eta=eta, max_vacuity=options.max_vacuity
    )


def _add_walk_tables(evaluation: Evaluation, traces: Mapping[str, BeliefTrace], y: Tensor) -> None:
    trace = traces["test"]
    evaluation.tables["reliability_raw"] = raw_reliability_rows(trace, y)
    correct = trace.belief(trace.depth).argmax(-1).cpu() == y.cpu()
    evaluation.tables["risk_coverage"] += risk_coverage_rows("precision", trace.precision[-1], correct)
    evaluation.tables["entropy"] = entropy_rows(traces)
    evaluation.tables["separation"] = separation_rows(traces)
    evaluation.tables["usage"] = usage_rows(trace)
    evaluation.tables["edges"] = edge_rows(trace)


def _allowance(options: EvaluationOptions) -> str:
    if options.max_nll_loss is None:
        return f"{options.max_accuracy_loss:.1%} accuracy"
    return f"{options.max_nll_loss:g} nats"


def _add_fast(evaluation: Evaluation, prefix: str, trace: BeliefTrace, y: Tensor, eta: float) -> None:
    stopped = trace.exit(eta)
    evaluation.add(prefix, metrics.classification_metrics(stopped.probs, y))
    evaluation.metrics |= {
        f"{prefix}/mean_depth": float(stopped.depth.double().mean()),
        f"{prefix}/exited": float((stopped.depth < trace.length).double().mean()),
    }


def _add_depths(evaluation: Evaluation, prefix: str, trace: BeliefTrace, y: Tensor) -> None:
    for depth in range(1, trace.depth + 1):
        evaluation.add(f"{prefix}{depth}", metrics.classification_metrics(trace.probabilities(depth), y))


def _add_routing(evaluation: Evaluation, prefix: str, trace: BeliefTrace, y: Tensor, learner: NbsrLearner) -> None:
    first = learner.model.graph.levels[1]
    evaluation.metrics[f"{prefix}/smallest_mid_usage"] = float(trace.usage[first.start : first.stop].min())
    if learner.admissible is not None:
        evaluation.metrics[f"{prefix}/routing_agreement"] = routing_agreement(trace, y, learner.admissible)


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


def _confusion(probs: Tensor, y: Tensor, splits: Splits) -> list[Row]:
    table = metrics.confusion(probs.argmax(-1), y, splits.num_classes)
    return [
        {"true": splits.class_names[i], "predicted": splits.class_names[j], "count": int(table[i, j])}
        for i, j in table.nonzero().tolist()
    ]
