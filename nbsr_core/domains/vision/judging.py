"""What vision adds to a classification's figures: leaves, a target share of early exits, and inputs of another kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.domains.vision.data import VisionSplits
from nbsr_core.evaluation import Evaluation, EvaluationOptions
from nbsr_core.learners import Learner, NbsrLearner
from nbsr_core.trace import BeliefTrace
from nbsr_core.walk_tables import entropy_rows, separation_rows

EXIT_SHARE = 0.9


def add_leaves(evaluation: Evaluation, learner: NbsrLearner, splits: VisionSplits) -> None:
    """Whether walks end where their class lives, and whether any leaf is left idle."""
    trace, y, graph = learner.trace(splits.test.x), splits.test.y, learner.model.graph
    last = trace.nodes.gather(0, trace.length.unsqueeze(0)).squeeze(0)
    leaves = torch.tensor(graph.is_leaf)
    evaluation.metrics["test/smallest_leaf_usage"] = float(trace.usage[leaves].min())
    if learner.admissible is not None:
        evaluation.metrics["test/leaf_agreement"] = float(learner.admissible[last, y].double().mean())


def add_early_exit(evaluation: Evaluation, learner: NbsrLearner, splits: VisionSplits) -> None:
    """What it costs to let 90% of the pictures stop at depth 1; the threshold comes from the validation split."""
    valid, trace, y = learner.trace(splits.valid.x), learner.trace(splits.test.x), splits.test.y
    if trace.depth < 2:
        return
    eta = float(valid.entropy[1].double().quantile(EXIT_SHARE))
    stopped = trace.exit(eta)
    accuracy, full = metrics.accuracy(stopped.probs, y), metrics.accuracy(trace.probabilities(), y)
    evaluation.add(
        "exit90",
        {
            "eta": eta,
            "exited": float((stopped.depth < trace.length).double().mean()),
            "accuracy": accuracy,
            "accuracy_loss": full - accuracy,
            "ece": metrics.ece(stopped.probs, y),
        },
    )


def add_unknown(evaluation: Evaluation, learner: Learner, splits: VisionSplits, options: EvaluationOptions) -> None:
    """How well a model's own doubt tells each out-of-distribution set from the test pictures."""
    sets = {"test": splits.test.x, **splits.ood}
    if not isinstance(learner, NbsrLearner):
        confidence = {name: learner.probabilities(x).max(-1).values.double() for name, x in sets.items()}
        _add_separation(evaluation, {"confidence": confidence})
        return
    traces = {name: learner.trace(x) for name, x in sets.items()}
    _add_separation(evaluation, _doubts(traces))
    # The histograms of a report show these sets beside the test split too.
    evaluation.tables["entropy"] = entropy_rows(traces)
    evaluation.tables["separation"] = separation_rows(traces)
    if options.max_vacuity is not None:
        for name in splits.ood:
            abstained = traces[name].exit(None, options.max_vacuity).abstained
            evaluation.metrics[f"ood/{name}/abstained"] = float(abstained.double().mean())
    if learner.model.density is not None:
        with _without_density(learner):
            alone = _doubts({name: learner.trace(x) for name, x in sets.items()})
        _add_separation(evaluation, {f"{score}_without_density": alone[score] for score in alone})


Scores = dict[str, Float[Tensor, " N"]]


def _doubts(traces: dict[str, BeliefTrace]) -> dict[str, Scores]:
    """Measures of certainty by name, for each set of pictures; larger for what a model takes for known."""
    return {
        "confidence": {name: trace.probabilities().max(-1).values.double() for name, trace in traces.items()},
        "precision": {name: trace.precision[-1].double() for name, trace in traces.items()},
        "negative_entropy": {name: -trace.entropy[-1].double() for name, trace in traces.items()},
    }


def _add_separation(evaluation: Evaluation, scores: dict[str, Scores]) -> None:
    for score, by_set in scores.items():
        for name in [name for name in by_set if name != "test"]:
            evaluation.metrics[f"ood/{name}/auroc_{score}"] = metrics.auroc(by_set["test"], by_set[name])
            evaluation.metrics[f"ood/{name}/fpr95_{score}"] = metrics.fpr95(by_set["test"], by_set[name])


@contextmanager
def _without_density(learner: NbsrLearner) -> Iterator[None]:
    density, learner.model.density = learner.model.density, None
    try:
        yield
    finally:
        learner.model.density = density
