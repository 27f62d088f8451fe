"""Training: what each setting does, and what is refused."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from training_runs import SHORT, Scripted, data, held_out, loss, make_model, make_trainer, noisy

import nbsr_core as nbsr
from nbsr_core.learning import (
    TensorBatches,
    Trainer,
    TrainingConfig,
    epoch_seed,
    seed_everything,
)
from nbsr_core.learning.config import OptimizerName

# ------------------------------------------------------------------------------------------------------------- the loop


def test_it_learns_and_yields_a_record_an_epoch() -> None:
    trainer = make_trainer(replace(SHORT, epochs=15), batches=TensorBatches(*data(100), batch_size=32))
    before = held_out(trainer.model.eval())["nll"]
    records = list(trainer.run())
    assert [record.epoch for record in records] == list(range(15))
    assert records[-1].validation["nll"] < min(0.8 * before, records[0].validation["nll"])
    assert trainer.finished
    assert not trainer.model.training
    assert records[-1].terms.keys() == {"loss", "nll", "every_depth", "entropy", "balance", "regulariser"}
    assert records[0].seconds > 0
    flat = records[0].flat()
    assert flat["train/nll"] == records[0].terms["nll"]
    assert flat["valid/error"] == records[0].validation["error"]
    assert list(trainer.run()) == []


def test_terms_are_means_over_samples_not_over_batches() -> None:
    """36 samples in batches of 32 leave a last one of 4."""
    x, y = data()
    model = nn.Linear(6, 3)
    wanted = F.cross_entropy(model(x), y).item()
    trainer = Trainer(
        model,
        lambda m, a, b, _: {"loss": F.cross_entropy(m(a), b)},
        TensorBatches(x, y, batch_size=32),
        TrainingConfig(epochs=1, learning_rate=1e-12),
    )
    (record,) = trainer.run()
    assert record.terms["loss"] == pytest.approx(wanted, rel=1e-5)
    assert record.validation == {}


def test_the_temperature_is_annealed() -> None:
    seen: list[tuple[int, float]] = []

    def watching(model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Mapping[str, Tensor]:
        assert isinstance(model, nbsr.NBSR)
        seen.append((epoch, model.tau))
        return loss(model, x, y, epoch)

    schedule = nbsr.TemperatureSchedule(start=2.0, decay=0.5, floor=0.3)
    records = list(make_trainer(replace(SHORT, temperature=schedule), loss=watching).run())
    assert [record.temperature for record in records] == pytest.approx([2.0, 1.0, 0.5, 0.3, 0.3, 0.3])
    assert set(seen) == {(record.epoch, record.temperature) for record in records}


def test_gradients_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def norms(clip: float | None) -> list[float]:
        trainer = make_trainer(replace(SHORT, clip_norm=clip, epochs=2))
        found, step = [], trainer.optimizer.step

        def watched() -> None:
            gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
            found.append(torch.cat([g.flatten() for g in gradients]).norm().item())
            step()

        monkeypatch.setattr(trainer.optimizer, "step", watched)
        list(trainer.run())
        return found

    assert max(norms(None)) > 0.2
    assert max(norms(0.05)) == pytest.approx(0.05, rel=1e-3)


def test_step_and_plateau_schedules() -> None:
    step = replace(SHORT, epochs=7, scheduler="step", step_size=3, factor=0.1)
    rates = [record.learning_rate for record in make_trainer(step).run()]
    assert rates == pytest.approx([1e-2] * 3 + [1e-3] * 3 + [1e-4])
    plateau = replace(SHORT, epochs=7, scheduler="plateau", patience=1, factor=0.5, watch="error")
    scripted = Scripted([0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.3])
    rates = [record.learning_rate for record in make_trainer(plateau, validation=scripted).run()]
    assert rates == pytest.approx([1e-2] * 4 + [5e-3] * 2 + [2.5e-3])


@pytest.mark.parametrize(("optimizer", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_only_the_backbone_decays_unless_all_shall(optimizer: OptimizerName, kind: type) -> None:
    config = replace(SHORT, optimizer=optimizer, weight_decay=0.3)
    trainer = make_trainer(config)
    assert type(trainer.optimizer) is kind

    def decay_of(trainer: Trainer) -> dict[int, float]:
        return {id(p): group["weight_decay"] for group in trainer.optimizer.param_groups for p in group["params"]}

    for name, parameter in trainer.model.named_parameters():
        assert decay_of(trainer)[id(parameter)] == (0.3 if name.startswith("backbone.") else 0.0)
    everything = make_trainer(replace(config, decay_everything=True))
    assert set(decay_of(everything).values()) == {0.3}
    assert len(decay_of(everything)) == len(list(everything.model.parameters()))
    flat = Trainer(nn.Linear(6, 3), loss, TensorBatches(*data()), config)
    assert set(decay_of(flat).values()) == {0.3}


def test_decoupled_decay_is_decoupled() -> None:
    """AdamW shrinks a weight that has no gradient by lr * decay a step; Adam's L2 moves it by about lr instead."""

    def after(optimizer: OptimizerName) -> float:
        model = nn.Linear(6, 3)
        nn.init.constant_(model.weight, 0.5)
        trainer = Trainer(
            model,
            lambda *_: {"loss": (0 * model.weight).sum() + (0 * model.bias).sum()},
            TensorBatches(*data(32), batch_size=32),
            TrainingConfig(epochs=1, learning_rate=0.1, optimizer=optimizer, weight_decay=0.2),
        )
        list(trainer.run())
        return model.weight[0, 0].item()

    assert after("adamw") == pytest.approx(0.5 * (1 - 0.1 * 0.2), rel=1e-5)
    assert after("adam") == pytest.approx(0.4, rel=1e-4)


def test_two_stages() -> None:
    """In the first the backbone and its batch norm stand still; in the second all move, at a tenth of the rate."""
    config = replace(SHORT, epochs=6, frozen_share=0.5, finetune_scale=0.1)
    model = make_model()
    model.get_parameter("backbone.4.bias").requires_grad_(False)  # frozen by the user, for good
    scripted = Scripted([1.0] * 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = make_trainer(config, model=model, validation=scripted)
    rates = [record.learning_rate for record in trainer.run()]
    assert rates == pytest.approx([1e-2] * 3 + [1e-3] * 3)

    def changed(epoch: int) -> set[str]:
        earlier = before if epoch == 0 else scripted.seen[epoch - 1]
        return {name for name, value in scripted.seen[epoch].items() if not torch.equal(value, earlier[name])}

    backbone = {name for name in before if name.startswith("backbone.")}
    for epoch in range(3):
        assert not changed(epoch) & backbone
        assert any(name.startswith("experts") for name in changed(epoch))
    for epoch in range(3, 6):
        assert backbone - changed(epoch) == {"backbone.4.bias"}
    assert not model.get_parameter("backbone.4.bias").requires_grad
    assert model.get_parameter("backbone.0.weight").requires_grad


def test_two_stages_and_a_schedule_multiply() -> None:
    config = replace(SHORT, epochs=6, frozen_share=0.5, finetune_scale=0.1, scheduler="step", step_size=2, factor=0.5)
    rates = [record.learning_rate for record in make_trainer(config).run()]
    assert rates == pytest.approx([1e-2, 1e-2, 5e-3, 5e-4, 2.5e-4, 2.5e-4])


def test_early_stopping_goes_back_to_the_best_weights() -> None:
    config = replace(SHORT, epochs=20, stop_patience=3, watch="error")
    scripted = Scripted([0.5, 0.3, 0.2, 0.2, 0.25, math.nan, 0.1])
    trainer = make_trainer(config, validation=scripted)
    assert [record.epoch for record in trainer.run()] == [0, 1, 2, 3, 4, 5]  # 0.2 again is not better
    assert (trainer.best, trainer.best_epoch) == (0.2, 2)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, scripted.seen[2][name])
    assert any(not torch.equal(scripted.seen[2][name], scripted.seen[5][name]) for name in scripted.seen[2])


def test_without_early_stopping_the_last_weights_stay() -> None:
    scripted = Scripted([0.1, 0.5, 0.6])
    trainer = make_trainer(replace(SHORT, epochs=3, watch="error"), validation=scripted)
    list(trainer.run())
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, scripted.seen[2][name])


def test_early_stopping_waits_for_the_second_stage() -> None:
    config = replace(SHORT, epochs=10, frozen_share=0.5, stop_patience=2, watch="error")
    scripted = Scripted([0.1] + [0.5] * 9)
    assert len(list(make_trainer(config, validation=scripted).run())) == 7
    frozen = replace(config, frozen_share=1.0)  # no second stage to wait for
    assert len(list(make_trainer(frozen, validation=Scripted([0.1] + [0.5] * 9)).run())) == 3


def test_a_figure_of_the_validation_is_watched_before_a_term_of_the_same_name() -> None:
    def validation(model: nn.Module) -> dict[str, float]:
        return {"nll": 7.0}

    trainer = make_trainer(replace(SHORT, epochs=1, watch="nll"), validation=validation)
    list(trainer.run())
    assert trainer.best == 7.0
    trainer = make_trainer(replace(SHORT, epochs=1, watch="nll"), validation=None)
    (record,) = trainer.run()
    assert trainer.best == record.terms["nll"]


# ---------------------------------------------------------------------------------------------------- batches and seeds


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**40), st.integers(0, 1000))
def test_every_sample_comes_once_an_epoch(rows: int, batch_size: int, seed: int, epoch: int) -> None:
    x = torch.arange(rows)[:, None].float()
    parts = list(TensorBatches(x, torch.arange(rows), batch_size).epoch(seed, epoch))
    assert [len(y) for _, y in parts[:-1]] == [batch_size] * (len(parts) - 1)
    assert torch.equal(torch.cat([x for x, _ in parts])[:, 0].long(), torch.cat([y for _, y in parts]))
    assert torch.cat([y for _, y in parts]).sort().values.tolist() == list(range(rows))


def test_order_and_noise_follow_from_seed_and_epoch() -> None:
    x, y = data()
    batches = TensorBatches(x, y, 32, augment=noisy)

    def drawn(seed: int, epoch: int) -> Tensor:
        torch.randn(3)
        return torch.cat([part for part, _ in batches.epoch(seed, epoch)])

    assert torch.equal(drawn(0, 0), drawn(0, 0))
    assert not torch.equal(drawn(0, 0), drawn(0, 1))
    assert not torch.equal(drawn(0, 0), drawn(1, 0))
    assert torch.equal(torch.cat([y for _, y in batches.epoch(0, 3)]).bincount(), y.bincount())


def test_epoch_seeds_have_nothing_in_common() -> None:
    seeds = [epoch_seed(s, e, purpose) for s in range(30) for e in range(30) for purpose in ("model", "batches")]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seed_everything() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), torch.rand(()).item()

    seed_everything(11)
    first = drawn()
    assert drawn() != first
    seed_everything(11)
    assert drawn() == first
    seed_everything(12)
    assert not set(drawn()) & set(first)
    with pytest.raises(nbsr.InputError, match="seed must be at least 0, got -1"):
        seed_everything(-1)


def test_what_travels_between_processes_can_be_pickled() -> None:
    batches = TensorBatches(*data(), batch_size=7, augment=noisy)
    copied = pickle.loads(pickle.dumps(batches))
    for (x, y), (a, b) in zip(batches.epoch(1, 2), copied.epoch(1, 2), strict=True):
        assert torch.equal(x, a)
        assert torch.equal(y, b)
    config = replace(SHORT, frozen_share=0.5, optimizer="adamw", scheduler="step", step_size=2)
    assert pickle.loads(pickle.dumps(config)) == config
    record = next(make_trainer().run())
    assert pickle.loads(pickle.dumps(record)) == record


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("weight_decay", -1.0),
        ("weight_decay", math.inf),
        ("clip_norm", 0.0),
        ("step_size", 0),
        ("factor", 1.0),
        ("factor", 0.0),
        ("patience", -1),
        ("frozen_share", 1.1),
        ("finetune_scale", 0.0),
        ("stop_patience", 0),
    ],
)
def test_bad_settings_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(nbsr.InputError, match=rf"training\.{field} must be .*, got {value}"):
        TrainingConfig(**{field: value})  # type: ignore[arg-type]


def test_misspelt_choices_are_refused(without_shape_checks: None) -> None:
    with pytest.raises(nbsr.InputError, match="optimizer must be one of 'adam', 'adamw', 'muon', got 'sgd'"):
        TrainingConfig(optimizer="sgd")  # type: ignore[arg-type]
    with pytest.raises(nbsr.InputError, match="scheduler must be one of"):
        TrainingConfig(scheduler="cosine")  # type: ignore[arg-type]


def test_what_cannot_be_trained_is_refused() -> None:
    x, y = data()
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: TensorBatches(x, y[:-1]), "as many, got 36 and 35"),
        (lambda: TensorBatches(x[:0], y[:0]), "empty"),
        (lambda: TensorBatches(x, y, 0), "batch_size"),
        (lambda: make_trainer(seed=-1), "seed must be at least 0"),
        (lambda: make_trainer(model=nn.ReLU()), "ReLU has no parameters"),
        (lambda: make_trainer(replace(SHORT, frozen_share=0.5), model=nn.Linear(6, 3)), "Linear has none"),
        (lambda: list(make_trainer(replace(SHORT, watch="eror")).run()), "watch must be one of .*error.*'eror'"),
        (lambda: list(make_trainer(loss=lambda m, x, y, e: {"nll": m(x).beliefs[-1].sum()}).run()), "'loss', got nll"),
    ]
    for call, message in cases:
        with pytest.raises(nbsr.InputError, match=message):
            call()


def test_an_epoch_without_data_and_a_loss_that_diverges_are_refused() -> None:
    class Nothing:
        def epoch(self, seed: int, epoch: int) -> list[tuple[Tensor, Tensor]]:
            return []

    with pytest.raises(nbsr.InputError, match="epoch 0 had no training data"):
        list(make_trainer(batches=Nothing()).run())
    diverging = Trainer(
        nn.Linear(6, 3),
        lambda m, x, _y, epoch: {"loss": m(x).sum() * (math.inf if epoch == 1 else 1.0)},
        TensorBatches(*data()),
        SHORT,
    )
    with pytest.raises(nbsr.InputError, match=r"diverged: the loss of epoch 1 is (nan|-?inf)"):
        list(diverging.run())
