"""A problem whose posterior is known: classes that own several patches of the plane, with noise between neighbours.

Every seed draws a training set of its own from the same distribution and answers for the same inputs, so that noise,
bias and variance over training sets can be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nbsr_core.domains.domain import Domain, ModelKind, Signature
from nbsr_core.domains.references import TABULAR_REFERENCES
from nbsr_core.domains.tabular import MLP, NbsrOptions, build_nbsr
from nbsr_core.errors import InputError
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.metrics import classification_metrics

# Seeds of what all training sets share: the inputs that are answered for.
TEST_SEED = 20_260_101
DIGITS = 7  # of a stored probability


@dataclass(frozen=True)
class PatchesData:
    """A board of `side` x `side` Gaussian patches of the given spread; neighbours belong to different classes.

    Attributes:
        train: size of each training set.
        test: inputs at which predictions are compared, the same for every seed.
        spread: standard deviation of a patch, where patches are 1 apart.
    """

    train: int = 200
    test: int = 400
    classes: int = 4
    side: int = 4
    spread: float = 0.3

    def __post_init__(self) -> None:
        for name, least in (("train", 1), ("test", 1), ("classes", 2), ("side", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be a whole number >= {least}, got {getattr(self, name)}")
        if not self.spread > 0:
            raise InputError(f"spread must be a number > 0, got {self.spread}")

    @property
    def centres(self) -> Tensor:
        """[side^2, 2], around the origin."""
        steps = torch.arange(self.side, dtype=torch.float64) - (self.side - 1) / 2
        return torch.cartesian_prod(steps, steps)

    @property
    def owners(self) -> Tensor:
        """The class of every patch, [side^2]: rows are shifted by two, so that equal classes do not touch."""
        row, column = torch.arange(self.side).repeat_interleave(self.side), torch.arange(self.side).repeat(self.side)
        return (column + 2 * row) % self.classes

    def posterior(self, x: Tensor) -> Tensor:
        """P(y | x), [B, K]: every patch is as likely as every other."""
        away = torch.cdist(x.double(), self.centres) ** 2
        share = torch.softmax(-away / (2 * self.spread**2), dim=-1)
        return torch.zeros(len(x), self.classes, dtype=torch.float64).index_add(1, self.owners, share)

    def draw(self, size: int, generator: torch.Generator) -> Split:
        patch = torch.randint(self.side**2, (size,), generator=generator)
        noise = torch.randn(size, 2, generator=generator, dtype=torch.float64) * self.spread
        return Split((self.centres[patch] + noise).float(), self.owners[patch])


@dataclass(frozen=True, eq=False, kw_only=True)
class PatchesSplits(Splits):
    """Samples, and for those of the test split what the best possible model would say, [B, K]."""

    posterior: Tensor


def _build(options: NbsrOptions, signature: Signature) -> NbsrLearner:
    return build_nbsr(options, signature, taxonomy=None)


class Patches(Domain):
    """Which class does a point belong to?"""

    name = "patches"
    data = PatchesData
    models: ClassVar = {"nbsr": ModelKind("nbsr", NbsrOptions, _build), "mlp": MLP, **TABULAR_REFERENCES}
    shown = ("accuracy", "nll", "ece", "mean_depth")
    ceiling = "the posterior itself, which is known"

    def load(self, data: PatchesData, seed: int) -> Splits:
        own, shared = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(TEST_SEED)
        test = data.draw(data.test, shared)
        return PatchesSplits(
            data.draw(data.train, own),
            data.draw(data.test, own),
            test,
            class_names=[f"class {index}" for index in range(data.classes)],
            feature_names=["x", "y"],
            source=f"{data.side} x {data.side} patches, {data.train} training samples drawn anew for every seed",
            synthetic=True,
            posterior=data.posterior(test.x),
        )

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Classification, and what was said for every test input beside its posterior, deep and with early exit."""
        assert isinstance(splits, PatchesSplits)
        evaluation = super().evaluate(learner, splits, options)
        evaluation.add("ceiling/test", classification_metrics(splits.posterior.float(), splits.test.y))
        said = {"deep": learner.probabilities(splits.test.x)}
        if isinstance(learner, NbsrLearner):
            trace = learner.trace(splits.test.x)
            said["fast"] = trace.exit(evaluation.metrics.get("fast/eta")).probs
        columns = {"truth": splits.posterior, **said}
        evaluation.tables["posterior"] = [
            {name: [round(value, DIGITS) for value in column[row].tolist()] for name, column in columns.items()}
            for row in range(len(splits.test))
        ]
        return evaluation
