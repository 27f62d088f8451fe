"""What a policy is worth: its accuracy at every budget, its frontier against cost, the points that validation chose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from nbsr_core import metrics
from nbsr_core.domains.acquisition.learners import AcquisitionLearner
from nbsr_core.domains.acquisition.story import tell
from nbsr_core.evaluation.answers import OF_ANSWERS, answer_figures
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions, evaluate_classification
from nbsr_core.evaluation.walk_tables import Row, belief_rows, entropy_rows
from nbsr_core.learning.learners import Answers, Learner, answers_of_walks
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.metrics import names
from nbsr_core.metrics.names import TEST, VALID, named
from nbsr_core.model.acquisition import AcquisitionTrace
from nbsr_core.trace.exits import is_vacuous

PAPER_ETAS = torch.linspace(-110.0, -400.0, 30, dtype=torch.float64).tolist()
LOSSES = {"peak_1": 0.01, "peak_5": 0.05}
"""How far below the best accuracy at any threshold: the paper's 'peak - 1%' and 'peak - 5%'."""

SPENDING = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
"""Without budgets, accuracy is told where these shares of the price of everything are spent on average."""

OF_A_POINT = ("accuracy", "ece", "mean_cost", "mean_depth", "exited")


def evaluate_acquisition(
    learner: AcquisitionLearner, splits: Splits, options: EvaluationOptions, case: str
) -> Evaluation:
    """With all that can be paid, then every threshold, all read off one rollout for each split; then every budget."""
    with learner.remembering():
        evaluation = evaluate_classification(learner, splits, options)
        sets = {TEST: splits.test, VALID: splits.valid, **splits.extra}
        traces = {name: learner.trace(split.x) for name, split in sets.items()}
        etas = _thresholds(evaluation, learner, traces[VALID], splits.valid, options)
        for name, split in sets.items():
            _add_frontier(evaluation, name, traces[name], split, spending_of(learner))
            for point in LOSSES:
                _add_point(evaluation, f"{name}/chosen_{point}", traces[name], split, etas[point])
            _add_point(evaluation, names.place(name, names.FAST), traces[name], split, etas["fast"])
            for budget in learner.budgets:
                _add_budget(evaluation, name, learner, split, budget)
        # The most rows tell most: the noise draws of the test rows, where there are some.
        name = next(iter(splits.extra), TEST)
        _add_tables(evaluation, learner, traces[name], name, sets[name], etas["fast"], options)
        evaluation.tables["stops"] = stop_rows(traces[name], sets[name], etas["fast"], splits.class_names)
        for index in _told(traces[TEST], splits.test, etas["fast"], options.audits):
            story = tell(learner, splits, index, etas["fast"], case)
            evaluation.audits.append({**story.to_json(), "text": story.render()})
    return evaluation


def _told(trace: AcquisitionTrace, split: Split, eta: float, count: int) -> list[int]:
    """Whose stories are told: the first cases, and the last of them makes room for one that stopped early and was
    answered right, where no other did.
    """
    stopped = trace.exit(eta)
    good = ((stopped.depth < trace.length) & (stopped.label == split.y)).nonzero().flatten().tolist()
    first = list(range(min(count, len(split))))
    return [*first[:-1], good[0]] if first and good and good[0] not in first else first


def acquisition_figures(learner: Learner, sets: Sequence[str]) -> set[str]:
    """Names of the figures that `evaluate_acquisition` adds to those of a classification."""
    if not isinstance(learner, AcquisitionLearner):
        return set()
    of_a_budget = (*OF_ANSWERS, "mean_cost", *(("auroc",) if learner.model.num_classes == 2 else ()))
    found = {names.ETA, *(names.fast(f"eta_{name}") for name in (*LOSSES, "fast"))}
    for name in (TEST, VALID, *sets):
        found |= named(name, ("mean_cost", "mean_depth", "peak", "area", *(f"cost_at_{point}" for point in LOSSES)))
        places = [names.place(name, names.FAST), *(f"{name}/chosen_{point}" for point in LOSSES)]
        found = found.union(*(named(place, OF_A_POINT) for place in places))
        found = found.union(*(named(budget_set(name, budget), of_a_budget) for budget in learner.budgets))
        found |= {f"{spending_set(name, spent)}/accuracy" for spent in spending_of(learner)}
    return found


def budget_set(data: str, budget: float) -> str:
    """What figures under a budget are called: `budget/5`, `valid/budget/5`."""
    return f"budget/{budget:g}" if data == TEST else f"{data}/budget/{budget:g}"


def spending_of(learner: AcquisitionLearner) -> tuple[float, ...]:
    """Mean costs at which accuracy is told; none where budgets are given, since orders then serve these."""
    return () if learner.budgets else tuple(share * sum(learner.model.panels.costs) for share in SPENDING)


def spending_set(data: str, mean_cost: float) -> str:
    """What figures are called where so much is spent on average: `spending/25`, `noise_draws/spending/25`."""
    return f"spending/{mean_cost:g}" if data == TEST else f"{data}/spending/{mean_cost:g}"


def _thresholds(
    evaluation: Evaluation,
    learner: AcquisitionLearner,
    valid: AcquisitionTrace,
    split: Split,
    options: EvaluationOptions,
) -> Mapping[str, float]:
    """At which doubt rollouts stop, as the validation split has it."""
    frontier = valid.frontier(split.y)
    etas = {name: frontier.cheapest(loss, "mean_cost") for name, loss in LOSSES.items()}
    etas["fast"] = frontier.cheapest(options.max_accuracy_loss, "mean_cost") if options.eta is None else options.eta
    if options.eta is not None and learner.model.stop == "dirichlet" and is_vacuous(options.eta, valid.prior):
        evaluation.warnings.append(f"eta = {options.eta:g} is no test: the prior's own entropy is already below it")
    evaluation.metrics |= {names.fast(f"eta_{name}"): eta for name, eta in etas.items() if math.isfinite(eta)}
    if math.isfinite(etas["fast"]):
        evaluation.metrics[names.ETA] = etas["fast"]
    return etas


def _add_budget(evaluation: Evaluation, name: str, learner: AcquisitionLearner, split: Split, budget: float) -> None:
    """What a policy says that spends no more than the budget, and as much of it as it can."""
    said, spent = answers_within(learner, split, budget)
    where = budget_set(name, budget)
    if name == VALID:
        evaluation.add(where, answer_figures(said))
    else:
        evaluation.add_answers(where, said)  # sample by sample too, so that policies can be compared in pairs
    evaluation.add(where, {"mean_cost": spent})
    if said.probs.shape[1] == 2 and bool((said.labels == 0).any()) and bool((said.labels == 1).any()):
        score = said.probs[:, 1].double()
        evaluation.add(where, {"auroc": metrics.auroc(score[said.labels == 1], score[said.labels == 0])})


def answers_within(learner: AcquisitionLearner, split: Split, budget: float) -> tuple[Answers, float]:
    """The answers under a budget and the mean cost: a rollout of its own, unless a longer one tells it too."""
    if not learner.one_rollout_for_all:
        trace = learner.trace(split.x, budget)
        return answers_of_walks(trace, learner.labels(split.y)), float(trace.cost[-1].mean())
    trace, steps = learner.trace(split.x), learner.model.panels.steps_within(budget)
    probs, raw = trace.probabilities(steps).cpu(), trace.raw_probabilities(steps).cpu()
    return Answers(probs, raw, learner.labels(split.y)), float(trace.cost[steps].mean())


def _add_frontier(
    evaluation: Evaluation, name: str, trace: AcquisitionTrace, split: Split, spending: Sequence[float]
) -> None:
    frontier, chance = trace.frontier(split.y), 1 / len(trace.prior)
    figures = {
        "mean_cost": float(trace.cost[-1].mean()),
        "mean_depth": float(trace.length.double().mean()),
        "peak": frontier.peak,
        "area": frontier.area(chance),
        **{f"cost_at_{point}": frontier.cost_within(loss) for point, loss in LOSSES.items()},
    }
    evaluation.add(name, figures)
    for spent in spending:
        evaluation.add(spending_set(name, spent), {"accuracy": frontier.accuracy_for(spent, chance)})


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


def _add_tables(
    evaluation: Evaluation,
    learner: AcquisitionLearner,
    trace: AcquisitionTrace,
    name: str,
    split: Split,
    eta: float,
    options: EvaluationOptions,
) -> None:
    evaluation.tables["frontier"] = list(map(dict, trace.frontier(split.y, options.etas).rows()))
    if learner.model.stop == "dirichlet":
        evaluation.tables["frontier_paper_etas"] = list(map(dict, trace.frontier(split.y, PAPER_ETAS).rows()))
    evaluation.tables["orders"] = order_rows(trace, learner.model.panels.names, eta)
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


def order_rows(trace: AcquisitionTrace, panels: Sequence[str], eta: float) -> list[Row]:
    """Which share of the cases buys each panel at each step; panels that hardly anybody buys then are left out.

    `share` is as if nobody stopped early, `paid` is of those who have not stopped at eta.
    """
    rows: list[Row] = []
    depth = trace.exit(eta).depth
    for step, bought in enumerate(trace.bought, start=1):
        here = (bought[bought >= 0], bought[(bought >= 0) & (depth >= step)])
        shares, paid = ((torch.bincount(made, minlength=len(panels)).double() / len(trace)).tolist() for made in here)
        kept: list[Row] = [
            {"step": step, "panel": panel, "share": share, "paid": still}
            for panel, share, still in zip(panels, shares, paid, strict=True)
            if share > 0 or len(panels) <= MOST_SHOWN
        ]
        rows += kept
    return rows


MOST_SHOWN = 12
"""With more panels than this, those that nobody buys at a step are not listed there."""


def stop_rows(trace: AcquisitionTrace, split: Split, eta: float, class_names: Sequence[str]) -> list[Row]:
    """For whom a rollout stops early: by true class, what is spent and how often the answer is right."""
    stopped = trace.exit(eta)
    spent = trace.cost[stopped.depth, torch.arange(len(trace))]
    right, y = (stopped.label == split.y).double(), split.y
    rows: list[Row] = []
    for number, name in enumerate(class_names):
        here = y == number
        if bool(here.any()):
            rows.append(
                {
                    "name": name,
                    "cases": int(here.sum()),
                    "mean_cost": float(spent[here].mean()),
                    "mean_depth": float(stopped.depth[here].double().mean()),
                    "stopped_early": float((stopped.depth < trace.length)[here].double().mean()),
                    "accuracy": float(right[here].mean()),
                }
            )
    return rows
