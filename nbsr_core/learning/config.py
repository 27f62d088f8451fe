"""How to train: every setting of the loop in one place, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from nbsr_core.errors import InputError
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import TemperatureSchedule, check_choice

OptimizerName = Literal["adam", "adamw", "muon"]
SchedulerName = Literal["none", "step", "plateau", "linear"]


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Attributes:
        epochs: passes over the training split.
        batch_size: samples of one step, for whoever makes the batches.
        learning_rate: of the optimizer; the scheduler multiplies it. With `muon`, that of heads, routers and experts.
        optimizer: `adamw` decouples the weight decay from the gradient. `muon` turns the weights of the backbone's
            linear and convolutional layers by an orthogonal matrix at each step, however large the gradient is, and
            moves all else by gradient descent with Nesterov's momentum; picture backbones learn in far fewer epochs.
        muon_rate: how far `muon` turns those weights; at 0.24, by a quarter of what a matrix of length one a row is.
        bias_rate: rate of what else the backbone learns, with `muon`: biases, which batch norm leaves next to no
            gradient. None takes `learning_rate`.
        weight_decay: on the backbone only unless `decay_everything`, and on everything where a model has no backbone;
            decoupled with `adamw`, coupled L2 with `adam`. With `muon`, decoupled and on what it turns alone; with
            `decay_everything` on all else too, coupled.
        decay_everything: routers and experts are decayed too.
        label_smoothing: share of each label that is spread evenly over all classes, in the likelihood that a model is
            trained for (of a walk, that of every depth); routers are taught by the label as it is, and judging never
            smooths.
        clip_norm: largest norm of the whole gradient, or None.
        scheduler: `step` multiplies the rate by `factor` every `step_size` epochs; `plateau` does so after `patience`
            epochs without a better `watch`; `linear` lets it rise to its full height over `warmup_share` of all steps
            and fall to zero over the rest, from batch to batch.
        step_size: epochs between two steps of the rate.
        factor: what the rate is multiplied by at each step.
        patience: epochs without a better `watch` after which the rate falls.
        warmup_share: share of all steps in which the rate rises.
        frozen_share: share of the epochs in which the backbone is frozen (two-stage training); afterwards everything
            is trained at `finetune_scale` times the rate.
        finetune_scale: what the rate is multiplied by when the backbone is no longer frozen.
        watch: figure that early stopping and `plateau` follow, lower is better: one of the validation, or a term of
            the training loss where the validation has none of that name.
        stop_patience: stop after so many epochs without a better `watch` (not before fine-tuning has had them), and
            go back to the best weights; None never does either.
        mixed_precision: train the backbone in bfloat16 where the device is faster so: GPUs, and CPUs with `avx512_bf16`
            or `amx_bf16`. Walks and weights stay in float32, and so does every answer after training: a stored model
            shall say the same wherever it is asked.
        compile: torch.compile of the backbone where there is a GPU.
        temperature: that of the routers by epoch.
    """

    epochs: int = 40
    batch_size: int = 128
    learning_rate: float = 1e-3
    optimizer: OptimizerName = "adam"
    muon_rate: float = field(
        default=0.24, metadata=counts_when("optimizer is muon", lambda training: training.optimizer == "muon")
    )
    bias_rate: float | None = field(
        default=None, metadata=counts_when("optimizer is muon", lambda training: training.optimizer == "muon")
    )
    weight_decay: float = 0.0
    decay_everything: bool = field(
        default=False, metadata=counts_when("weight_decay is above 0", lambda training: training.weight_decay > 0)
    )
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    scheduler: SchedulerName = "none"
    step_size: int = field(
        default=45, metadata=counts_when("scheduler is step", lambda training: training.scheduler == "step")
    )
    factor: float = field(
        default=0.5,
        metadata=counts_when(
            "scheduler is step or plateau", lambda training: training.scheduler in ("step", "plateau")
        ),
    )
    patience: int = field(
        default=10, metadata=counts_when("scheduler is plateau", lambda training: training.scheduler == "plateau")
    )
    warmup_share: float = field(
        default=0.1, metadata=counts_when("scheduler is linear", lambda training: training.scheduler == "linear")
    )
    frozen_share: float = 0.0
    finetune_scale: float = field(
        default=0.1,
        metadata=counts_when(
            "frozen_share leaves epochs before and after it",
            lambda training: 0 < training.frozen_epochs < training.epochs,
        ),
    )
    watch: str = field(
        default="loss",
        metadata=counts_when(
            "scheduler is plateau or stop_patience is set",
            lambda training: training.scheduler == "plateau" or training.stop_patience is not None,
        ),
    )
    stop_patience: int | None = None
    mixed_precision: bool = False
    compile: bool = False
    temperature: TemperatureSchedule = field(default_factory=TemperatureSchedule)

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OptimizerName)
        check_choice("scheduler", self.scheduler, SchedulerName)
        clip, stop, bias = self.clip_norm, self.stop_patience, self.bias_rate
        rules: dict[str, tuple[bool, str]] = {
            "epochs": (self.epochs >= 1, "at least 1"),
            "batch_size": (self.batch_size >= 1, "at least 1"),
            "learning_rate": (math.isfinite(self.learning_rate) and self.learning_rate > 0, "a finite number > 0"),
            "muon_rate": (math.isfinite(self.muon_rate) and self.muon_rate > 0, "a finite number > 0"),
            "bias_rate": (bias is None or (math.isfinite(bias) and bias > 0), "a finite number > 0 or None"),
            "weight_decay": (math.isfinite(self.weight_decay) and self.weight_decay >= 0, "a finite number >= 0"),
            "label_smoothing": (0 <= self.label_smoothing < 1, "in [0, 1)"),
            "clip_norm": (clip is None or (math.isfinite(clip) and clip > 0), "a finite number > 0 or None"),
            "step_size": (self.step_size >= 1, "at least 1"),
            "factor": (0 < self.factor < 1, "in (0, 1)"),
            "patience": (self.patience >= 0, "at least 0"),
            "warmup_share": (0 <= self.warmup_share < 1, "in [0, 1)"),
            "frozen_share": (0 <= self.frozen_share <= 1, "in [0, 1]"),
            "finetune_scale": (0 < self.finetune_scale <= 1, "in (0, 1]"),
            "stop_patience": (stop is None or stop >= 1, "at least 1 or None"),
        }
        for name, (holds, allowed) in rules.items():
            if not holds:
                raise InputError(f"training.{name} must be {allowed}, got {getattr(self, name)!r}")

    @property
    def frozen_epochs(self) -> int:
        """Epochs of the first stage, in which the backbone stands still."""
        return round(self.frozen_share * self.epochs)

    @property
    def grows(self) -> bool:
        """Whether a training of more epochs begins with the epochs of this one: no setting is a share of them all."""
        return self.frozen_share == 0 and self.scheduler != "linear"

    def linear_share(self, progress: float) -> float:
        """What `scheduler: linear` multiplies the rate by when so much of all training is done, from 0 to 1."""
        if progress < self.warmup_share:
            return progress / self.warmup_share
        return (1 - progress) / (1 - self.warmup_share)
