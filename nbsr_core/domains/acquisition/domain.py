"""Tables whose columns have prices, as studies see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from nbsr_core.domains.acquisition.data import DRAWN, AcquisitionData
from nbsr_core.domains.acquisition.models import MODELS
from nbsr_core.domains.domain import Answer, Domain, Preview, Question, Signature
from nbsr_core.errors import InputError
from nbsr_core.metrics.names import CEILING
from nbsr_core.options.specs import EvaluationOptions

if TYPE_CHECKING:  # imported where data is loaded and models are built: options are checked without torch
    from nbsr_core.domains.service import Service
    from nbsr_core.evaluation.evaluation import Evaluation
    from nbsr_core.learning.learners import Learner
    from nbsr_core.learning.splits import Splits
    from nbsr_core.model.autoregressive import AutoregressiveNBSR

# The threshold of an explanation: the cheapest that costs at most this much accuracy on the validation split.
EXPLAINED_LOSS = 0.01


class Buying(Domain):
    """What all domains with prices share: figures at every price, the story of one case, what to buy next.

    Attributes:
        case: what a row of the data is called.
    """

    case: ClassVar[str] = "case"
    unusable: ClassVar = {"oracle_peeking": "peeks: no policy"}

    def figures(self, data: Any, sets: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str]:
        from nbsr_core.domains.acquisition.evaluation import acquisition_figures
        from nbsr_core.evaluation.evaluation import classification_figures

        return classification_figures(learner, sets, options) | acquisition_figures(learner, sets)

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Classification with all that can be paid, every threshold, and every budget."""
        from nbsr_core.domains.acquisition.evaluation import evaluate_acquisition
        from nbsr_core.domains.acquisition.learners import AcquisitionLearner

        if not isinstance(learner, AcquisitionLearner):
            raise InputError(f"{self.name} judges learners that buy panels, got {type(learner).__name__}")
        return evaluate_acquisition(learner, splits, options, self.case)

    def explain(self, learner: Learner, splits: Splits, question: Question) -> Answer | None:
        """One case's purchases, with the threshold that validation chose and what would have been bought next."""
        from nbsr_core.domains.acquisition.learners import AcquisitionLearner
        from nbsr_core.domains.acquisition.story import tell

        if not isinstance(learner, AcquisitionLearner):
            return None
        for name in ("prompt", "episode"):
            if getattr(question, name) is not None:
                raise InputError(f"{self.name} has no {name} to explain; give a sample of its test split")
        sample = question.sample or 0
        if not 0 <= sample < len(splits.test):
            raise InputError(f"sample must be from 0 to {len(splits.test) - 1}, rows of the test split; got {sample}")
        if question.budget is not None:
            self.service(learner, Signature.of(splits)).check_budget(question.budget)
        with _spending(learner.model, question.budget):
            eta = learner.trace(splits.valid.x).frontier(splits.valid.y).cheapest(EXPLAINED_LOSS, "mean_cost")
            story = tell(learner, splits, sample, eta, self.case)
        note = "SYNTHETIC data: " if splits.synthetic else ""
        limit = "" if question.budget is None else f"; for {question.budget:g} at most"
        head = f"{self.case.capitalize()} {sample} of {len(splits.test)}; {note}{splits.source}{limit}"
        data = {"source": splits.source, "synthetic": splits.synthetic, "budget": question.budget, **story.to_json()}
        return Answer(text=f"{head}\n{story.render()}", data=data, svg=story.draw())

    def service(self, learner: Learner, signature: Signature) -> Service:
        """Answers with what was bought so far, and says what to buy next."""
        from nbsr_core.domains.acquisition.service import NextPanel

        return NextPanel(learner, signature.class_names, signature.feature_names)


@contextmanager
def _spending(model: AutoregressiveNBSR, budget: float | None) -> Iterator[None]:
    """While a case is explained: a model that spends no more than this, its own budget where None."""
    own, model.budget = model.budget, model.budget if budget is None else budget
    try:
        yield
    finally:
        model.budget = own


class Acquisition(Buying):
    """Any table whose columns, or groups of columns, have prices: which to buy, in which order, and when to stop."""

    name = "acquisition"
    builds_on = ("table",)
    data = AcquisitionData
    models: ClassVar = MODELS
    shown: ClassVar = ("budget/*/accuracy", "accuracy", "nll", "area", "cost_at_peak_1")
    ceiling = (
        "of tables that are drawn, who knows the distribution and buys what tells most about the class next, the "
        "context first where there is one: a reference on 1,000 test rows, with nothing learned, and no bound for plans"
    )

    def load(self, data: Any, seed: int) -> Splits:
        from nbsr_core.domains.acquisition.tables import load

        return load(data, seed)

    def preview(self, data: Any) -> Preview:
        """Of a file that is read, with the kinds of its columns, as the table domain has it."""
        from nbsr_core.domains.table.data import preview_of

        return preview_of(self.load(data, 0))

    def figures(self, data: Any, sets: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str]:
        found = super().figures(data, sets, learner, options)
        if data.source in DRAWN:
            places = ("budget", "greedy/budget") if data.source == "cube_nm" else ("budget",)
            found |= {f"{CEILING}/{place}/{budget:g}/accuracy" for place in places for budget in data.budgets}
        return found

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """What policies reach, and beside it what can be reached where the distribution is known (`ceiling/...`)."""
        from nbsr_core.domains.acquisition.exact import exact_figures

        evaluation = super().evaluate(learner, splits, options)
        evaluation.metrics |= {f"{CEILING}/{name}": value for name, value in exact_figures(splits).items()}
        return evaluation

    def service(self, learner: Learner, signature: Signature) -> Service:
        """Of a file that was read, cells as they stand in it."""
        from nbsr_core.domains.acquisition.service import NextColumns

        return (
            NextColumns(learner, signature)
            if "encoding" in signature.structure
            else super().service(learner, signature)
        )
