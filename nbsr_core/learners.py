"""A learner is a model together with how it is fitted: the one shape in which NBSR and its baselines meet a study.

Whatever the model, a study trains it, watches its epochs, asks it for probabilities and stores it, all in the same way.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core import metrics
from nbsr_core.domains.base import Split, Splits
from nbsr_core.network import NBSR, evaluating
from nbsr_core.objectives import Objective
from nbsr_core.preprocessing import Standardise
from nbsr_core.trace import BeliefTrace
from nbsr_core.training import Batches, EpochRecord, TensorBatches, Trainer, TrainingConfig

Family = Literal["nbsr", "baseline"]
Wrap = Callable[[nn.Module], nn.Module]

# Rows that are walked together when a whole split is traced.
TRACE_CHUNK = 8192


@dataclass(frozen=True)
class Execution:
    """Where and how a training runs; none of it changes what is learned, beyond the order of sums.

    Attributes:
        device: torch device.
        checkpoint: file to save to at the end of epochs and to go on from, or None.
        checkpoint_seconds: how long to train before the next save; 0 saves after each epoch.
        shard: (rank, world): this process's share of each batch.
        wrap: makes a module run on several workers at once (DDP), or None.
    """

    device: str = "cpu"
    checkpoint: Path | None = None
    checkpoint_seconds: float = 0.0
    shard: tuple[int, int] = (0, 1)
    wrap: Wrap | None = None


class Learner(ABC):
    """Something that can be trained on splits and asked for probabilities."""

    family: ClassVar[Family]

    @abstractmethod
    def train(self, splits: Splits, config: TrainingConfig, seed: int, execution: Execution) -> Iterator[EpochRecord]:
        """Train, yielding a record an epoch."""

    @abstractmethod
    def probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        """Class probabilities at full effort."""

    def labels(self, y: Tensor) -> Tensor:
        """The labels in the order of the rows of `probabilities`: one a sample, unless samples are whole sequences."""
        return y

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything learned, as tensors and plain values."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of learned parameters."""


class TorchLearner(Learner):
    """A module trained by gradient descent; subclasses say what its loss is."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @abstractmethod
    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        """The terms of the loss; `module` is the learner's own, or a wrapping of it."""

    def batches(self, splits: Splits, config: TrainingConfig, execution: Execution) -> Batches:
        """Where training data comes from: the training split, unless a learner gathers more as it goes."""
        return TensorBatches(splits.train.x, splits.train.y, config.batch_size, splits.augment)

    def finish(self, splits: Splits) -> None:
        """What is fitted after the last epoch, on data the gradient never saw."""

    def train(self, splits: Splits, config: TrainingConfig, seed: int, execution: Execution) -> Iterator[EpochRecord]:
        batches = self.batches(splits, config, execution)
        share = ShardedBatches(batches, *execution.shard) if execution.shard[1] > 1 else None
        for step in self.module.modules():
            if isinstance(step, Standardise):
                step.fit(splits.train.x)
        module = self.module.to(execution.device)
        runner = module if execution.wrap is None else execution.wrap(module)

        def loss(_: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
            return self.loss(runner, x, y, epoch)

        trainer = Trainer(
            module,
            loss if share is None else lambda *given: share.weigh(loss(*given)),
            batches if share is None else share,
            config,
            validation=lambda _: self._figures(splits.valid),
            seed=seed,
            device=execution.device,
        )
        if execution.checkpoint is not None and execution.checkpoint.exists():
            trainer.resume(execution.checkpoint)
        saved = time.monotonic()
        for record in trainer.run():
            due = time.monotonic() - saved >= execution.checkpoint_seconds
            if due and execution.checkpoint is not None and execution.shard[0] == 0:
                trainer.save(execution.checkpoint)
                saved = time.monotonic()
            # Workers go in step and each counts its own share of the samples.
            yield replace(record, samples_per_second=record.samples_per_second * execution.shard[1])
        self.finish(splits)

    def _figures(self, split: Split) -> dict[str, float]:
        probs, y = self.probabilities(split.x), self.labels(split.y)
        return {"nll": metrics.nll(probs, y), "accuracy": metrics.accuracy(probs, y)}

    def state(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state)
        self.module.eval()

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())


class Classifier(TorchLearner):
    """A module that gives logits, trained with cross-entropy: the flat baselines."""

    family = "baseline"

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(module(x), self.labels(y))}

    @torch.no_grad()
    def probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        with evaluating(self.module):
            device = next(self.module.parameters()).device
            return torch.cat([self.module(part.to(device)).softmax(-1).cpu() for part in x.split(TRACE_CHUNK)])


class NbsrLearner(TorchLearner):
    """NBSR with its objective; density and calibration are fitted after the last epoch.

    Args:
        module: the network.
        objective: what it is trained for.
        admissible: which nodes own which class, for the concept loss.
        calibrate: fit one temperature a depth on the validation split.
    """

    family = "nbsr"

    def __init__(
        self,
        module: NBSR,
        objective: Objective,
        admissible: Bool[Tensor, "nodes K"] | None = None,
        calibrate: bool = True,
    ) -> None:
        super().__init__(module)
        self.model, self.objective, self.admissible, self.calibrate = module, objective, admissible, calibrate

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        admissible = None if self.admissible is None else self.admissible.to(y.device)
        return self.objective(module(x), self.labels(y), epoch=epoch, admissible=admissible)

    @torch.no_grad()
    def finish(self, splits: Splits) -> None:
        if self.model.density is not None:
            self.fit_density(splits)
        if self.calibrate:
            self.model.calibration.reset()
            self.model.calibrate(self.trace(splits.valid.x), self.labels(splits.valid.y))

    def fit_density(self, splits: Splits) -> None:
        """The density factor from the training oracles, its threshold from the validation split's."""
        oracle = self._oracle(splits.train.x)
        labels = self.labels(splits.train.y).to(oracle.device)
        self.model.fit_density(oracle, labels, fresh=self._oracle(splits.valid.x))

    def _oracle(self, x: Tensor) -> Float[Tensor, "N d"]:
        with evaluating(self.model):
            device = self.model.prior.device
            return torch.cat([self.model.oracle(part.to(device)) for part in x.split(TRACE_CHUNK)])

    @torch.no_grad()
    def trace(self, x: Tensor) -> BeliefTrace:
        """The walk of a whole split, as the model would walk it in use."""
        with evaluating(self.model):
            device = self.model.prior.device
            return BeliefTrace.concat([self.model(part.to(device)).detach() for part in x.split(TRACE_CHUNK)])

    def probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        return self.trace(x).probabilities().cpu()


@dataclass
class ShardedBatches:
    """Every `world`-th row of each batch: the workers of one training see what one worker alone would have seen.

    Shares may be unequal, and DDP takes the plain mean of the workers' gradients; so each counts by its rows. Where a
    batch has fewer rows than there are workers, those without one take the first, which then counts nothing.

    Attributes:
        weight: of the share that was given last, `rows * world / rows of the batch`.
    """

    whole: Batches
    rank: int
    world: int
    weight: float = 1.0

    def epoch(self, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.whole.epoch(seed, epoch):
            share = slice(self.rank, None, self.world)
            self.weight = len(y[share]) * self.world / len(y)
            yield (x[share], y[share]) if self.weight else (x[:1], y[:1])

    def weigh(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """The terms of a loss over the share that was given last; its gradient counts by the share's weight."""
        loss = terms["loss"]
        return {**terms, "loss": loss.detach() + (loss - loss.detach()) * self.weight}


class BoostedTrees(Learner):
    """Gradient-boosted trees (XGBoost), the tabular baseline."""

    family = "baseline"

    def __init__(self, num_classes: int, **parameters: Any) -> None:
        self.num_classes, self.parameters = num_classes, parameters
        self.booster: Any = None

    def train(self, splits: Splits, config: TrainingConfig, seed: int, execution: Execution) -> Iterator[EpochRecord]:
        from time import perf_counter

        import xgboost

        began = perf_counter()
        threads = torch.get_num_threads()
        model = xgboost.XGBClassifier(
            objective="multi:softprob", eval_metric="mlogloss", random_state=seed, n_jobs=threads, **self.parameters
        )
        x = splits.train.x
        if splits.augment is not None:
            x = splits.augment(x, torch.Generator().manual_seed(seed))
        model.fit(x.numpy(), splits.train.y.numpy())
        self.booster = model.get_booster()
        seconds = perf_counter() - began
        loss = metrics.nll(self.probabilities(splits.train.x), splits.train.y)
        valid = self.probabilities(splits.valid.x)
        figures = {"nll": metrics.nll(valid, splits.valid.y), "accuracy": metrics.accuracy(valid, splits.valid.y)}
        yield EpochRecord(0, {"loss": loss}, figures, 0.0, 0.0, seconds, len(x) / seconds)

    def probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        import xgboost

        probs = self.booster.predict(xgboost.DMatrix(x.numpy()))
        probs = np.asarray(probs, dtype=np.float64)
        return torch.from_numpy(probs / probs.sum(1, keepdims=True))

    def importance(self, num_features: int) -> Float[Tensor, " {num_features}"]:
        """Share of each feature in the mean gain of the splits on it, over the whole training set: XGBoost's own."""
        gain = torch.zeros(num_features, dtype=torch.float64)
        for name, value in self.booster.get_score(importance_type="gain").items():
            gain[int(name.removeprefix("f"))] = value
        return gain / gain.sum().clamp_min(torch.finfo(gain.dtype).tiny)

    def state(self) -> dict[str, Any]:
        return {"booster": torch.frombuffer(bytearray(self.booster.save_raw("ubj")), dtype=torch.uint8)}

    def load_state(self, state: dict[str, Any]) -> None:
        import xgboost

        self.booster = xgboost.Booster(model_file=bytearray(state["booster"].numpy().tobytes()))

    @property
    def size(self) -> int:
        return int(self.booster.trees_to_dataframe().shape[0])
