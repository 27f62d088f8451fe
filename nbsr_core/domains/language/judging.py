"""What is known of a trained language model: perplexity beside the grammar's own, and what it does with the unknown."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.domains.base import Splits
from nbsr_core.domains.language import grammar
from nbsr_core.domains.language.data import LanguageSplits
from nbsr_core.domains.language.grammar import PAD
from nbsr_core.evaluation import Evaluation, EvaluationOptions
from nbsr_core.learners import Learner, NbsrLearner
from nbsr_core.walk_tables import Row


def add_perplexities(evaluation: Evaluation) -> None:
    """Beside every NLL its perplexity, `exp(nll)`, under the same name."""
    figures = [(name, value) for name, value in evaluation.metrics.items() if name.endswith("/nll")]
    for name, value in figures:
        evaluation.metrics[name.removesuffix("nll") + "perplexity"] = math.exp(value)


def add_bound(evaluation: Evaluation, learner: Learner, splits: Splits) -> None:
    """The grammar's perplexity: exactly (`bound`), and of the very test sentences (`ceiling/test`)."""
    if tuple(splits.class_names) != grammar.VOCABULARY:
        return
    figures = metrics.classification_metrics(
        grammar.next_token_probabilities(splits.test.x), learner.labels(splits.test.y)
    )
    evaluation.add("ceiling/test", {name: figures[name] for name in ("accuracy", "ece", "nll")})
    evaluation.metrics["bound/perplexity"] = grammar.bound()


def add_abstentions(
    evaluation: Evaluation, learner: Learner, splits: LanguageSplits, options: EvaluationOptions
) -> None:
    """How often a model would rather not go on from known and unknown prompts; a softmax always does."""
    for name, prompts in splits.prompts.items():
        if not isinstance(learner, NbsrLearner):
            evaluation.metrics[f"{name}/abstained"] = 0.0
        elif options.max_vacuity is not None:
            vacuity = vacuity_after(learner, prompts)
            evaluation.metrics[f"{name}/abstained"] = float((vacuity > options.max_vacuity).double().mean())
            evaluation.metrics[f"{name}/vacuity"] = float(vacuity.double().mean())


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
