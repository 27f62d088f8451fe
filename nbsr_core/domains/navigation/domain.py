"""Navigation as a domain: its data, its policies, how they are judged and how an episode is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from nbsr_core.domains.domain import Answer, Domain, Question, Signature
from nbsr_core.domains.navigation.episode import explain_episode
from nbsr_core.domains.navigation.evaluation import evaluate, navigation_figures
from nbsr_core.domains.navigation.models import MODELS
from nbsr_core.domains.navigation.service import NextMove
from nbsr_core.domains.navigation.tasks import NavigationData, load
from nbsr_core.domains.service import Service
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions
from nbsr_core.learning.learners import Learner
from nbsr_core.learning.splits import Splits


class Navigation(Domain):
    """Which way to go, from what a 5x5 view shows now and showed before."""

    name = "navigation"
    data = NavigationData
    models: ClassVar = MODELS
    shown: ClassVar = (
        "success",
        "halts",
        "ece",
        "ece_raw",
        "nll",
        "mean_depth",
        "alien_overlay/halts",
        "alien_replacing/halts",
        "alien/crashes",
    )

    def load(self, data: Any, seed: int) -> Splits:
        return load(data, seed)

    def figures(self, data: Any, sets: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str]:
        return navigation_figures(data, sets, learner, options)

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        return evaluate(learner, splits, options)

    def explain(self, learner: Learner, splits: Splits, question: Question) -> Answer | None:
        return explain_episode(learner, splits, question)

    def service(self, learner: Learner, signature: Signature) -> Service:
        """Takes the frames of episodes, says what to do at each."""
        return NextMove(learner, signature.class_names, signature.feature_names)
