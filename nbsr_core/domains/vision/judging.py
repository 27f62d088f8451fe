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
from nbsr_core.walk_tables import Row

EXIT_SHARE = 0.9
BINS = 40


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
    known = _scores(learner, splits.test.x)
    rows: list[Row] = []
    alone = None
    if isinstance(learner, NbsrLearner) and learner.model.density is not None:
        with _without_density(learner):
            alone = _scores(learner, splits.test.x)
    sets = {name: _scores(learner, x) for name, x in splits.ood.items()}
    for score, inside in known.items():
        rows += _histograms(score, {"test": inside, **{name: scores[score] for name, scores in sets.items()}})
    for name, scores in sets.items():
        for score, inside in known.items():
            evaluation.metrics[f"ood/{name}/auroc_{score}"] = metrics.auroc(inside, scores[score])
            evaluation.metrics[f"ood/{name}/fpr95_{score}"] = metrics.fpr95(inside, scores[score])
        if alone is not None and isinstance(learner, NbsrLearner):
            with _without_density(learner):
                outside = _scores(learner, splits.ood[name])
            for score in ("precision", "negative_entropy"):
                auroc = metrics.auroc(alone[score], outside[score])
                evaluation.metrics[f"ood/{name}/auroc_{score}_without_density"] = auroc
        if options.max_vacuity is not None and isinstance(learner, NbsrLearner):
            abstained = learner.trace(splits.ood[name]).exit(None, options.max_vacuity).abstained
            evaluation.metrics[f"ood/{name}/abstained"] = float(abstained.double().mean())
    evaluation.tables["ood"] = rows


def _scores(learner: Learner, x: Tensor) -> dict[str, Float[Tensor, " N"]]:
    """Measures of certainty, larger for what a model takes for known."""
    if not isinstance(learner, NbsrLearner):
        return {"confidence": learner.probabilities(x).max(-1).values.double()}
    trace: BeliefTrace = learner.trace(x)
    return {
        "confidence": trace.probabilities().max(-1).values.double(),
        "precision": trace.precision[-1].double(),
        "negative_entropy": -trace.entropy[-1].double(),
    }


def _histograms(score: str, by_set: dict[str, Float[Tensor, " N"]]) -> list[Row]:
    """Counts in equal bins over all sets; precision spans decades, so its bins are equal in its logarithm."""
    values = {name: value.log10() if score == "precision" else value for name, value in by_set.items()}
    low = min(float(value.min()) for value in values.values())
    high = max(float(value.max()) for value in values.values())
    edges = torch.linspace(low, high if high > low else low + 1, BINS + 1, dtype=torch.float64)
    rows: list[Row] = []
    for name, value in values.items():
        places = (torch.bucketize(value.contiguous(), edges, right=True) - 1).clamp(0, BINS - 1)
        for place, count in enumerate(places.bincount(minlength=BINS).tolist()):
            ends = edges[place : place + 2]
            shown = (10**ends if score == "precision" else ends).tolist()
            rows.append({"set": name, "score": score, "low": shown[0], "high": shown[1], "count": count})
    return rows


@contextmanager
def _without_density(learner: NbsrLearner) -> Iterator[None]:
    density, learner.model.density = learner.model.density, None
    try:
        yield
    finally:
        learner.model.density = density
