"""Small runs of training that tests repeat, stop and resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nbsr_core as nbsr
from nbsr_core.learning import (
    EpochRecord,
    TensorBatches,
    Trainer,
    TrainingConfig,
    seed_everything,
)

OBJECTIVE = nbsr.Objective(every_depth=0.5, entropy=0.01, balance=0.1, regulariser=0.05, anneal_epochs=3)
SHORT = TrainingConfig(epochs=6, learning_rate=1e-2)


def data(rows: int = 36, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (rows,), generator=generator)
    return 2 * torch.eye(3, 6)[y] + torch.randn(rows, 6, generator=generator), y


def make_model(seed: int = 0, depth: int = 1) -> nbsr.NBSR:
    """Sampled routes, dropout and batch norm: all that could spoil a repetition."""
    seed_everything(seed)
    backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 8))
    return nbsr.NBSR(backbone, nbsr.DecisionGraph.uniform(depth=depth, width=2), 3, 8)


def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.3 * torch.randn(x.shape, generator=generator)


def loss(model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Mapping[str, Tensor]:
    return OBJECTIVE(model(x), y, epoch=epoch)


@torch.no_grad()
def held_out(model: nn.Module) -> dict[str, float]:
    x, y = data(seed=1)
    probs = model(x).probabilities()
    return {"nll": F.nll_loss(probs.log(), y).item(), "error": (probs.argmax(-1) != y).float().mean().item()}


def make_trainer(config: TrainingConfig = SHORT, seed: int = 0, **options: object) -> Trainer:
    given: dict[str, object] = {
        "model": make_model(),
        "loss": loss,
        "batches": TensorBatches(*data(), batch_size=32, augment=noisy),
        "validation": held_out,
        **options,
    }
    return Trainer(config=config, seed=seed, **given)  # type: ignore[arg-type]


def timeless(records: list[EpochRecord]) -> list[EpochRecord]:
    return [replace(record, seconds=0.0, samples_per_second=0.0) for record in records]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Scripted:
    """A validation whose figure is known beforehand, and which remembers the weights that it saw."""

    def __init__(self, figures: list[float]) -> None:
        self.figures, self.seen = iter(figures), list[dict[str, Tensor]]()

    def __call__(self, model: nn.Module) -> dict[str, float]:
        self.seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"error": next(self.figures)}
