"""The table domain as studies see it: any CSV or Parquet file with a column of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from nbsr_core.domains.domain import Domain, Preview, Signature
from nbsr_core.domains.table.models import MODELS
from nbsr_core.domains.table.options import TableData
from nbsr_core.metrics import names
from nbsr_core.options.specs import EvaluationOptions

if TYPE_CHECKING:  # imported where data is loaded: options are checked without torch
    from nbsr_core.domains.service import Service
    from nbsr_core.domains.table.data import TableSplits
    from nbsr_core.evaluation.evaluation import Evaluation
    from nbsr_core.learning.learners import Learner
    from nbsr_core.learning.splits import Splits


class Table(Domain):
    """A file, a target: classes from columns of any kind."""

    name = "table"
    data = TableData
    models: ClassVar = MODELS
    shown: ClassVar = (
        "accuracy",
        "balanced_accuracy",
        "auroc",
        "nll",
        "ece",
        "mean_depth",
        "coverage",
        "error_answered",
    )

    def load(self, data: Any, seed: int) -> TableSplits:
        from nbsr_core.domains.table.data import load_table

        return load_table(data, seed)

    def preview(self, data: Any) -> Preview:
        from nbsr_core.domains.table.data import preview_of

        return preview_of(self.load(data, 0))

    def service(self, learner: Learner, signature: Signature) -> Service:
        from nbsr_core.domains.table.service import TableRows

        return TableRows(learner, signature)

    def figures(self, data: Any, sets: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str]:
        from nbsr_core.evaluation.evaluation import classification_figures
        from nbsr_core.metrics.by_class import OF_CLASSES

        found = classification_figures(learner, sets, options)
        return found.union(*(names.named(name, OF_CLASSES) for name in (names.TEST, names.VALID)))

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Classification, and what says more where classes are not equally frequent."""
        from nbsr_core.metrics.by_class import class_metrics

        evaluation = super().evaluate(learner, splits, options)
        for name, split in {names.TEST: splits.test, names.VALID: splits.valid}.items():
            said = learner.answers(split)
            evaluation.add(name, class_metrics(said.probs, said.labels))
        return evaluation
