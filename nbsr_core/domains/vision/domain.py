"""The vision domain as studies see it: pictures or cached features, three heads, figures on the unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from nbsr_core.domains.base import Splits
from nbsr_core.domains.domain import Domain, Work
from nbsr_core.domains.vision.data import Source, VisionSplits, load
from nbsr_core.domains.vision.data import VisionData as VisionData
from nbsr_core.domains.vision.images import png
from nbsr_core.domains.vision.judging import add_early_exit, add_leaves, add_unknown
from nbsr_core.domains.vision.models import MODELS
from nbsr_core.evaluation import Evaluation, EvaluationOptions
from nbsr_core.learners import Learner, NbsrLearner


class Vision(Domain):
    """What is in a picture; for CIFAR-10 root -> Animal / Vehicle -> Pets, Wildlife, Birds / AirWater, Road."""

    name = "vision"
    data = VisionData
    models: ClassVar = MODELS

    def load(self, data: Any, seed: int) -> VisionSplits:
        return load(data)

    def fingerprint(self, data: Any) -> str:
        return Source(data).identity

    def prepare(self, data: Any) -> Sequence[Work]:
        """The shards of all tables that the data needs: decoded pictures, or a frozen backbone's features."""
        source = Source(data)
        return [
            shard
            for images in source.sets
            for table in source.tables(images)
            for shard in table.shards()
            if shard.start < source.rows(images)
        ]

    def portrait(self, data: Any, sample: int) -> bytes | None:
        """The picture itself: a model on cached features never shows it."""
        return png(Source(data).test.decode([sample], data.size)[0])

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Classification, leaves, the price of 90% early exits, and AUROC against every out-of-distribution set."""
        evaluation = super().evaluate(learner, splits, options)
        if isinstance(splits, VisionSplits):
            add_unknown(evaluation, learner, splits, options)
            if isinstance(learner, NbsrLearner):
                add_leaves(evaluation, learner, splits)
                add_early_exit(evaluation, learner, splits)
        return evaluation
