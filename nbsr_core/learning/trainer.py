"""The loop: epochs, the order of their parts, and how to stop and go on exactly."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nbsr_core.errors import InputError
from nbsr_core.learning.batches import Batches, epoch_seed, seed_everything, steps_of
from nbsr_core.learning.checkpoint import load_checkpoint, save_atomically
from nbsr_core.learning.config import TrainingConfig
from nbsr_core.learning.devices import compile_backbone, mixed_precision
from nbsr_core.learning.optimizers import make_optimizer
from nbsr_core.metrics.names import TRAIN, VALID

# (model, x, y, epoch) -> the terms of the loss by name; "loss" is what is minimised.
LossFunction = Callable[[nn.Module, Tensor, Tensor, int], Mapping[str, Tensor]]
# model -> figures on held-out data by name, computed after each epoch.
Validation = Callable[[nn.Module], Mapping[str, float]]


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch did.

    Attributes:
        epoch: its number, from 0.
        terms: mean of each loss term over the training samples.
        validation: figures on held-out data after the epoch.
        learning_rate: rate during the epoch; at its beginning, where it changes from batch to batch.
        temperature: that of the routers during the epoch.
        seconds: duration, validation included.
        samples_per_second: speed of the training alone.
    """

    epoch: int
    terms: dict[str, float]
    validation: dict[str, float]
    learning_rate: float
    temperature: float
    seconds: float
    samples_per_second: float

    def flat(self) -> dict[str, float]:
        """All figures under the names by which they are logged."""
        return {
            **{f"{TRAIN}/{name}": value for name, value in self.terms.items()},
            **{f"{VALID}/{name}": value for name, value in self.validation.items()},
            f"{TRAIN}/learning_rate": self.learning_rate,
            f"{TRAIN}/temperature": self.temperature,
            f"{TRAIN}/samples_per_second": self.samples_per_second,
        }


class Trainer:
    """A model under training: run it epoch by epoch, save it between two of them, and go on exactly from there.

    Args:
        model: NBSR or a baseline; if it has a `backbone`, that part can be frozen and decayed on its own, and if it has
            `set_temperature`, its temperature is annealed.
        loss: see `LossFunction`.
        batches: training data.
        config: how to train.
        validation: figures on held-out data after each epoch; None for none.
        seed: all randomness of the training follows from it.
        device: where to train; the model is moved there.
        grows: whether more epochs begin with these, also as far as loss and batches go; `config` may say no too.

    Examples:
        >>> import torch
        >>> from nbsr_core.learning import TensorBatches, Trainer, TrainingConfig
        >>> x, model = torch.randn(64, 3), torch.nn.Linear(3, 2)
        >>> def loss(model, x, y, epoch):
        ...     return {"loss": torch.nn.functional.cross_entropy(model(x), y)}
        >>> trainer = Trainer(model, loss, TensorBatches(x, (x[:, 0] > 0).long()), TrainingConfig(epochs=2))
        >>> [record.epoch for record in trainer.run()]
        [0, 1]
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        batches: Batches,
        config: TrainingConfig,
        *,
        validation: Validation | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        grows: bool = True,
    ) -> None:
        epoch_seed(seed, 0)  # refuses a bad seed now, not in the first epoch
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.loss, self.batches, self.validation = loss, batches, validation
        self.config, self.seed = config, seed
        self.grows = config.grows and grows
        backbone = getattr(model, "backbone", None)
        self.backbone: nn.Module | None = backbone if isinstance(backbone, nn.Module) else None
        if config.frozen_epochs and self.backbone is None:
            raise InputError(f"training.frozen_share freezes a `backbone`, but {type(model).__name__} has none")
        compile_backbone(self.backbone, self.device, config.compile)
        self.epoch = 0
        self.best, self.best_epoch = math.inf, -1
        self.best_weights: dict[str, Tensor] | None = None
        self.optimizer = make_optimizer(model, self.backbone, config)
        self.steps = steps_of(batches) if config.scheduler == "linear" else None
        self.rates: list[float] = [group["lr"] for group in self.optimizer.param_groups]
        self.scheduler = self._make_scheduler()
        self._between_epochs = True

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or early stopping has seen enough."""
        config = self.config
        if self.epoch >= config.epochs or config.stop_patience is None:
            return self.epoch >= config.epochs
        second_stage = config.frozen_epochs if config.frozen_epochs < config.epochs else 0
        return self.epoch - max(self.best_epoch + 1, second_stage) >= config.stop_patience

    def run(self) -> Iterator[EpochRecord]:
        """Train until finished, yielding a record after each epoch; with early stopping, end with the best weights."""
        while not self.finished:
            yield self._run_epoch()
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        self.model.eval()

    def _run_epoch(self) -> EpochRecord:
        began, epoch, config = time.perf_counter(), self.epoch, self.config
        self._check_between_epochs()
        self._between_epochs = False
        seed_everything(epoch_seed(self.seed, epoch))
        temperature = config.temperature(epoch)
        anneal = getattr(self.model, "set_temperature", None)
        if callable(anneal):
            anneal(temperature)
        if 0 < epoch == config.frozen_epochs:
            for group in self.optimizer.param_groups:
                group["lr"] *= config.finetune_scale
        self._set_rates(0)
        learning_rate = float(self.optimizer.param_groups[0]["lr"])
        self.model.train()
        with self._frozen_backbone() if epoch < config.frozen_epochs else nullcontext():
            terms, samples = self._train()
        training_seconds = time.perf_counter() - began
        if not math.isfinite(terms["loss"]):
            raise InputError(
                f"training diverged: the loss of epoch {epoch} is {terms['loss']}; lower the learning rate"
            )
        self.model.eval()
        figures = {} if self.validation is None else dict(self.validation(self.model))
        self._judge({**terms, **figures})
        self.epoch += 1
        self._between_epochs = True
        seconds = time.perf_counter() - began
        return EpochRecord(epoch, terms, figures, learning_rate, temperature, seconds, samples / training_seconds)

    @contextmanager
    def _frozen_backbone(self) -> Iterator[None]:
        """The backbone stands still, and with it the statistics of its batch norms."""
        assert self.backbone is not None
        trainable = [parameter for parameter in self.backbone.parameters() if parameter.requires_grad]
        self.backbone.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in trainable:
                parameter.requires_grad_(True)

    def _train(self) -> tuple[dict[str, float], int]:
        """One pass over the training data: the mean of each term, and the number of samples."""
        sums: dict[str, Tensor] = {}
        samples = 0
        for step, (inputs, labels) in enumerate(self.batches.epoch(self.seed, self.epoch)):
            self._set_rates(step)
            x, y = inputs.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            self.optimizer.zero_grad(set_to_none=True)
            with mixed_precision(self.device, self.config.mixed_precision):
                terms = self.loss(self.model, x, y, self.epoch)
            if "loss" not in terms:
                raise InputError(f"a loss function must return a term 'loss', got {', '.join(terms) or 'none'}")
            terms["loss"].backward()
            if self.config.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
            self.optimizer.step()
            samples += len(y)
            for name, value in terms.items():
                weighed = value.detach() * len(y)
                sums[name] = sums[name] + weighed if name in sums else weighed
        if not samples:
            raise InputError(f"epoch {self.epoch} had no training data")
        return {name: float(value) / samples for name, value in sums.items()}, samples

    def _set_rates(self, step: int) -> None:
        """The rates of one step of this epoch, where they change from step to step; they follow from its number."""
        if self.steps is None:
            return
        config = self.config
        # In the middle of the step: neither the first nor the last is made at a rate of zero.
        share = config.linear_share((self.epoch + (step + 0.5) / self.steps) / config.epochs)
        if 0 < config.frozen_epochs <= self.epoch:
            share *= config.finetune_scale
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share

    def _judge(self, figures: Mapping[str, float]) -> None:
        """Compare with the best epoch so far, and let the scheduler know."""
        watch = self.config.watch
        if watch not in figures:
            raise InputError(f"training.watch must be one of {', '.join(sorted(figures))}, got {watch!r}")
        if figures[watch] < self.best:
            self.best, self.best_epoch = float(figures[watch]), self.epoch
            if self.config.stop_patience is not None:
                self.best_weights = copy.deepcopy(self.model.state_dict())
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(figures[watch])
        elif self.scheduler is not None:
            self.scheduler.step()

    def _make_scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        config = self.config
        if config.scheduler == "step":
            return torch.optim.lr_scheduler.StepLR(self.optimizer, config.step_size, config.factor)
        if config.scheduler == "plateau":
            return torch.optim.lr_scheduler.ReduceLROnPlateau(
                self.optimizer, factor=config.factor, patience=config.patience
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs: plain values and tensors, loadable with `weights_only=True`."""
        self._check_between_epochs()
        return self._state()

    def _check_between_epochs(self) -> None:
        if not self._between_epochs:
            raise InputError(f"epoch {self.epoch} was interrupted: resume from a checkpoint made before it")

    def _state(self) -> dict[str, Any]:
        return {
            "config": asdict(self.config),
            "seed": self.seed,
            "grows": self.grows,
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "best": self.best,
            "best_epoch": self.best_epoch,
            "best_weights": self.best_weights,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; training under other settings would not be the same run, so it is refused.

        More epochs than the state was saved under are no other settings where the run grows.
        """
        mine = self._state()
        missing = sorted(mine.keys() - state.keys())
        if missing:
            raise InputError(f"this is no checkpoint of a training run: it lacks {', '.join(missing)}")
        given, own = {**state["config"], "seed": state["seed"]}, {**mine["config"], "seed": self.seed}
        if self.grows and state["epoch"] <= self.config.epochs:
            given["epochs"] = self.config.epochs
        other = [
            f"{key} {given.get(key)!r}, not {own.get(key)!r}"
            for key in sorted(given.keys() | own.keys())
            if given.get(key) != own.get(key)
        ]
        if other:
            raise InputError(f"the checkpoint belongs to a run with {'; '.join(other)}")
        try:
            copy.deepcopy(self.model).load_state_dict(state["model"])  # a misfit must not leave half of it behind
        except RuntimeError as error:
            raise InputError(f"the checkpoint belongs to another model: {error}") from error
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # torch would share its tensors
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.epoch, self.best, self.best_epoch = state["epoch"], state["best"], state["best_epoch"]
        self.best_weights = copy.deepcopy(state["best_weights"])
        self._between_epochs = True

    def save(self, path: Path | str) -> None:
        """Write a checkpoint so that the file is whole or not there at all."""
        save_atomically(self.state_dict(), path)

    def resume(self, path: Path | str) -> None:
        """Load a checkpoint written by `save`; nothing in it can run code."""
        state = load_checkpoint(path, self.device)
        try:
            self.load_state_dict(state)
        except InputError as error:
            raise InputError(f"cannot resume from {path}: {error}") from error
