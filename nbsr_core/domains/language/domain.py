"""The language domain as studies see it: sentences or real text, heads on one transformer, explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from nbsr_core.domains.domain import Answer, Domain, Question, Signature
from nbsr_core.domains.language.data import LanguageData, LanguageSplits, load
from nbsr_core.domains.language.explanation import explain
from nbsr_core.domains.language.judging import (
    add_abstentions,
    add_bound,
    add_perplexities,
    depth_by_token,
    language_figures,
)
from nbsr_core.domains.language.models import MOE, NBSR_KIND, REFERENCES, STANDARD
from nbsr_core.domains.language.service import NextWord
from nbsr_core.domains.service import Service
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions, classification_figures
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Splits
from nbsr_core.metrics import names


class Language(Domain):
    """Next-token prediction; root -> Syntactic / Semantic -> Function, Modifiers / Abstract, Concrete."""

    name = "language"
    data = LanguageData
    models: ClassVar = {
        "nbsr": NBSR_KIND,
        "standard": STANDARD,
        "moe": MOE,
        **REFERENCES,
    }
    shown: ClassVar = (
        "perplexity",
        "ece",
        "ece_raw",
        "mean_depth",
        "unk/abstained",
        "scrambled/abstained",
        "known/abstained",
        "*/auroc",
    )

    def load(self, data: Any, seed: int) -> LanguageSplits:
        return load(data, seed)

    def figures(self, data: Any, sets: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str]:
        return language_figures(data, classification_figures(learner, sets, options), learner, options)

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Classification of every token, perplexities, the grammar's own as the ceiling, and abstention by prompt."""
        evaluation = super().evaluate(learner, splits, options)
        add_bound(evaluation, learner, splits)
        add_perplexities(evaluation)
        if isinstance(splits, LanguageSplits):
            add_abstentions(evaluation, learner, splits, options)
        if isinstance(learner, NbsrLearner):
            evaluation.tables["depth_by_token"] = depth_by_token(learner, splits, evaluation.metrics.get(names.ETA))
        return evaluation

    def explain(self, learner: Learner, splits: Splits, question: Question) -> Answer | None:
        """The trace of a prompt, see `nbsr_core.domains.language.explanation`."""
        return explain(learner, splits, question)

    def service(self, learner: Learner, signature: Signature) -> Service:
        """Takes a text, says the next word."""
        return NextWord(learner, signature.class_names, signature.feature_names)
