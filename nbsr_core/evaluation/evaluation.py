"""What is known of a trained model: figures, tables and warnings, the same for every model of a domain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nbsr_core import metrics
from nbsr_core.belief import dirichlet
from nbsr_core.evaluation import samples
from nbsr_core.evaluation.abstention import (
    MAX_DOUBT,
    NEVER,
    OF_ABSTENTION,
    Use,
    abstention_figures,
    by_confidence,
    threshold,
)
from nbsr_core.evaluation.after_training import temperature_names
from nbsr_core.evaluation.answers import OF_ANSWERS, answer_figures
from nbsr_core.evaluation.guarantees import OF_GUARANTEES, guarantee_figures
from nbsr_core.evaluation.walk_tables import (
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
from nbsr_core.learning.learners import Answers, Learner, NbsrLearner
from nbsr_core.learning.splits import Splits
from nbsr_core.metrics.names import ETA, FAST, PARAMETERS, TEST, TO_THE_END, VALID, at_depth, named, place
from nbsr_core.options.specs import EvaluationOptions as EvaluationOptions
from nbsr_core.trace.belief_trace import BeliefTrace
from nbsr_core.trace.exits import is_vacuous


@dataclass
class Evaluation:
    """The outcome of a trial.

    Attributes:
        metrics: figures by name, see `nbsr_core.metrics.names`.
        tables: rows for plots and reports, see `nbsr_core.evaluation.walk_tables` and, for the answers to single
            samples, `nbsr_core.evaluation.samples`.
        audits: walks of some test samples in full.
        warnings: what a reader must know before believing a figure.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    audits: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, where: str, figures: Mapping[str, float]) -> None:
        """Add figures under the names that `nbsr_core.metrics.names.named` gives them."""
        self.metrics |= {f"{where}/{name}": value for name, value in figures.items()}

    def add_answers(self, data: str, said: Answers, use: str = TO_THE_END, *, early: Tensor | None = None) -> None:
        """Add the figures of what a model said to a labelled set, and of a test set also sample by sample."""
        self.add(place(data, use), answer_figures(said))
        if samples.are_kept(data, use):
            kept = samples.sample_row(data, use, said.probs, said.labels, early)
            self.tables.setdefault(samples.TABLE, []).append(kept)


def classification_figures(learner: Learner, sets: Sequence[str], options: EvaluationOptions) -> set[str]:
    """Names of all figures that `evaluate_classification` may give; `*` stands for any depth.

    A few may be missing for good reasons: there is no `fast/eta` where no early exit is worth it.
    """
    alike = OF_ANSWERS
    found = {PARAMETERS, *temperature_names(learner, options), *named(TEST, OF_GUARANTEES)}.union(
        *(named(name, alike) for name in (TEST, VALID, *sets))
    )
    if not isinstance(learner, NbsrLearner):
        return found if options.max_vacuity == NEVER else found | named(TEST, (MAX_DOUBT, *OF_ABSTENTION))
    found |= {ETA, *named(TEST, ("mean_depth", "mean_cost", "vacuity"))}
    for name in (TEST, VALID, *sets):
        found |= named(place(name, FAST), (*alike, "mean_depth", "exited"))
    found |= named(place(TEST, at_depth("*")), OF_GUARANTEES)
    for name in (TEST, *sets):
        found |= named(place(name, at_depth("*")), alike)
        found |= named(name, ("smallest_mid_usage", "routing_agreement"))
    if options.max_vacuity == NEVER:
        return found
    return found.union(*(named(use, ("max_vacuity", *OF_ABSTENTION)) for use in (TEST, FAST)))


def evaluate_classification(learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
    """Figures on the test split and on every further labelled set; for NBSR also by depth and by threshold."""
    evaluation = Evaluation()
    said = learner.answers(splits.test)
    probs, y = said.probs, said.labels
    evaluation.add_answers(TEST, said)
    evaluation.metrics[PARAMETERS] = float(learner.size)
    evaluation.tables["reliability"] = reliability_rows(probs, y, depth=None)
    evaluation.tables["confusion"] = _confusion(probs, y, splits)
    confidence, label = probs.max(-1)
    evaluation.tables["risk_coverage"] = risk_coverage_rows("confidence", confidence, label == y)
    valid = learner.answers(splits.valid)
    evaluation.add_answers(VALID, valid)
    evaluation.add(TEST, guarantee_figures(valid, said, options))
    for name, split in splits.extra.items():
        evaluation.add_answers(name, learner.answers(split))
    if isinstance(learner, NbsrLearner):
        _evaluate_walks(evaluation, learner, splits, options)
    elif options.max_vacuity != NEVER:
        use = by_confidence(probs, y, valid.probs)
        limit = threshold(use.valid)
        evaluation.add(TEST, {MAX_DOUBT: limit, **abstention_figures(use, limit)})
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
    evaluation.add(
        TEST,
        {
            "mean_depth": float(trace.length.double().mean()),
            "mean_cost": float(trace.cost[-1].mean()),
            "vacuity": float((trace.prior.sum() / trace.precision[-1]).mean()),
        },
    )
    if math.isfinite(eta):
        evaluation.metrics[ETA] = eta
    elif trace.depth > 1 and options.eta is None:
        evaluation.warnings.append(
            f"every early exit costs more than {_allowance(options)} on the validation split: Fast walks deep"
        )
    _add_fast(evaluation, TEST, trace, y, eta)
    _add_fast(evaluation, VALID, valid, valid_y, eta)
    extra = {name: learner.trace(split.x) for name, split in splits.extra.items()}
    for name, split in splits.extra.items():
        walks, labels = extra[name], learner.labels(split.y)
        _add_fast(evaluation, name, walks, labels, eta)
        _add_depths(evaluation, name, walks, labels)
        _add_routing(evaluation, name, walks, labels, learner)
    limit = _add_abstention(evaluation, TO_THE_END, (trace, y), valid, None, options)
    _add_abstention(evaluation, FAST, (trace, y), valid, eta, options)
    evaluation.tables["frontier"] = frontier_rows(trace, y, options.etas)
    evaluation.tables["belief"] = belief_rows(trace)
    _add_depths(evaluation, TEST, trace, y)
    for depth in range(1, trace.depth + 1):
        kept = guarantee_figures(_at(valid, valid_y, depth), _at(trace, y, depth), options)
        evaluation.add(place(TEST, at_depth(depth)), kept)
        evaluation.tables["reliability"] += reliability_rows(trace.probabilities(depth), y, depth)
    _add_walk_tables(evaluation, {TEST: trace, **extra}, y)
    _add_routing(evaluation, TEST, trace, y, learner)
    evaluation.audits = audit_walks(learner.model, trace, y, splits, count=options.audits, eta=eta, max_vacuity=limit)


def _add_walk_tables(evaluation: Evaluation, traces: Mapping[str, BeliefTrace], y: Tensor) -> None:
    trace = traces[TEST]
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


def _add_fast(evaluation: Evaluation, data: str, trace: BeliefTrace, y: Tensor, eta: float) -> None:
    stopped = trace.exit(eta)
    said = Answers(stopped.probs, trace.raw_probabilities(stopped.depth), y)
    evaluation.add_answers(data, said, FAST, early=stopped.depth == 1 if trace.depth > 1 else None)
    figures = {
        "mean_depth": float(stopped.depth.double().mean()),
        "exited": float((stopped.depth < trace.length).double().mean()),
    }
    evaluation.add(place(data, FAST), figures)


def _add_depths(evaluation: Evaluation, data: str, trace: BeliefTrace, y: Tensor) -> None:
    for depth in range(1, trace.depth + 1):
        evaluation.add_answers(data, _at(trace, y, depth), at_depth(depth))


def _at(trace: BeliefTrace, y: Tensor, depth: int) -> Answers:
    """What walks say that are cut at a depth."""
    return Answers(trace.probabilities(depth), trace.raw_probabilities(depth), y)


def _add_routing(evaluation: Evaluation, data: str, trace: BeliefTrace, y: Tensor, learner: NbsrLearner) -> None:
    mids = trace.graph.first_choices
    figures = {"smallest_mid_usage": float(trace.usage[mids.start : mids.stop].min())}
    if learner.admissible is not None:
        figures["routing_agreement"] = routing_agreement(trace, y, learner.admissible)
    evaluation.add(data, figures)


def _add_abstention(
    evaluation: Evaluation,
    use: str,
    test: tuple[BeliefTrace, Tensor],
    valid: BeliefTrace,
    eta: float | None,
    options: EvaluationOptions,
) -> float | None:
    """Coverage and the error among the answered; returns the vacuity above which this use abstains, None for never."""
    if options.max_vacuity == NEVER:
        return None
    stopped, y = test[0].exit(eta), test[1]
    answers = Use(stopped.vacuity.cpu(), (stopped.label == y).cpu(), valid.exit(eta).vacuity.cpu())
    limit = threshold(answers.valid) if options.max_vacuity is None else options.max_vacuity
    evaluation.add(place(use=use), {"max_vacuity": limit, **abstention_figures(answers, limit)})
    return limit


def routing_agreement(trace: BeliefTrace, y: Tensor, admissible: Tensor) -> float:
    """Share of samples for which the first router that had a choice chose a node that owns their class.

    Does the learned routing follow the taxonomy?
    """
    chosen = trace.nodes[trace.graph.nodes[trace.graph.first_choices.start].level]
    return float(admissible.to(y.device)[chosen, y].double().mean())


def _confusion(probs: Tensor, y: Tensor, splits: Splits) -> list[Row]:
    table = metrics.confusion(probs.argmax(-1), y, splits.num_classes)
    return [
        {"true": splits.class_names[i], "predicted": splits.class_names[j], "count": int(table[i, j])}
        for i, j in table.nonzero().tolist()
    ]
