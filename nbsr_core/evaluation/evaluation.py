"""What is known of a trained model: figures, tables and warnings, the same for every model of a domain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
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
from nbsr_core.learning.learners import Answers, Learner, NbsrLearner, StopsEarly
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.metrics.names import ETA, FAST, PARAMETERS, TEST, TO_THE_END, VALID, at_depth, named, place
from nbsr_core.options.specs import EvaluationOptions as EvaluationOptions
from nbsr_core.trace.belief_trace import BeliefTrace
from nbsr_core.trace.by_depth import ByDepth
from nbsr_core.trace.exits import is_vacuous

# Beside the figures of an answer, of a use with early exit.
OF_EXITS = ("mean_depth", "exited", "mean_macs")
PRUNED = "pruned"


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

    A few may be missing for good reasons: there is no `fast/eta` where no early exit is worth it, and no `mean_macs`
    where multiply-adds cannot be counted.
    """
    alike = OF_ANSWERS
    found = {PARAMETERS, *temperature_names(learner, options), *named(TEST, (*OF_GUARANTEES, "mean_macs"))}.union(
        *(named(name, alike) for name in (TEST, VALID, *sets))
    )
    walks = isinstance(learner, NbsrLearner)
    if walks or isinstance(learner, StopsEarly):
        found |= {ETA, *named(TEST, ("mean_depth", "mean_cost"))}
        found = found.union(*(named(place(name, FAST), (*alike, *OF_EXITS)) for name in (TEST, VALID, *sets)))
        found = found.union(*(named(place(name, at_depth("*")), alike) for name in (TEST, *sets)))
        found |= named(place(TEST, at_depth("*")), OF_GUARANTEES)
    if not walks:
        return found if options.max_vacuity == NEVER else found | named(TEST, (MAX_DOUBT, *OF_ABSTENTION))
    found |= named(TEST, ("vacuity",))
    for name in (TEST, *sets):
        found |= named(name, ("smallest_mid_usage", "routing_agreement"))
    if options.prune is not None:
        found |= named(PRUNED, (*alike, "experts", "parameters"))
    if options.max_vacuity == NEVER:
        return found
    return found.union(*(named(use, ("max_vacuity", *OF_ABSTENTION)) for use in (TEST, FAST)))


def exit_threshold(figures: Mapping[str, float | None]) -> float | None:
    """The threshold of early exit behind figures; None where nobody exits early.

    Infinite thresholds are no figures: without a number, either nobody exited early or everybody did.
    """
    eta = figures.get(ETA)
    return math.inf if eta is None and figures.get(f"{FAST}/exited") else eta


def evaluate_classification(learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
    """Figures on the test split and on every further labelled set; by depth and threshold where a model can stop."""
    evaluation = Evaluation()
    said = learner.answers(splits.test)
    probs, y = said.probs, said.labels
    evaluation.add_answers(TEST, said)
    evaluation.metrics[PARAMETERS] = float(learner.size)
    work = learner.macs(splits.test.x)
    evaluation.add(TEST, {} if work is None else {"mean_macs": work})
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
        return evaluation
    if isinstance(learner, StopsEarly):
        walks = {name: learner.by_depth(split.x) for name, split in _sets(splits).items()}
        labels = {name: learner.labels(split.y) for name, split in _sets(splits).items()}
        _add_exits(evaluation, walks, labels, options)
    if options.max_vacuity != NEVER:
        use = by_confidence(probs, y, valid.probs)
        limit = threshold(use.valid, options.answered)
        evaluation.add(TEST, {MAX_DOUBT: limit, **abstention_figures(use, limit)})
    return evaluation


def _evaluate_walks(evaluation: Evaluation, learner: NbsrLearner, splits: Splits, options: EvaluationOptions) -> None:
    traces = {name: learner.trace(split.x) for name, split in _sets(splits).items()}
    labels = {name: learner.labels(split.y) for name, split in _sets(splits).items()}
    trace, valid, y = traces[TEST], traces[VALID], labels[TEST]
    if options.eta is not None and is_vacuous(options.eta, learner.model.prior):
        highest = float(dirichlet.entropy(learner.model.prior))
        evaluation.warnings.append(
            f"eta = {options.eta:g} is no test: the prior's own entropy, {highest:.2f}, is already below it, "
            "so every sample exits at depth 1"
        )
    eta = _add_exits(evaluation, traces, labels, options)
    evaluation.add(TEST, {"vacuity": float((trace.prior.sum() / trace.precision[-1]).mean())})
    limit = _add_abstention(evaluation, TO_THE_END, (trace, y), valid, None, options)
    _add_abstention(evaluation, FAST, (trace, y), valid, eta, options)
    evaluation.tables["belief"] = belief_rows(trace)
    judged = {name: walks for name, walks in traces.items() if name != VALID}
    _add_walk_tables(evaluation, judged, y)
    for name, walks in judged.items():
        _add_routing(evaluation, name, walks, labels[name], learner)
    if options.prune is not None:
        _add_pruned(evaluation, learner, splits, valid, options.prune)
    evaluation.audits = audit_walks(learner.model, trace, y, splits, count=options.audits, eta=eta, max_vacuity=limit)


def _sets(splits: Splits) -> dict[str, Split]:
    return {TEST: splits.test, VALID: splits.valid, **splits.extra}


def _add_exits(
    evaluation: Evaluation, walks: Mapping[str, ByDepth], labels: Mapping[str, Tensor], options: EvaluationOptions
) -> float:
    """Figures by depth and with early exit, of any model that can stop; returns the threshold that it stops at.

    Unless the study has one, the threshold is chosen on the validation split.
    """
    test, y, eta = walks[TEST], labels[TEST], options.eta
    if eta is None:
        frontier = walks[VALID].frontier(labels[VALID])
        eta = frontier.cheapest(options.max_accuracy_loss, max_nll_loss=options.max_nll_loss)
    to_the_end = {"mean_depth": float(test.length.double().mean()), "mean_cost": float(test.cost[-1].mean())}
    evaluation.add(TEST, to_the_end | _macs(test, test.length))
    if math.isfinite(eta):
        evaluation.metrics[ETA] = eta
    elif test.depth > 1 and options.eta is None:
        evaluation.warnings.append(
            f"every early exit costs more than {_allowance(options)} on the validation split: Fast walks deep"
        )
    for name, said in walks.items():
        _add_fast(evaluation, name, said, labels[name], eta)
        if name != VALID:
            _add_depths(evaluation, name, said, labels[name])
    evaluation.tables["frontier"] = frontier_rows(test, y, options.etas)
    for depth in range(1, test.depth + 1):
        kept = guarantee_figures(_at(walks[VALID], labels[VALID], depth), _at(test, y, depth), options)
        evaluation.add(place(TEST, at_depth(depth)), kept)
        evaluation.tables["reliability"] += reliability_rows(test.probabilities(depth), y, depth)
    return eta


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


def _add_fast(evaluation: Evaluation, data: str, trace: ByDepth, y: Tensor, eta: float) -> None:
    stopped = trace.exit(eta)
    said = Answers(stopped.probs, trace.raw_probabilities(stopped.depth), y)
    evaluation.add_answers(data, said, FAST, early=stopped.depth == 1 if trace.depth > 1 else None)
    figures = {
        "mean_depth": float(stopped.depth.double().mean()),
        "exited": float((stopped.depth < trace.length).double().mean()),
    }
    evaluation.add(place(data, FAST), figures | _macs(trace, stopped.depth))


def _macs(trace: ByDepth, depth: Tensor) -> dict[str, float]:
    """Mean multiply-adds of walks that stop at these depths, where they were counted."""
    if trace.macs is None:
        return {}
    return {"mean_macs": float(trace.macs[depth, torch.arange(len(trace), device=depth.device)].mean())}


def _add_depths(evaluation: Evaluation, data: str, trace: ByDepth, y: Tensor) -> None:
    for depth in range(1, trace.depth + 1):
        evaluation.add_answers(data, _at(trace, y, depth), at_depth(depth))


def _at(trace: ByDepth, y: Tensor, depth: int) -> Answers:
    """What walks say that are cut at a depth."""
    return Answers(trace.probabilities(depth), trace.raw_probabilities(depth), y)


def _add_routing(evaluation: Evaluation, data: str, trace: BeliefTrace, y: Tensor, learner: NbsrLearner) -> None:
    mids = trace.graph.first_choices
    figures = {"smallest_mid_usage": float(trace.usage[mids.start : mids.stop].min())}
    if learner.admissible is not None:
        figures["routing_agreement"] = routing_agreement(trace, y, learner.admissible)
    evaluation.add(data, figures)


def _add_pruned(
    evaluation: Evaluation, learner: NbsrLearner, splits: Splits, valid: BeliefTrace, min_share: float
) -> None:
    """The paper's implicit pruning made real: what is left, and what it reaches on the test split."""
    whole, smaller = learner.model, learner.model.pruned(valid.usage, min_share)
    learner.model = smaller
    try:
        figures = answer_figures(learner.answers(splits.test))
    finally:
        learner.model = whole
    parameters = sum(parameter.numel() for parameter in smaller.parameters())
    evaluation.add(PRUNED, {**figures, "experts": float(smaller.graph.num_experts), "parameters": float(parameters)})


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
    limit = threshold(answers.valid, options.answered) if options.max_vacuity is None else options.max_vacuity
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
