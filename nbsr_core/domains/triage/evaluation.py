"""What a policy is worth: its frontier of accuracy against cost, and the points on it that validation chose."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nbsr_core import metrics
from nbsr_core.domains.triage.learners import TriageLearner
from nbsr_core.domains.triage.story import tell
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions, evaluate_classification
from nbsr_core.evaluation.walk_tables import Row, belief_rows, entropy_rows
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.metrics import names
from nbsr_core.metrics.names import named
from nbsr_core.model.acquisition import AcquisitionTrace
from nbsr_core.trace.exits import is_vacuous

PAPER_ETAS = torch.linspace(-110.0, -400.0, 30, dtype=torch.float64).tolist()
LOSSES = {"peak_1": 0.01, "peak_5": 0.05}
"""How far below the best accuracy at any threshold: the paper's 'peak - 1%' and 'peak - 5%'."""


OF_A_POINT = ("accuracy", "ece", "mean_cost", "mean_depth", "exited")


def evaluate_triage(learner: TriageLearner, splits: Splits, options: EvaluationOptions) -> Evaluation:
    """Full information, then every threshold, all read off one rollout a split."""
    evaluation = evaluate_classification(learner, splits, options)
    valid = learner.trace(splits.valid.x)
    on_valid = valid.frontier(splits.valid.y)
    etas = {name: on_valid.cheapest(loss, "mean_cost") for name, loss in LOSSES.items()}
    etas["fast"] = on_valid.cheapest(options.max_accuracy_loss, "mean_cost") if options.eta is None else options.eta
    if options.eta is not None and learner.model.stop == "dirichlet" and is_vacuous(options.eta, valid.prior):
        evaluation.warnings.append(f"eta = {options.eta:g} is no test: the prior's own entropy is already below it")
    evaluation.metrics |= {names.fast(f"eta_{name}"): eta for name, eta in etas.items() if math.isfinite(eta)}
    if math.isfinite(etas["fast"]):
        evaluation.metrics[names.ETA] = etas["fast"]
    for name, split in {"test": splits.test, "valid": splits.valid, **splits.extra}.items():
        trace = valid if name == "valid" else learner.trace(split.x)
        _add_frontier(evaluation, name, trace, split)
        for point in LOSSES:
            _add_point(evaluation, f"{name}/chosen_{point}", trace, split, etas[point])
        _add_point(evaluation, names.place(name, names.FAST), trace, split, etas["fast"])
    # The most rows tell most: the noise draws of the test rows, where there are some.
    name, split = next(iter(splits.extra.items()), ("test", splits.test))
    trace = learner.trace(split.x)
    evaluation.tables["frontier"] = list(map(dict, trace.frontier(split.y, options.etas).rows()))
    if learner.model.stop == "dirichlet":
        evaluation.tables["frontier_paper_etas"] = list(map(dict, trace.frontier(split.y, PAPER_ETAS).rows()))
    shares = torch.nn.functional.one_hot(trace.bought, len(learner.model.panels)).double().mean(1)
    evaluation.tables["orders"] = [
        {"step": step + 1, "panel": panel, "share": float(share)}
        for step, row in enumerate(shares)
        for panel, share in zip(learner.model.panels.names, row, strict=True)
    ]
    # As a graph: every step is a level, and a node is a panel bought in that step.
    evaluation.tables["belief"] = belief_rows(trace)
    evaluation.tables["entropy"] = entropy_rows({name: trace})
    start: Row = {"node": "start", "level": 0, "share": 1.0}
    evaluation.tables["usage"] = [
        start,
        *(
            {"node": f"{row['step']}. {row['panel']}", "level": row["step"], "share": row["share"]}
            for row in evaluation.tables["orders"]
        ),
    ]
    for index in range(min(options.audits, len(splits.test))):
        story = tell(learner, splits, index, etas["fast"])
        evaluation.audits.append({**story.to_json(), "text": story.render()})
    return evaluation


def triage_figures(sets: Sequence[str]) -> set[str]:
    """Names of the figures that `evaluate_triage` adds to those of a classification."""
    found = {names.ETA, *(names.fast(f"eta_{name}") for name in (*LOSSES, "fast"))}
    for name in ("test", "valid", *sets):
        found |= named(name, ("mean_cost", "mean_depth", "peak", "area", *(f"cost_at_{point}" for point in LOSSES)))
        places = [names.place(name, names.FAST), *(f"{name}/chosen_{point}" for point in LOSSES)]
        found = found.union(*(named(place, OF_A_POINT) for place in places))
    return found


def _add_frontier(evaluation: Evaluation, name: str, trace: AcquisitionTrace, split: Split) -> None:
    frontier = trace.frontier(split.y)
    figures = {
        "mean_cost": float(trace.cost[-1].mean()),
        "mean_depth": float(trace.length.double().mean()),
        "peak": frontier.peak,
        "area": frontier.area(chance=1 / len(trace.prior)),
        **{f"cost_at_{point}": frontier.cost_within(loss) for point, loss in LOSSES.items()},
    }
    evaluation.add(name, figures)


def _add_point(evaluation: Evaluation, where: str, trace: AcquisitionTrace, split: Split, eta: float) -> None:
    stopped = trace.exit(eta)
    rows = torch.arange(len(trace))
    figures = {
        "accuracy": metrics.accuracy(stopped.probs, split.y),
        "ece": metrics.ece(stopped.probs, split.y),
        "mean_cost": float(trace.cost[stopped.depth, rows].mean()),
        "mean_depth": float(stopped.depth.double().mean()),
        "exited": float((stopped.depth < trace.length).double().mean()),
    }
    evaluation.add(where, figures)
