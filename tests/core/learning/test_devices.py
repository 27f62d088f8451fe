"""What training does on some devices and not on others, run on a CPU: mixed precision and compiled backbones."""

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


WITH_BFLOAT16 = {"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}
WITHOUT = {"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}


def on_cpu_with(monkeypatch: pytest.MonkeyPatch, able: Mapping[str, bool]) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)


def test_mixed_precision_is_for_devices_that_are_faster_so_and_compiling_for_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_cpu_with(monkeypatch, WITHOUT)
    plain, asked = make_trainer(), make_trainer(replace(SHORT, mixed_precision=True, compile=True))
    assert timeless(list(plain.run())) == timeless(list(asked.run()))
    assert same_weights(plain.model, asked.model)


@pytest.mark.parametrize(
    ("able", "fast"),
    [(WITH_BFLOAT16, True), ({"amx_bf16": True}, True), (WITHOUT, False), ({"architecture": "aarch64"}, False)],
)
def test_a_cpu_says_itself_what_it_can(able: dict[str, bool], fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu_with(monkeypatch, able)
    assert devices.has_fast_bfloat16(torch.device("cpu")) is fast
    assert devices.mixed_precision(torch.device("cpu"), wanted=True)._enabled is fast
    assert not devices.mixed_precision(torch.device("cpu"), wanted=False)._enabled
    assert devices.has_fast_bfloat16(torch.device("cuda"))
    assert not devices.has_fast_bfloat16(torch.device("meta"))


def test_this_cpu_is_what_the_system_says_it_is() -> None:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        pytest.skip("no other witness on this system")
    flags = set(info.read_text().split())
    assert devices.has_fast_bfloat16(torch.device("cpu")) == bool(flags & {"avx512_bf16", "amx_bf16"})


def test_mixed_precision_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backbone in bfloat16, beliefs and weights in float32, and answers after an epoch in float32 as well."""
    on_cpu_with(monkeypatch, WITH_BFLOAT16)
    seen: dict[str, set[torch.dtype]] = {"oracle": set(), "belief": set()}

    def watched(model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Mapping[str, Tensor]:
        trace = model(x)
        seen["oracle"].add(model.backbone(x).dtype)  # type: ignore[operator]
        seen["belief"].add(trace.alpha.dtype)
        return OBJECTIVE(trace, y, epoch=epoch)

    judged: set[torch.dtype] = set()

    def validation(model: nn.Module) -> dict[str, float]:
        judged.add(model.backbone(torch.randn(4, 6)).dtype)  # type: ignore[operator]
        return {}

    plain = make_trainer()
    mixed = make_trainer(replace(SHORT, mixed_precision=True), loss=watched, validation=validation)
    losses = [[record.terms["loss"] for record in trainer.run()] for trainer in (plain, mixed)]
    assert seen == {"oracle": {torch.bfloat16}, "belief": {torch.float32}}
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert judged == {torch.float32}
    assert {parameter.dtype for parameter in mixed.model.parameters()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiling_where_it_pays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The backbone is compiled in place: the same losses up to rounding, and weights that fit the plain model."""
    monkeypatch.setattr(devices, "COMPILES", {"cpu"})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    short = replace(SHORT, epochs=2)
    trainers = [make_trainer(config, model=make_compilable_model()) for config in (short, replace(short, compile=True))]
    losses = [[record.terms["loss"] for record in trainer.run()] for trainer in trainers]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert list(tmp_path.rglob("*.cpp")), "nothing was compiled"
    trainers[0].model.load_state_dict(trainers[1].model.state_dict())
