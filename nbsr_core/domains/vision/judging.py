"""What vision adds to a classification's figures: leaves, a target share of early exits, and inputs of another kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.domains.vision.data import VisionSplits
from nbsr_core.evaluation.abstention import NEVER, threshold
from nbsr_core.evaluation.answers import OF_ANSWERS
from nbsr_core.evaluation.detectors import detectors_of, fit_detectors, look
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions
from nbsr_core.evaluation.walk_tables import entropy_rows, separation_rows
from nbsr_core.learning.learners import Answers, Learner, NbsrLearner
from nbsr_core.metrics import names
from nbsr_core.metrics.names import TEST
from nbsr_core.trace.belief_trace import BeliefTrace

EXIT_SHARE = 0.9
MIRRORED = "mirrored"
PRECISION, ENTROPY = "precision", "negative_entropy"


def vision_figures(unknown: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str]:
    """Names of the figures that are added here to those of a classification; `unknown` are the other kinds of sets."""
    walks = isinstance(learner, NbsrLearner)
    own = [PRECISION, ENTROPY] if walks else []
    if isinstance(learner, NbsrLearner) and learner.model.density is not None:
        own += [f"{score}_without_density" for score in own]
    scores = [*detectors_of(learner, options.all_detectors), *own]
    found = {f"ood/{name}/{kind}_{score}" for name in unknown for kind in ("auroc", "fpr95") for score in scores}
    if walks:
        found |= names.named("exit90", ("eta", "exited", "accuracy", "accuracy_loss", "ece"))
        found |= names.named(names.TEST, ("smallest_leaf_usage", "leaf_agreement"))
    found |= {f"ood/{name}/{kind}" for name in unknown for kind in ("auroc", "fpr95")}
    if options.max_vacuity != NEVER:
        found |= {f"ood/{name}/abstained" for name in unknown}
    if options.mirror:
        found |= names.named(MIRRORED, OF_ANSWERS)
    return found


def add_mirrored(evaluation: Evaluation, learner: Learner, splits: VisionSplits) -> None:
    """What a model reaches that is asked twice, about a picture and its mirror image, and takes the mean.

    Published accuracies are often of this kind; to the end of a walk, whatever the model.
    """
    test = splits.test
    if test.x.ndim != 4:
        evaluation.warnings.append("evaluation.mirror: features of data.oracle have no mirror image; drop it")
        return
    plain, mirrored = learner.answers(test), learner.answers(replace(test, x=test.x.flip(-1)))
    mean = Answers((plain.probs + mirrored.probs) / 2, (plain.raw + mirrored.raw) / 2, plain.labels)
    evaluation.add_answers(MIRRORED, mean)


def add_leaves(evaluation: Evaluation, learner: NbsrLearner, splits: VisionSplits) -> None:
    """Whether walks end where their class lives, and whether any leaf is left idle."""
    trace, y, graph = learner.trace(splits.test.x), splits.test.y, learner.model.graph
    last = trace.nodes.gather(0, trace.length.unsqueeze(0)).squeeze(0)
    leaves = torch.tensor(graph.is_leaf)
    evaluation.metrics[names.test("smallest_leaf_usage")] = float(trace.usage[leaves].min())
    if learner.admissible is not None:
        evaluation.metrics[names.test("leaf_agreement")] = float(learner.admissible[last, y].double().mean())


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
    """How well each detector, and a model's own doubt, tells each out-of-distribution set from the test pictures.

    A model without a belief of its own doubts by the detector that `options.doubt` names, and abstains by it where it
    is less sure than of `options.answered` of the validation pictures, as NBSR's largest vacuity is chosen.
    """
    sets = {TEST: splits.test.x, **splits.ood}
    seen = {name: look(learner, x) for name, x in sets.items()}
    detectors = fit_detectors(learner, splits, options)
    scores = {detector: {name: score(said) for name, said in seen.items()} for detector, score in detectors.items()}
    own: str = options.doubt
    if isinstance(learner, NbsrLearner):
        traces = {name: learner.trace(x) for name, x in sets.items()}
        scores |= _own_scores(traces)
        own = PRECISION
        # The histograms of a report show these sets beside the test split too.
        evaluation.tables["entropy"] = entropy_rows(traces)
        evaluation.tables["separation"] = separation_rows(traces)
        doubts = {name: trace.exit(None).vacuity for name, trace in traces.items()}
        limit = evaluation.metrics.get(names.test("max_vacuity"))
        if learner.model.density is not None:
            with _without_density(learner):
                alone = _own_scores({name: learner.trace(x) for name, x in sets.items()})
            scores |= {f"{score}_without_density": alone[score] for score in alone}
    else:
        doubts = {name: -score for name, score in scores[own].items()}
        known = -detectors[own](look(learner, splits.valid.x))
        limit = None if options.max_vacuity == NEVER else threshold(known, options.answered)
    _add_separation(evaluation, scores, own)
    if limit is not None:
        for name in splits.ood:
            evaluation.metrics[f"ood/{name}/abstained"] = float((doubts[name] > limit).double().mean())


Scores = dict[str, Float[Tensor, " N"]]
"""By set of pictures; larger for what a model takes for known."""


def _own_scores(traces: dict[str, BeliefTrace]) -> dict[str, Scores]:
    """What only a belief has to say of the unknown."""
    return {
        PRECISION: {name: trace.precision[-1].double() for name, trace in traces.items()},
        ENTROPY: {name: -trace.entropy[-1].double() for name, trace in traces.items()},
    }


def _add_separation(evaluation: Evaluation, scores: dict[str, Scores], own: str) -> None:
    """AUROC and FPR95 by score; `own` is the doubt that the model itself abstains by, which has the plain names too."""
    for score, by_set in scores.items():
        for name in [name for name in by_set if name != TEST]:
            for figure, compute in (("auroc", metrics.auroc), ("fpr95", metrics.fpr95)):
                value = compute(by_set[TEST], by_set[name])
                evaluation.metrics[f"ood/{name}/{figure}_{score}"] = value
                if score == own:
                    evaluation.metrics[f"ood/{name}/{figure}"] = value


@contextmanager
def _without_density(learner: NbsrLearner) -> Iterator[None]:
    density, learner.model.density = learner.model.density, None
    try:
        yield
    finally:
        learner.model.density = density
