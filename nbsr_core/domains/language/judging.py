"""What is known of a trained language model: perplexity beside the grammar's own, and what it does with the unknown."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.domains.language import grammar
from nbsr_core.domains.language.counts import WordCounts
from nbsr_core.domains.language.data import LanguageData, LanguageSplits
from nbsr_core.domains.language.grammar import PAD
from nbsr_core.domains.language.reading import Strangeness, strangeness
from nbsr_core.evaluation.abstention import NEVER, threshold
from nbsr_core.evaluation.detectors import detectors_of, factor_of, fit_detectors, look
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions
from nbsr_core.evaluation.walk_tables import Row
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.metrics import names
from nbsr_core.metrics.names import VALID

OF_CEILING = ("accuracy", "ece", "nll")
KNOWN, COUNTS, DISTANCE = "known", "counts", "mahalanobis"

# Most logits of training tokens that detectors are fitted on (256 MB): all of the grammar's, a part of a real text's.
MOST_LOGITS = 2**26


def language_figures(data: LanguageData, known: set[str], learner: Learner, options: EvaluationOptions) -> set[str]:
    """The figures of a classification, and all that is added to them here."""
    found, unknown = set(known), ["scrambled"]
    if data.source == "grammar":
        found |= names.named(names.place(of_ceiling=True), OF_CEILING) | {"bound/perplexity"}
        unknown.append("unk")
    found |= {_perplexity_of(name) for name in found if names.last_part(name) == "nll"}
    prompts = [KNOWN, *unknown]
    doubts = ["", *(f"_{detector}" for detector in (*detectors_of(learner, options.all_detectors), COUNTS))]
    found |= {f"{name}/auroc{doubt}" for name in unknown for doubt in doubts}
    if options.max_vacuity != NEVER:
        found |= {f"{name}/abstained{doubt}" for name in prompts for doubt in doubts}
    return found | {f"{name}/vacuity" for name in prompts if isinstance(learner, NbsrLearner)}


def add_perplexities(evaluation: Evaluation) -> None:
    """Beside every NLL its perplexity, `exp(nll)`, under the same name."""
    figures = [(name, value) for name, value in evaluation.metrics.items() if names.last_part(name) == "nll"]
    for name, value in figures:
        evaluation.metrics[_perplexity_of(name)] = math.exp(value)


def _perplexity_of(nll: str) -> str:
    """The name beside that of an NLL."""
    return str(replace(names.parse(nll), figure="perplexity"))


def add_bound(evaluation: Evaluation, learner: Learner, splits: Splits) -> None:
    """The grammar's perplexity: exactly (`bound`), and of the very test sentences (`ceiling/test`)."""
    if tuple(splits.class_names) != grammar.VOCABULARY:
        return
    figures = metrics.classification_metrics(
        grammar.next_token_probabilities(splits.test.x), learner.labels(splits.test.y)
    )
    evaluation.add(names.place(of_ceiling=True), {name: figures[name] for name in OF_CEILING})
    evaluation.metrics["bound/perplexity"] = grammar.bound()


def add_abstentions(
    evaluation: Evaluation, learner: Learner, splits: LanguageSplits, options: EvaluationOptions
) -> None:
    """How often a model would rather not go on from known and unknown prompts, and how well it tells them apart.

    By its own doubt (`abstained`, `auroc`), which is NBSR's vacuity, with the threshold of the evaluation, or else the
    detector that `options.doubt` names; and by every detector (`abstained_knn`, `auroc_knn`, ...), whose threshold
    follows from all tokens of the validation sentences by the same rule. A table of word counts, `counts`, stands
    beside them: it knows no model, so its figures are the same for every model.
    """
    scores = _detector_scores(learner, splits, options)
    for detector, by_set in scores.items():
        limit = None if options.max_vacuity == NEVER else threshold(-by_set[VALID], options.answered)
        doubts = {name: -by_set[name] for name in splits.prompts}
        _add_doubts(evaluation, f"_{detector}", doubts, limit)
        if detector == options.doubt and not isinstance(learner, NbsrLearner):
            _add_doubts(evaluation, "", doubts, limit)
    if isinstance(learner, NbsrLearner):
        doubts = {name: vacuity_after(learner, x) for name, x in splits.prompts.items()}
        evaluation.metrics |= {f"{name}/vacuity": float(doubt.double().mean()) for name, doubt in doubts.items()}
        _add_doubts(evaluation, "", doubts, evaluation.metrics.get(names.test("max_vacuity")))


Doubts = dict[str, Float[Tensor, " N"]]
"""About the token after each prompt of a set."""


def _add_doubts(evaluation: Evaluation, suffix: str, doubts: Doubts, limit: float | None) -> None:
    for name, doubt in doubts.items():
        if limit is not None:
            evaluation.metrics[f"{name}/abstained{suffix}"] = float((doubt > limit).double().mean())
        if name != KNOWN and KNOWN in doubts:
            evaluation.metrics[f"{name}/auroc{suffix}"] = metrics.auroc(-doubts[KNOWN].double(), -doubt.double())


def _detector_scores(
    learner: Learner, splits: LanguageSplits, options: EvaluationOptions
) -> dict[str, dict[str, Float[Tensor, " rows"]]]:
    """By detector and set: for every token of the validation sentences, for the last one of each prompt.

    Distances (`mahalanobis`) are measured as in NBSR's belief, by word and place: see `strangeness`.
    """
    counts, part = WordCounts(splits.train.x, splits.num_classes), _in_part(splits)
    detectors = fit_detectors(learner, part, options)
    strange = _strangeness(learner, part, options) if detectors.pop(DISTANCE, None) else None
    scores: dict[str, dict[str, Tensor]] = {name: {} for name in (*detectors, *([DISTANCE] if strange else []), COUNTS)}
    for name, x in {VALID: splits.valid.x, **splits.prompts}.items():
        rows = last_rows(x) if name in splits.prompts else torch.arange(int((x != PAD).sum()))
        seen = look(learner, x)  # dropped before the next set: over many words it is large
        if strange is not None and seen.inside is not None:
            scores[DISTANCE][name] = -strange(seen.inside.features, x)[rows].double()
        seen = seen.rows(rows)
        for detector, score in detectors.items():
            scores[detector][name] = score(seen)
        scores[COUNTS][name] = counts.score(x)[rows]
    return scores


def _strangeness(learner: Learner, splits: LanguageSplits, options: EvaluationOptions) -> Strangeness:
    features = learner.inside(splits.train.x).features
    density = factor_of(options.mahalanobis, features.shape[1])
    return strangeness(density, features, splits.train.x, splits.num_classes)


def _in_part(splits: LanguageSplits) -> LanguageSplits:
    """With no more training sentences, evenly spaced, than detectors can hold the logits of."""
    train = splits.train
    step = math.ceil(train.x.numel() * splits.num_classes / MOST_LOGITS)
    return replace(splits, train=Split(train.x[::step], train.y[::step])) if step > 1 else splits


@torch.no_grad()
def vacuity_after(learner: NbsrLearner, prompts: Int[Tensor, "N T"]) -> Float[Tensor, " N"]:
    """`W / alpha_0` of the token after each prompt."""
    predicted = learner.model.predict(prompts.to(learner.model.prior.device))
    return predicted.vacuity.cpu()[last_rows(prompts)]


def last_rows(x: Int[Tensor, "N T"]) -> Int[Tensor, " N"]:
    """Of the flattened rows of all tokens that are not padding, the last one of each sentence."""
    return (x != PAD).sum(1).cumsum(0) - 1


def depth_by_token(learner: NbsrLearner, splits: Splits, eta: float | None) -> list[Row]:
    """Mean depth of the walk that predicts each token: which words are easy?"""
    depth = learner.trace(splits.test.x).exit_depth(eta).double().cpu()
    y = learner.labels(splits.test.y)
    count = y.bincount(minlength=splits.num_classes)
    mean = y.bincount(depth, minlength=splits.num_classes) / count
    return [
        {"token": splits.class_names[token], "count": int(count[token]), "mean_depth": float(mean[token])}
        for token in count.nonzero().squeeze(1).tolist()
    ]
