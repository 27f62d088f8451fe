"""What training does on a GPU and not on a CPU, run on the CPU: mixed precision and compiled backbones."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_runs import OBJECTIVE, SHORT, make_trainer, same_weights, timeless

import nbsr_core as nbsr
from nbsr_core.learning import devices, seed_everything


class Embedding(nn.Module):
    """Without dropout, whose draws a compiled network takes in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        embedded: Tensor = self.layers(x)
        return embedded


def make_compilable_model() -> nbsr.NBSR:
    seed_everything(0)
    return nbsr.NBSR(Embedding(), nbsr.DecisionGraph.uniform(depth=1, width=2), 3, 8)


def test_mixed_precision_and_compiling_are_for_gpus_only() -> None:
    plain, asked = make_trainer(), make_trainer(replace(SHORT, mixed_precision=True, compile=True))
    assert timeless(list(plain.run())) == timeless(list(asked.run()))
    assert same_weights(plain.model, asked.model)


def test_mixed_precision_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU would compute, computed by the CPU: a backbone in bfloat16, beliefs and weights in float32."""
    monkeypatch.setattr(devices, "ACCELERATED", {"cpu"})
    seen: dict[str, set[torch.dtype]] = {"oracle": set(), "belief": set()}

    def watched(model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Mapping[str, Tensor]:
        trace = model(x)
        seen["oracle"].add(model.backbone(x).dtype)  # type: ignore[operator]
        seen["belief"].add(trace.alpha.dtype)
        return OBJECTIVE(trace, y, epoch=epoch)

    plain, mixed = make_trainer(), make_trainer(replace(SHORT, mixed_precision=True), loss=watched)
    losses = [[record.terms["loss"] for record in trainer.run()] for trainer in (plain, mixed)]
    assert seen == {"oracle": {torch.bfloat16}, "belief": {torch.float32}}
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert {parameter.dtype for parameter in mixed.model.parameters()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiling_where_it_pays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The backbone is compiled in place: the same losses up to rounding, and weights that fit the plain model."""
    monkeypatch.setattr(devices, "ACCELERATED", {"cpu"})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    short = replace(SHORT, epochs=2)
    trainers = [make_trainer(config, model=make_compilable_model()) for config in (short, replace(short, compile=True))]
    losses = [[record.terms["loss"] for record in trainer.run()] for trainer in trainers]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert list(tmp_path.rglob("*.cpp")), "nothing was compiled"
    trainers[0].model.load_state_dict(trainers[1].model.state_dict())
