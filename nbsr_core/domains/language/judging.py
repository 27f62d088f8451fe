"""What is known of a trained language model: perplexity beside the grammar's own, and what it does with the unknown."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.domains.language import grammar
from nbsr_core.domains.language.data import LanguageData, LanguageSplits
from nbsr_core.domains.language.grammar import PAD
from nbsr_core.evaluation.abstention import NEVER
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions
from nbsr_core.evaluation.walk_tables import Row
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Splits
from nbsr_core.metrics import names

OF_CEILING = ("accuracy", "ece", "nll")


def language_figures(data: LanguageData, known: set[str], learner: Learner, options: EvaluationOptions) -> set[str]:
    """The figures of a classification, and all that is added to them here."""
    found, prompts = set(known), ["known", "scrambled"]
    if data.source == "grammar":
        found |= names.named(names.place(of_ceiling=True), OF_CEILING) | {"bound/perplexity"}
        prompts.append("unk")
    found |= {_perplexity_of(name) for name in found if names.last_part(name) == "nll"}
    if not isinstance(learner, NbsrLearner):
        return found | {f"{name}/abstained" for name in prompts}
    if options.max_vacuity == NEVER:
        return found
    found |= {f"{name}/auroc" for name in prompts if name != "known"}
    return found.union(*(names.named(name, ("abstained", "vacuity")) for name in prompts))


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


def add_abstentions(evaluation: Evaluation, learner: Learner, splits: LanguageSplits) -> None:
    """How often a model would rather not go on from known and unknown prompts; a softmax always does.

    The threshold is that of the evaluation. AUROC says how well vacuity tells unknown prompts from known ones.
    """
    vacuities: dict[str, Float[Tensor, " N"]] = {}
    for name, prompts in splits.prompts.items():
        if not isinstance(learner, NbsrLearner):
            evaluation.metrics[f"{name}/abstained"] = 0.0
        elif (limit := evaluation.metrics.get(names.test("max_vacuity"))) is not None:
            vacuity = vacuities[name] = vacuity_after(learner, prompts)
            evaluation.metrics[f"{name}/abstained"] = float((vacuity > limit).double().mean())
            evaluation.metrics[f"{name}/vacuity"] = float(vacuity.double().mean())
    for name in vacuities.keys() - {"known"} if "known" in vacuities else ():
        evaluation.metrics[f"{name}/auroc"] = metrics.auroc(-vacuities["known"].double(), -vacuities[name].double())


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
