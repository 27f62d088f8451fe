"""One plain training loop, for NBSR and its baselines alike; it yields a record an epoch and knows no cluster.

Every epoch starts from random state that follows from `(seed, epoch)` alone. That makes two runs on a CPU identical to
the last bit, and makes a resumed run equal to one that was never stopped without saving any generator's state.
"""

from __future__ import annotations

import copy
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nbsr_core.errors import InputError
from nbsr_core.routing import TemperatureSchedule, check_choice

OptimizerName = Literal["adam", "adamw"]
SchedulerName = Literal["none", "step", "plateau"]

# (model, x, y, epoch) -> the terms of the loss by name; "loss" is what is minimised.
LossFunction = Callable[[nn.Module, Tensor, Tensor, int], Mapping[str, Tensor]]
# model -> figures on held-out data by name, computed after each epoch.
Validation = Callable[[nn.Module], Mapping[str, float]]


class Batches(Protocol):
    """Training data: a fresh iteration a given epoch, whose order follows from the seed."""

    def epoch(self, seed: int, epoch: int) -> Iterable[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class TensorBatches:
    """Batches of tensors that fit into memory, shuffled each epoch.

    Attributes:
        augment: changes a batch of inputs, with the given generator as its only source of randomness (fresh noise).
    """

    x: Tensor
    y: Tensor
    batch_size: int = 128
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"inputs and labels must be as many, got {len(self.x)} and {len(self.y)}")
        if len(self.x) == 0:
            raise InputError("the training set is empty")
        if self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {self.batch_size}")

    def epoch(self, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
        for index in torch.randperm(len(self.x), generator=generator).split(self.batch_size):
            x = self.x[index]
            yield (x if self.augment is None else self.augment(x, generator)), self.y[index]


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Attributes:
        weight_decay: on the backbone only unless `decay_everything`; decoupled with `adamw`, coupled L2 with `adam`.
        clip_norm: largest norm of the whole gradient, or None.
        scheduler: `step` multiplies the rate by `factor` every `step_size` epochs; `plateau` does so after `patience`
            epochs without a better `watch`.
        frozen_share: share of the epochs in which the backbone is frozen (two-stage training); afterwards everything
            is trained at `finetune_scale` times the rate.
        watch: figure that early stopping and `plateau` follow, lower is better; `loss` is that of the training data.
        stop_patience: stop after so many epochs without a better `watch`, and go back to the best weights; None never.
        mixed_precision: bfloat16 autocast where there is a GPU.
    """

    epochs: int = 40
    learning_rate: float = 1e-3
    optimizer: OptimizerName = "adam"
    weight_decay: float = 0.0
    decay_everything: bool = False
    clip_norm: float | None = None
    scheduler: SchedulerName = "none"
    step_size: int = 45
    factor: float = 0.5
    patience: int = 10
    frozen_share: float = 0.0
    finetune_scale: float = 0.1
    watch: str = "loss"
    stop_patience: int | None = None
    mixed_precision: bool = False
    temperature: TemperatureSchedule = field(default_factory=TemperatureSchedule)

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OptimizerName)
        check_choice("scheduler", self.scheduler, SchedulerName)
        rules: dict[str, tuple[bool, str]] = {
            "epochs": (self.epochs >= 1, "at least 1"),
            "learning_rate": (math.isfinite(self.learning_rate) and self.learning_rate > 0, "a number > 0"),
            "weight_decay": (math.isfinite(self.weight_decay) and self.weight_decay >= 0, "a number >= 0"),
            "clip_norm": (self.clip_norm is None or self.clip_norm > 0, "a number > 0 or None"),
            "step_size": (self.step_size >= 1, "at least 1"),
            "factor": (0 < self.factor <= 1, "in (0, 1]"),
            "patience": (self.patience >= 0, "at least 0"),
            "frozen_share": (0 <= self.frozen_share <= 1, "in [0, 1]"),
            "finetune_scale": (0 < self.finetune_scale <= 1, "in (0, 1]"),
            "stop_patience": (self.stop_patience is None or self.stop_patience >= 1, "at least 1 or None"),
        }
        for name, (holds, allowed) in rules.items():
            if not holds:
                raise InputError(f"training.{name} must be {allowed}, got {getattr(self, name)!r}")

    @property
    def frozen_epochs(self) -> int:
        return round(self.frozen_share * self.epochs)


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch did: mean loss terms, held-out figures, learning rate, temperature, seconds, samples a second."""

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
            **{f"train/{name}": value for name, value in self.terms.items()},
            **{f"valid/{name}": value for name, value in self.validation.items()},
            "train/learning_rate": self.learning_rate,
            "train/temperature": self.temperature,
            "train/samples_per_second": self.samples_per_second,
        }


def epoch_seed(seed: int, epoch: int) -> int:
    """A seed for one epoch, well mixed, so that neighbouring seeds and epochs have nothing in common."""
    return int(np.random.SeedSequence([seed, epoch + 1]).generate_state(1, np.uint64)[0] >> 1)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch; call it before a model is made, so that its first weights follow from the seed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class Trainer:
    """A model under training: run it epoch by epoch, save it between two of them, and go on exactly from there.

    Args:
        model: NBSR or a baseline; if it has a `backbone`, that part can be frozen and decayed on its own, and if it has
            `set_temperature`, its temperature is annealed.
        loss: see `LossFunction`.
        batches: training data.
        validation: figures on held-out data after each epoch; None for none.
        seed: all randomness of the training follows from it.
        device: where to train; the model is moved there.
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
    ) -> None:
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.loss, self.batches, self.config, self.validation, self.seed = (
            loss,
            batches,
            config,
            validation,
            seed,
        )
        self.epoch = 0
        self.best: float = math.inf
        self.best_epoch = -1
        self.best_weights: dict[str, Tensor] | None = None
        self.optimizer = self._make_optimizer()
        self.scheduler = self._make_scheduler()

    @property
    def finished(self) -> bool:
        patience = self.config.stop_patience
        waited = self.epoch - 1 - self.best_epoch
        return self.epoch >= self.config.epochs or (patience is not None and self.epoch > 0 and waited >= patience)

    def run(self) -> Iterator[EpochRecord]:
        """Train until finished, yielding a record after each epoch; afterwards the model holds the best weights."""
        while not self.finished:
            yield self._run_epoch()
        if self.config.stop_patience is not None and self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        self.model.eval()

    def _run_epoch(self) -> EpochRecord:
        began, epoch, config = time.perf_counter(), self.epoch, self.config
        seed_everything(epoch_seed(self.seed, epoch))
        temperature = config.temperature(epoch)
        if hasattr(self.model, "set_temperature"):
            self.model.set_temperature(temperature)
        if epoch == config.frozen_epochs and epoch > 0:
            for group in self.optimizer.param_groups:
                group["lr"] *= config.finetune_scale
        frozen = self._backbone() if epoch < config.frozen_epochs else None
        self.model.train()
        self._set_frozen(frozen is not None)
        sums: dict[str, Tensor] = {}
        samples = 0
        autocast = torch.autocast(
            self.device.type, torch.bfloat16, enabled=config.mixed_precision and self.device.type == "cuda"
        )
        for x, y in self.batches.epoch(self.seed, epoch):
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            self.optimizer.zero_grad(set_to_none=True)
            with autocast:
                terms = self.loss(self.model, x, y, epoch)
            terms["loss"].backward()
            if config.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
            self.optimizer.step()
            samples += len(y)
            for name, value in terms.items():
                sums[name] = sums.get(name, torch.zeros((), device=self.device)) + value.detach() * len(y)
        means = {name: float(value) / samples for name, value in sums.items()}
        if not math.isfinite(means["loss"]):
            raise InputError(
                f"training diverged: the loss of epoch {epoch} is {means['loss']} (lower the learning rate?)"
            )
        self._set_frozen(False)
        self.model.eval()
        figures = {} if self.validation is None else dict(self.validation(self.model))
        learning_rate = float(self.optimizer.param_groups[-1]["lr"])
        self._judge({**{"loss": means["loss"]}, **figures}, epoch)
        self.epoch += 1
        seconds = time.perf_counter() - began
        return EpochRecord(epoch, means, figures, learning_rate, temperature, seconds, samples / seconds)

    def _judge(self, figures: Mapping[str, float], epoch: int) -> None:
        watch = self.config.watch
        if watch not in figures:
            raise InputError(f"training.watch must be one of {', '.join(sorted(figures))}, got {watch!r}")
        if figures[watch] < self.best:
            self.best, self.best_epoch = figures[watch], epoch
            if self.config.stop_patience is not None:
                self.best_weights = copy.deepcopy(self.model.state_dict())
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(figures[watch])
        elif self.scheduler is not None:
            self.scheduler.step()

    def _backbone(self) -> nn.Module | None:
        backbone = getattr(self.model, "backbone", None)
        return backbone if isinstance(backbone, nn.Module) else None

    def _set_frozen(self, frozen: bool) -> None:
        backbone = self._backbone()
        if backbone is not None and self.config.frozen_epochs:
            backbone.requires_grad_(not frozen)
            if frozen:
                backbone.eval()  # batch norm's statistics are frozen too

    def _make_optimizer(self) -> torch.optim.Optimizer:
        config, backbone = self.config, self._backbone()
        inside = {id(p) for p in backbone.parameters()} if backbone is not None else set()
        decayed = [p for p in self.model.parameters() if id(p) in inside or config.decay_everything]
        others = [p for p in self.model.parameters() if not (id(p) in inside or config.decay_everything)]
        groups: list[dict[str, Any]] = []
        if decayed:
            groups.append({"params": decayed, "weight_decay": config.weight_decay})
        if others:
            groups.append({"params": others, "weight_decay": 0.0})
        if not groups:
            raise InputError("the model has no parameters to train")
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, lr=config.learning_rate, fused=True)

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
        return {
            "config": {k: v for k, v in asdict(self.config).items()},
            "seed": self.seed,
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "best": self.best,
            "best_epoch": self.best_epoch,
            "best_weights": self.best_weights,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; training under other settings would not be the same run, so it is refused."""
        mine = {"config": asdict(self.config), "seed": self.seed}
        for key, value in mine.items():
            if state[key] != value:
                raise InputError(f"the checkpoint was made with another {key}: {state[key]!r}, not {value!r}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.epoch, self.best, self.best_epoch = state["epoch"], state["best"], state["best_epoch"]
        self.best_weights = state["best_weights"]

    def save(self, path: Path | str) -> None:
        """Write a checkpoint so that the file is whole or not there at all."""
        save_atomically(self.state_dict(), Path(path))

    def resume(self, path: Path | str) -> None:
        """Load a checkpoint written by `save`; nothing in it can run code."""
        self.load_state_dict(torch.load(path, map_location=self.device, weights_only=True))


def save_atomically(state: Any, path: Path) -> None:
    """Save beside the target and rename: a reader never sees half a file, and a crash leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
