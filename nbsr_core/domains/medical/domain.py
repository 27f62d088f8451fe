"""The medical domain as studies see it: data, NBSR and its baselines, and an evaluation with the ceiling beside it."""

from __future__ import annotations

from typing import Any, ClassVar

from nbsr_core import metrics
from nbsr_core.domains.base import Splits
from nbsr_core.domains.domain import Domain, ModelKind, Signature
from nbsr_core.domains.medical.data import MedicalData, MedicalSplits, graph, load
from nbsr_core.domains.medical.profiles import bayes_posterior
from nbsr_core.domains.tabular import MLP, XGBOOST, NbsrOptions, build_nbsr
from nbsr_core.evaluation import Evaluation, EvaluationOptions
from nbsr_core.learners import Learner, NbsrLearner


def _build(options: NbsrOptions, signature: Signature) -> NbsrLearner:
    return build_nbsr(options, signature, graph(signature))


class Medical(Domain):
    """132 symptoms, 41 diseases; root -> four body systems -> one leaf each."""

    name = "medical"
    data = MedicalData
    models: ClassVar = {"nbsr": ModelKind("nbsr", NbsrOptions, _build), "mlp": MLP, "xgboost": XGBOOST}
    shown: ClassVar = ("accuracy", "ece", "noise_draws/accuracy", "noise_draws/ece", "mean_depth")
    ceiling = "the Bayes-optimal diagnosis, which knows the noise and the profiles of the patients"

    def load(self, data: Any, seed: int) -> MedicalSplits:
        return load(data, seed)

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Classification, and what the best possible model would reach (`ceiling/...`), knowing noise and profiles."""
        evaluation = super().evaluate(learner, splits, options)
        if isinstance(splits, MedicalSplits):
            for name, split in {"test": splits.test, **splits.extra}.items():
                posterior = bayes_posterior(split.x, splits.profiles, splits.noise)
                figures = metrics.classification_metrics(posterior, split.y)
                evaluation.add(f"ceiling/{name}", {key: figures[key] for key in ("accuracy", "ece", "nll")})
        return evaluation
