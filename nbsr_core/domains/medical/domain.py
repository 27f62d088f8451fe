"""The medical domain as studies see it: data, NBSR and its baselines, and an evaluation with the ceiling beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from nbsr_core.domains.domain import Domain, ModelKind, Preview, Signature
from nbsr_core.domains.medical.options import MedicalData
from nbsr_core.domains.references import TABULAR_REFERENCES
from nbsr_core.domains.tabular import MLP, XGBOOST, NbsrOptions, build_nbsr
from nbsr_core.metrics import names
from nbsr_core.options.specs import EvaluationOptions

if TYPE_CHECKING:  # imported where data is loaded and models are built: options are checked without torch
    from nbsr_core.domains.medical.data import MedicalSplits
    from nbsr_core.evaluation.evaluation import Evaluation
    from nbsr_core.learning.learners import Learner, NbsrLearner
    from nbsr_core.learning.splits import Splits

OF_CEILING = ("accuracy", "ece", "nll")


def _build(options: NbsrOptions, signature: Signature) -> NbsrLearner:
    from nbsr_core.domains.medical.data import graph

    return build_nbsr(options, signature, graph(signature))


class Medical(Domain):
    """132 symptoms, 41 diseases; root -> four body systems -> one leaf each."""

    name = "medical"
    data = MedicalData
    models: ClassVar = {
        "nbsr": ModelKind("nbsr", NbsrOptions, _build),
        "mlp": MLP,
        "xgboost": XGBOOST,
        **TABULAR_REFERENCES,
    }
    shown: ClassVar = (
        "accuracy",
        "ece",
        "ece_raw",
        "noise_draws/accuracy",
        "noise_draws/ece",
        "mean_depth",
        "coverage",
        "error_answered",
    )
    ceiling = "the Bayes-optimal diagnosis, which knows the noise and the profiles of the patients"

    def load(self, data: Any, seed: int) -> MedicalSplits:
        from nbsr_core.domains.medical.data import load

        return load(data, seed)

    def preview(self, data: Any) -> Preview:
        """With one noise draw for many, which take most of the time."""
        return super().preview(replace(data, draws=min(data.draws, 1)))

    def figures(self, data: Any, sets: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str]:
        from nbsr_core.evaluation.evaluation import classification_figures

        ceilings = [names.named(names.place(name, of_ceiling=True), OF_CEILING) for name in (names.TEST, *sets)]
        return classification_figures(learner, sets, options).union(*ceilings)

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Classification, and what the best possible model would reach (`ceiling/...`), knowing noise and profiles."""
        from nbsr_core import metrics
        from nbsr_core.domains.medical.data import MedicalSplits
        from nbsr_core.domains.medical.profiles import bayes_posterior

        evaluation = super().evaluate(learner, splits, options)
        if isinstance(splits, MedicalSplits):
            for name, split in {"test": splits.test, **splits.extra}.items():
                posterior = bayes_posterior(split.x, splits.profiles, splits.noise)
                figures = metrics.classification_metrics(posterior, split.y)
                evaluation.add(names.place(name, of_ceiling=True), {key: figures[key] for key in OF_CEILING})
        return evaluation
