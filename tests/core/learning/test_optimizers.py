"""Muon on a backbone's matrices and gradient descent on the rest: torch's own steps, and rates where they belong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_runs import SHORT, data, make_model, make_trainer

import nbsr_core as nbsr
from nbsr_core.learning import Trainer, TrainingConfig, seed_everything
from nbsr_core.learning.optimizers import MuonAndDescent, make_optimizer, matrices_of

MUON = replace(SHORT, optimizer="muon", learning_rate=0.01, muon_rate=0.1, bias_rate=0.5, weight_decay=0.2)


class Convolutions(nn.Module):
    def __init__(self, memory_format: torch.memory_format) -> None:
        super().__init__()
        seed_everything(0)
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, (3, 1)), nn.Flatten())
        self.backbone.to(memory_format=memory_format)  # type: ignore[call-overload]
        self.head = nn.Linear(4 * 4 * 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(x))
        return logits


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 3) -> None:
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        x, y = torch.randn(16, 3, 8, 8, generator=generator), torch.randint(3, (16,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


class ReferenceFilters(nn.Module):
    """The same network whose filters are matrices from the start, as torch's Muon wants them."""

    def __init__(self, model: Convolutions) -> None:
        super().__init__()
        self.shapes = [weight.shape for weight in matrices_of(model.backbone)]
        self.matrices = nn.ParameterList(w.detach().flatten(1).clone() for w in matrices_of(model.backbone))
        self.biases = nn.ParameterList(
            part.bias.detach().clone()
            for part in model.backbone
            if isinstance(part, nn.Conv2d) and part.bias is not None
        )
        self.head = nn.Linear(4 * 4 * 6, 3)
        self.head.load_state_dict(model.head.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        first, second = (m.view(shape) for m, shape in zip(self.matrices, self.shapes, strict=True))
        h = F.conv2d(F.conv2d(x, first, self.biases[0]).relu(), second, self.biases[1])
        logits: Tensor = self.head(h.flatten(1))
        return logits


class Both(torch.optim.Optimizer):
    """Two optimizers after each other, without any copying."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def test_filters_move_as_torchs_muon_moves_them_as_matrices() -> None:
    model = Convolutions(torch.contiguous_format)
    reference = ReferenceFilters(model)
    plain = Both(
        torch.optim.Muon(reference.matrices, lr=0.1, weight_decay=0.2, momentum=0.6),
        torch.optim.SGD(reference.head.parameters(), lr=0.01, momentum=0.85, nesterov=True),
        torch.optim.SGD(reference.biases, lr=0.5, momentum=0.85, nesterov=True),
    )
    steps(model, make_optimizer(model, model.backbone, MUON))
    steps(reference, plain)
    for weight, matrix in zip(matrices_of(model.backbone), reference.matrices, strict=True):
        assert torch.allclose(weight.flatten(1), matrix, atol=1e-6)
    assert torch.allclose(model.head.weight, reference.head.weight, atol=1e-6)
    assert torch.allclose(model.backbone[0].bias, reference.biases[0], atol=1e-6)  # type: ignore[arg-type]


def test_the_layout_of_filters_in_memory_makes_no_difference() -> None:
    """Up to what torch's convolutions themselves round differently."""
    models = [Convolutions(layout) for layout in (torch.contiguous_format, torch.channels_last)]
    optimizers = [make_optimizer(model, model.backbone, MUON) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        steps(model, optimizer)
    one, other = (matrices_of(model.backbone) for model in models)
    assert not other[0].is_contiguous()
    assert all(torch.allclose(a, b, atol=2e-2) for a, b in zip(one, other, strict=True))  # Muon rounds to bfloat16
    for a, b in zip(*(optimizer.state_dict()["muon"]["state"].values() for optimizer in optimizers), strict=True):
        assert torch.allclose(a["momentum_buffer"], b["momentum_buffer"], atol=1e-2)


def rates(trainer: Trainer) -> dict[int, float]:
    return {id(p): group["lr"] for group in trainer.optimizer.param_groups for p in group["params"]}


def test_each_part_has_its_rate_and_the_matrices_alone_decay() -> None:
    model = make_model()
    trainer = make_trainer(MUON, model=model)
    optimizer = trainer.optimizer
    assert isinstance(optimizer, MuonAndDescent)
    assert len(optimizer.turned) == 2
    assert {id(w) for w in optimizer.turned} == {id(model.backbone[0].weight), id(model.backbone[4].weight)}  # type: ignore[index]
    found = rates(trainer)
    for name, parameter in model.named_parameters():
        if id(parameter) in found:
            assert found[id(parameter)] == (0.5 if name.startswith("backbone") else 0.01), name
    assert optimizer.muon.param_groups[0]["lr"] == 0.1
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.0, 0.2]
    everything = make_trainer(replace(MUON, decay_everything=True))
    assert [group["weight_decay"] for group in everything.optimizer.param_groups] == [0.2, 0.2, 0.2]
    alike = make_trainer(replace(MUON, bias_rate=None))
    assert [group["lr"] for group in alike.optimizer.param_groups] == [0.01, 0.01, 0.1]


def test_it_learns_and_every_parameter_moves() -> None:
    trainer = make_trainer(replace(MUON, epochs=8, weight_decay=0.0))
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    records = list(trainer.run())
    assert records[-1].terms["nll"] < 0.9 * records[0].terms["nll"]
    assert [name for name, value in trainer.model.named_parameters() if torch.equal(value, before[name])] == []


def test_a_frozen_backbone_stands_still() -> None:
    trainer = make_trainer(replace(MUON, frozen_share=0.5))
    before = [weight.detach().clone() for weight in matrices_of(trainer.model.backbone)]  # type: ignore[arg-type]
    running = trainer.run()
    moved = []
    for _ in running:
        now = matrices_of(trainer.model.backbone)  # type: ignore[arg-type]
        moved.append(not all(torch.equal(a, b) for a, b in zip(before, now, strict=True)))
    assert moved == [False, False, False, True, True, True]


def test_a_model_without_matrices_in_a_backbone_is_refused() -> None:
    with pytest.raises(nbsr.InputError, match=r"optimizer: muon turns the layers of a `backbone`, and that of Linear"):
        make_trainer(MUON, model=nn.Linear(6, 3))
    embedding = nbsr.NBSR(nn.Identity(), nbsr.DecisionGraph.chain(1), 3, 6)
    with pytest.raises(nbsr.InputError, match="that of NBSR has none; choose adam or adamw"):
        make_trainer(MUON, model=embedding)
    with pytest.raises(nbsr.InputError, match="without a closure"):
        make_trainer(MUON).optimizer.step(lambda: 0.0)


# ------------------------------------------------------------------------------------------------------ linear schedule


def test_the_rate_rises_and_falls_in_a_straight_line_from_step_to_step(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SHORT, epochs=5, scheduler="linear", warmup_share=0.2, learning_rate=1.0)
    trainer = make_trainer(config, validation=None)  # 36 rows in batches of 32: two steps an epoch
    seen: list[float] = []
    step = trainer.optimizer.step

    def watched() -> None:
        seen.append(trainer.optimizer.param_groups[0]["lr"])
        step()

    monkeypatch.setattr(trainer.optimizer, "step", watched)
    records = list(trainer.run())
    places = [(number + 0.5) / 10 for number in range(10)]
    assert seen == pytest.approx([place / 0.2 if place < 0.2 else (1 - place) / 0.8 for place in places])
    assert [record.learning_rate for record in records] == pytest.approx(seen[::2])


def test_it_has_to_know_how_many_steps_there_are() -> None:
    class Uncounted:
        def epoch(self, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
            yield data()

    with pytest.raises(nbsr.InputError, match="how many batches an epoch has, and Uncounted does not say"):
        make_trainer(replace(SHORT, scheduler="linear"), batches=Uncounted())
    assert len(list(make_trainer(replace(SHORT, epochs=1), batches=Uncounted()).run())) == 1


def test_a_schedule_that_is_a_share_of_all_steps_does_not_grow() -> None:
    assert not TrainingConfig(scheduler="linear").grows
    assert TrainingConfig(optimizer="muon").grows


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("muon_rate", 0.0, "> 0"), ("bias_rate", -1.0, "> 0 or None"), ("warmup_share", 1.0, r"in \[0, 1\)")],
)
def test_bad_values(option: str, value: float, allowed: str) -> None:
    with pytest.raises(nbsr.InputError, match=rf"training\.{option} must be .*{allowed}, got {value}"):
        TrainingConfig(**{option: value})  # type: ignore[arg-type]
