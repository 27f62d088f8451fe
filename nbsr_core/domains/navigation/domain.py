"""Navigation as a domain: its data, its policies, how they are judged and how an episode is told."""

from __future__ import annotations

from typing import Any, ClassVar

from nbsr_core.domains.base import Splits
from nbsr_core.domains.domain import Answer, Domain, Question
from nbsr_core.domains.navigation.episode import explain_episode
from nbsr_core.domains.navigation.evaluation import evaluate
from nbsr_core.domains.navigation.models import MODELS
from nbsr_core.domains.navigation.tasks import NavigationData, load
from nbsr_core.evaluation import Evaluation, EvaluationOptions
from nbsr_core.learners import Learner


class Navigation(Domain):
    """Which way to go, from what a 5x5 view shows now and showed before."""

    name = "navigation"
    data = NavigationData
    models: ClassVar = MODELS
    shown: ClassVar = (
        "success",
        "halts",
        "mean_depth",
        "alien_overlay/halts",
        "alien_replacing/halts",
        "alien/crashes",
    )

    def load(self, data: Any, seed: int) -> Splits:
        return load(data, seed)

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        return evaluate(learner, splits, options)

    def explain(self, learner: Learner, splits: Splits, question: Question) -> Answer | None:
        return explain_episode(learner, splits, question)
