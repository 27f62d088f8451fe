"""A learner is a model together with how it is fitted: the one shape in which NBSR and its baselines meet a study.

Whatever the model, a study trains it, watches its epochs, asks it for probabilities and stores it, all in the same way.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core import metrics
from nbsr_core.belief.calibration import calibrated_probabilities, fit_temperature
from nbsr_core.errors import InputError
from nbsr_core.learning import Batches, EpochRecord, TensorBatches, Trainer, TrainingConfig
from nbsr_core.learning.batches import epoch_seed, seed_everything, steps_of
from nbsr_core.learning.objectives import weighted_terms
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.metrics.names import TRAIN, VALID, named
from nbsr_core.model.costs import stage_macs
from nbsr_core.model.network import NBSR, evaluating
from nbsr_core.model.preprocessing import FittedStep
from nbsr_core.options.specs import Family as Family
from nbsr_core.options.specs import ObjectiveWeights
from nbsr_core.trace.belief_trace import BeliefTrace
from nbsr_core.trace.by_depth import ByDepth

Wrap = Callable[[nn.Module], nn.Module]

# What is known of a model that has no walk, see `Learner.ignores`.
OF_WALKS = ("eta", "max_accuracy_loss", "max_nll_loss", "etas", "audits", "prune")
NO_WALK = dict.fromkeys((f"evaluation.{name}" for name in OF_WALKS), "it is about walks, and the model has none")

# Rows that are walked together when a whole split is traced.
TRACE_CHUNK = 8192


@dataclass(frozen=True)
class Execution:
    """Where and how a training runs; none of it changes what is learned, beyond the order of sums.

    Attributes:
        device: torch device.
        checkpoint: file to save to at the end of epochs and to go on from, or None.
        checkpoint_seconds: how long to train before the next save; 0 saves after each epoch. The last epoch is saved in
            any case where more can follow, see `Learner.grows`.
        shard: (rank, world): this process's share of each batch.
        wrap: makes a module run on several workers at once (DDP), or None.
    """

    device: str = "cpu"
    checkpoint: Path | None = None
    checkpoint_seconds: float = 0.0
    shard: tuple[int, int] = (0, 1)
    wrap: Wrap | None = None


@dataclass(frozen=True, eq=False)
class Inside:
    """What a classifier makes of samples on the way to its answer: what detectors of the unknown look at.

    Attributes:
        features: what the last layer reads; of NBSR, the oracle `h`.
        logits: their softmax is the answer before calibration; of NBSR, `log alpha` at the end of the walk.
    """

    features: Float[Tensor, "N d"]
    logits: Float[Tensor, "N K"]


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model says of the samples of a split, row by row beside their labels.

    Attributes:
        probs: as the model is used.
        raw: before calibration; the same where it was not calibrated.
    """

    probs: Float[Tensor, "N K"]
    raw: Float[Tensor, "N K"]
    labels: Int[Tensor, " N"]


class Learner(ABC):
    """Something that can be trained on splits and asked for probabilities.

    Attributes:
        temperatures: of the calibration that was fitted after training, one per depth of a walk, one for a model that
            does not walk; empty before. They are no part of the state: a study may judge the same weights in many ways.
    """

    family: ClassVar[Family]
    packages: ClassVar[tuple[str, ...]] = ()
    """What must be installed to use it, beside what this library always needs."""
    walks: ClassVar[bool] = False
    """Whether it answers at every depth of a walk, and so has a temperature per depth."""
    temperatures: tuple[float, ...] = ()

    @abstractmethod
    def train(self, splits: Splits, config: TrainingConfig, seed: int, execution: Execution) -> Iterator[EpochRecord]:
        """Train, yielding a record per epoch."""

    @abstractmethod
    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        """Class probabilities at full effort, before any calibration."""

    def probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        """Class probabilities at full effort as the model is used: calibrated, once that was fitted."""
        return self._calibrated(self.raw_probabilities(x))

    def _calibrated(self, raw: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        return calibrated_probabilities(raw, self.temperatures[0]) if self.temperatures else raw

    @property
    def has_features(self) -> bool:
        """Whether it can show what is `inside`."""
        return False

    def inside(self, x: Tensor) -> Inside:
        """What detectors of the unknown look at, row by row of `probabilities`."""
        raise InputError(f"{type(self).__name__} has no features that one could look at")

    def answers(self, split: Split) -> Answers:
        """The probabilities of a whole split, before and after calibration."""
        raw = self.raw_probabilities(split.x)
        return Answers(self._calibrated(raw), raw, self.labels(split.y))

    def calibrate(self, split: Split) -> None:
        """Fit the temperature on samples that were not trained on, the same way for every model."""
        said = self.answers(split)
        self.use_temperatures((fit_temperature(said.raw, said.labels),))

    def use_temperatures(self, temperatures: Sequence[float]) -> None:
        """Take over temperatures that `calibrate` found; none for a model as it was trained."""
        self.temperatures = tuple(temperatures)

    def macs(self, x: Tensor) -> float | None:
        """Multiply-adds of one answer at full effort, counted on the first row of `x`; None where nobody counts them.

        Of a model that walks or stops early, its answers by depth have them.
        """
        return None

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

    @property
    def epoch_figures(self) -> set[str] | None:
        """Names of the figures that each epoch reports, `*` for any; None, the default, if nobody knows them before."""
        return None

    def grows(self, config: TrainingConfig) -> bool:
        """Whether more epochs can go on from its last checkpoint, as if they had been asked for at once."""
        return False

    @property
    def ignores(self) -> dict[str, str]:
        """Options that make no difference to this model as it is built: dotted key, and why; none are known by default.

        `training...` and `evaluation...` are those of the study. What follows from the options alone is said beside
        them, see `nbsr_core.options.conditions`.
        """
        return {}


@runtime_checkable
class StopsEarly(Protocol):
    """A learner without beliefs that answers at several depths, and can stop at each."""

    def by_depth(self, x: Tensor) -> ByDepth:
        """Its answers to a whole split, calibrated once that was fitted."""


class TorchLearner(Learner):
    """A module trained by gradient descent; subclasses say what its loss is.

    Attributes:
        label_smoothing: `TrainingConfig.label_smoothing` of the training that runs.
    """

    smooths_labels: ClassVar[bool] = False
    """Whether its loss is a likelihood whose labels can be smoothed; if not, it ignores that option."""
    label_smoothing: float = 0.0

    at_once: ClassVar[int] = TRACE_CHUNK
    """Samples that go through the module together when a whole split is asked for."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @abstractmethod
    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        """The terms of the loss; `module` is the learner's own, or a wrapping of it."""

    def batches(self, splits: Splits, config: TrainingConfig, execution: Execution) -> Batches:
        """Where training data comes from: the training split, unless a learner gathers more as it goes."""
        rows = splits.train
        return TensorBatches(rows.x, rows.y, config.batch_size, splits.augment, rows.weight)

    def finish(self, splits: Splits) -> None:
        """What is fitted after the last epoch, on data the gradient never saw."""

    def train(self, splits: Splits, config: TrainingConfig, seed: int, execution: Execution) -> Iterator[EpochRecord]:
        self.label_smoothing = config.label_smoothing
        batches = self.batches(splits, config, execution)
        share = ShardedBatches(batches, *execution.shard) if execution.shard[1] > 1 else None
        for step in self.module.modules():
            if isinstance(step, FittedStep):
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
            grows=self.grows(config),
        )
        if execution.checkpoint is not None and execution.checkpoint.exists():
            trainer.resume(execution.checkpoint)
        saved = time.monotonic()
        for record in trainer.run():
            due = time.monotonic() - saved >= execution.checkpoint_seconds
            is_last = trainer.finished and trainer.grows
            if (due or is_last) and execution.checkpoint is not None and execution.shard[0] == 0:
                trainer.save(execution.checkpoint)
                saved = time.monotonic()
            # Workers go in step and each counts its own share of the samples.
            yield replace(record, samples_per_second=record.samples_per_second * execution.shard[1])
        seed_everything(epoch_seed(seed, trainer.epoch))  # whether the epochs were trained now or before
        self.finish(splits)

    def grows(self, config: TrainingConfig) -> bool:
        return config.grows

    def cross_entropy(self, logits: Float[Tensor, "B K"], labels: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """The mean over all rows, of smoothed labels where a training has such; never in less than float32."""
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(precise, labels, label_smoothing=self.label_smoothing)

    def _figures(self, split: Split) -> dict[str, float]:
        said = self.answers(split)
        return {"nll": metrics.nll(said.raw, said.labels), "accuracy": metrics.accuracy(said.raw, said.labels)}

    @torch.no_grad()
    def by_chunks(self, compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """What a part of the module makes of a whole split, on its device in chunks, given back on the CPU."""
        with evaluating(self.module):
            device = next(self.module.parameters()).device
            return torch.cat([compute(part.to(device)).cpu() for part in x.split(self.at_once)])

    def state(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state)
        self.module.eval()

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms of the loss; any by default."""
        return ("*",)

    @property
    def epoch_figures(self) -> set[str] | None:
        beside = ("learning_rate", "temperature", "samples_per_second")
        return named(VALID, ("nll", "accuracy")) | named(TRAIN, (*self.terms, *beside))

    @property
    def ignores(self) -> dict[str, str]:
        found = {}
        if not self.smooths_labels:
            found["training.label_smoothing"] = "the model's loss has labels as they are"
        if not hasattr(self.module, "set_temperature"):
            found["training.temperature"] = "the model has no routers"
        if not isinstance(getattr(self.module, "backbone", None), nn.Module):
            found |= dict.fromkeys(("training.compile", "training.decay_everything"), "the model has no backbone")
        return found


class Classifier(TorchLearner):
    """A module that gives logits, trained with cross-entropy: the flat baselines.

    References whose modules give something else say what its loss is, and in `probabilities_of` what it answers.
    """

    family = "baseline"
    smooths_labels = True

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        return {"loss": self.cross_entropy(module(x), self.labels(y))}

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss",)

    def probabilities_of(self, outputs: Any) -> Float[Tensor, "N K"]:
        """What the module's outputs answer: the softmax of logits [N, K]."""
        answer: Tensor = outputs.softmax(-1)
        return answer

    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        return self.by_chunks(lambda part: self.probabilities_of(self.module(part)), x)

    def macs(self, x: Tensor) -> float | None:
        row = x[:1].to(next(self.module.parameters()).device)
        with evaluating(self.module):
            found = stage_macs(self.module, row)
        return None if found is None else float(sum(found))

    @property
    def has_features(self) -> bool:
        """Modules of other parts than a `backbone` and a `head` show nothing."""
        return all(isinstance(getattr(self.module, name, None), nn.Module) for name in ("backbone", "head"))

    def inside(self, x: Tensor) -> Inside:
        """The features before the head, and the logits that it makes of them."""
        if not self.has_features:
            return super().inside(x)
        features = self.by_chunks(self.module.get_submodule("backbone"), x)
        return Inside(features, self.by_chunks(self.module.get_submodule("head"), features))

    @property
    def ignores(self) -> dict[str, str]:
        return super().ignores | NO_WALK


class NbsrLearner(TorchLearner):
    """NBSR with its objective; a density factor is fitted after the last epoch.

    Args:
        module: the network.
        objective: what it is trained for.
        admissible: which nodes own which class, for the concept loss.
    """

    family = "nbsr"
    walks = True
    has_features = True
    smooths_labels = True

    def __init__(
        self,
        module: NBSR,
        objective: ObjectiveWeights,
        admissible: Bool[Tensor, "nodes K"] | None = None,
    ) -> None:
        super().__init__(module)
        self.model, self.objective, self.admissible = module, objective, admissible

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        admissible = None if self.admissible is None else self.admissible.to(y.device)
        return weighted_terms(
            self.objective,
            module(x),
            self.labels(y),
            epoch=epoch,
            admissible=admissible,
            smoothing=self.label_smoothing,
        )

    @property
    def terms(self) -> tuple[str, ...]:
        return self.objective.terms

    @torch.no_grad()
    def finish(self, splits: Splits) -> None:
        if self.model.density is not None:
            self.fit_density(splits)

    def calibrate(self, split: Split) -> None:
        """One temperature per depth."""
        self.use_temperatures(())
        self.model.calibrate(self.trace(split.x), self.labels(split.y))
        self.temperatures = self.model.calibration.found

    def use_temperatures(self, temperatures: Sequence[float]) -> None:
        super().use_temperatures(temperatures)
        self.model.calibration.use(temperatures)

    def fit_density(self, splits: Splits) -> None:
        """The density factor of each stage from its training oracles, its threshold from the validation split's."""
        oracles = self._oracles(splits.train.x)
        labels = self.labels(splits.train.y).to(oracles[-1].device)
        self.model.fit_density(oracles, labels, fresh=self._oracles(splits.valid.x))

    def _oracles(self, x: Tensor) -> list[Float[Tensor, "N _"]]:
        """The oracles of a whole split, of every stage of the backbone."""
        with evaluating(self.model):
            device = self.model.prior.device
            parts = [self.model.oracles(part.to(device)) for part in x.split(TRACE_CHUNK)]
            return [torch.cat(of_stage) for of_stage in zip(*parts, strict=True)]

    @torch.no_grad()
    def trace(self, x: Tensor) -> BeliefTrace:
        """The walk of a whole split, as the model would walk it in use."""
        with evaluating(self.model):
            device = self.model.prior.device
            trace = BeliefTrace.concat([self.model(part.to(device)).detach() for part in x.split(TRACE_CHUNK)])
            return replace(trace, node_macs=self.model.node_macs(x[:1].to(device)))

    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        return self.trace(x).raw_probabilities().cpu()

    def probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        return self.trace(x).probabilities().cpu()

    def answers(self, split: Split) -> Answers:
        return answers_of_walks(self.trace(split.x), self.labels(split.y))

    @torch.no_grad()
    def inside(self, x: Tensor) -> Inside:
        return Inside(self._oracles(x)[-1].cpu(), self.trace(x).beliefs[-1].log().cpu())

    @property
    def ignores(self) -> dict[str, str]:
        return super().ignores | ignored_by_walk(self.model)


def answers_of_walks(trace: BeliefTrace, labels: Int[Tensor, " N"]) -> Answers:
    """What walks to the end say, before and after calibration."""
    return Answers(trace.probabilities().cpu(), trace.raw_probabilities().cpu(), labels)


def ignored_by_walk(walk: NBSR) -> dict[str, str]:
    """Options that make no difference on the graph of a walk, see `Learner.ignores`."""
    graph, found = walk.graph, dict[str, str]()
    if all(len(node.children) < 2 for node in graph.nodes):
        objectives = ("objective.cost", "objective.concept", "objective.balance")
        names = ("router", "routing", "estimator", *objectives, "training.temperature")
        found |= dict.fromkeys(names, "no node of the graph has a choice between children")
    elif walk.routing == "argmax":
        why = "routing: argmax neither samples nor passes on a gradient"
        found |= dict.fromkeys(("objective.cost", "training.temperature"), why)
    elif all(len({graph.nodes[child].cost for child in node.children}) < 2 for node in graph.nodes):
        found["objective.cost"] = "the children of every node cost the same"
    if graph.depth < 2:
        found["objective.every_depth"] = "the graph has one level only"
    return found


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

    def steps(self) -> int:
        return steps_of(self.whole)

    def epoch(self, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.whole.epoch(seed, epoch):
            share = slice(self.rank, None, self.world)
            self.weight = len(y[share]) * self.world / len(y)
            yield (x[share], y[share]) if self.weight else (x[:1], y[:1])

    def weigh(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """The terms of a loss over the share that was given last; its gradient counts by the share's weight."""
        loss = terms["loss"]
        return {**terms, "loss": loss.detach() + (loss - loss.detach()) * self.weight}
