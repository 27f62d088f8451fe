"""The vision domain as studies see it: pictures or cached features, three heads, figures on the unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from nbsr_core.domains.domain import Domain, Preview, Signature, Work
from nbsr_core.domains.vision.backbones import width
from nbsr_core.domains.vision.data import Source, VisionSplits, feature_names, load, pixel_names
from nbsr_core.domains.vision.data import VisionData as VisionData
from nbsr_core.domains.vision.images import png
from nbsr_core.domains.vision.judging import add_early_exit, add_leaves, add_mirrored, add_unknown, vision_figures
from nbsr_core.domains.vision.models import MODELS
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions, classification_figures
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Splits


class Vision(Domain):
    """What is in a picture; for CIFAR-10 root -> Animal / Vehicle -> Pets, Wildlife, Birds / AirWater, Road."""

    name = "vision"
    shown: ClassVar = (
        *("accuracy", "mirrored/accuracy", "ece", "ece_raw", "nll", "mean_depth", "error_answered", "ood/*/auroc"),
    )
    data = VisionData
    models: ClassVar = MODELS

    def load(self, data: Any, seed: int) -> VisionSplits:
        return load(data, seed)

    def preview(self, data: Any) -> Preview:
        """Files are found but not decoded, and of a frozen backbone only the width of its features is asked."""
        source = Source(data)
        _ = source.sets  # those that are not there say so
        names = pixel_names(data.size)
        if data.oracle is not None:
            # Weights of a network of one's own come with it; those of the others do not change its width.
            shape = replace(data.oracle, weights="none")
            names = feature_names(width(shape.build(), shape.input_size))
        return Preview(Signature(source.class_names(source.selection(0)), names))

    def fingerprint(self, data: Any) -> str:
        return Source(data).identity

    def prepare(self, data: Any, seeds: Sequence[int]) -> Sequence[Work]:
        """The shards of all tables that the seeds need: decoded pictures, or a frozen backbone's features."""
        source = Source(data)
        return [
            shard
            for images, rows in source.needed(seeds)
            for table in source.tables(images)
            for shard in table.shards(rows)
        ]

    def portrait(self, data: Any, seed: int, sample: int) -> bytes | None:
        """The picture itself: a model on cached features never shows it."""
        source = Source(data)
        row = int(source.selection(seed).test[sample])
        return png(source.test.decode([row], data.size)[0])

    def figures(self, data: Any, sets: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str]:
        return classification_figures(learner, sets, options) | vision_figures(data.unknown_sets, learner, options)

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Classification, mirror images, leaves, the price of 90% early exits, and AUROC against every unknown set."""
        evaluation = super().evaluate(learner, splits, options)
        if isinstance(splits, VisionSplits):
            add_unknown(evaluation, learner, splits, options)
            if options.mirror:
                add_mirrored(evaluation, learner, splits)
            if isinstance(learner, NbsrLearner):
                add_leaves(evaluation, learner, splits)
                add_early_exit(evaluation, learner, splits)
        return evaluation
