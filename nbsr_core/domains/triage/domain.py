"""Active clinical triage as studies see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from nbsr_core.domains.domain import Answer, Domain, Preview, Question, Signature
from nbsr_core.domains.service import Service
from nbsr_core.domains.triage.data import TriageData, TriageSplits, load
from nbsr_core.domains.triage.evaluation import evaluate_triage, triage_figures
from nbsr_core.domains.triage.learners import TriageLearner
from nbsr_core.domains.triage.models import MODELS
from nbsr_core.domains.triage.service import NextPanel
from nbsr_core.domains.triage.story import tell
from nbsr_core.errors import InputError
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions, classification_figures
from nbsr_core.learning.learners import Learner
from nbsr_core.learning.splits import Splits

# The threshold of an explanation: the cheapest that costs at most this much accuracy on the validation split.
EXPLAINED_LOSS = 0.01


class Triage(Domain):
    """12 free features and five panels with prices: which to buy, in which order, and when to stop."""

    name = "triage"
    builds_on = ("medical",)
    data = TriageData
    models: ClassVar = MODELS
    shown: ClassVar = (
        "noise_draws/accuracy",
        "noise_draws/area",
        "noise_draws/cost_at_peak_1",
        "noise_draws/chosen_peak_1/accuracy",
        "noise_draws/chosen_peak_1/mean_cost",
    )

    def load(self, data: Any, seed: int) -> TriageSplits:
        return load(data, seed)

    def preview(self, data: Any) -> Preview:
        """With one noise draw for many, which take most of the time."""
        return super().preview(replace(data, draws=min(data.draws, 1)))

    def figures(self, data: Any, sets: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str]:
        return classification_figures(learner, sets, options) | triage_figures(sets)

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Classification with full information, and the frontier of accuracy against cost."""
        if not isinstance(learner, TriageLearner):
            raise InputError(f"triage judges learners that buy panels, got {type(learner).__name__}")
        return evaluate_triage(learner, splits, options)

    def explain(self, learner: Learner, splits: Splits, question: Question) -> Answer | None:
        """One patient's purchases, with the threshold that validation chose and what would have been bought next."""
        if not isinstance(learner, TriageLearner):
            return None
        for name in ("prompt", "episode"):
            if getattr(question, name) is not None:
                raise InputError(f"triage has no {name} to explain; give a sample of its test split")
        sample = question.sample or 0
        if not 0 <= sample < len(splits.test):
            raise InputError(f"sample must be from 0 to {len(splits.test) - 1}, rows of the test split; got {sample}")
        eta = learner.trace(splits.valid.x).frontier(splits.valid.y).cheapest(EXPLAINED_LOSS, "mean_cost")
        story = tell(learner, splits, sample, eta)
        note = "SYNTHETIC data: " if splits.synthetic else ""
        head = f"Patient {sample} of {len(splits.test)}; {note}{splits.source}"
        data = {"source": splits.source, "synthetic": splits.synthetic, **story.to_json()}
        return Answer(text=f"{head}\n{story.render()}", data=data, svg=story.draw())

    def service(self, learner: Learner, signature: Signature) -> Service:
        """Answers with what was bought so far, and says what to buy next."""
        return NextPanel(learner, signature.class_names, signature.feature_names)
