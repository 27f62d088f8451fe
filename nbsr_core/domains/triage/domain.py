"""Active clinical triage as studies see it."""

from __future__ import annotations

from typing import Any, ClassVar

from nbsr_core.domains.base import Splits
from nbsr_core.domains.domain import Answer, Domain, Question
from nbsr_core.domains.triage.data import TriageData, TriageSplits, load
from nbsr_core.domains.triage.evaluation import evaluate_triage
from nbsr_core.domains.triage.learners import TriageLearner
from nbsr_core.domains.triage.models import MODELS
from nbsr_core.domains.triage.story import tell
from nbsr_core.errors import InputError
from nbsr_core.evaluation import Evaluation, EvaluationOptions
from nbsr_core.learners import Learner

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
