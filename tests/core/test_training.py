"""Training: what each setting does, and that a run can be repeated, stopped and resumed to the last bit."""

from __future__ import annotations

import math
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import nbsr_core as nbsr
from nbsr_core.training import (
    EpochRecord,
    TensorBatches,
    Trainer,
    TrainingConfig,
    epoch_seed,
    load_checkpoint,
    save_atomically,
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


# ---------------------------------------------------------------------------------------------------------- the loop


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
    seen = []

    def watching(model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Mapping[str, Tensor]:
        seen.append((epoch, model.tau))
        return loss(model, x, y, epoch)

    schedule = nbsr.TemperatureSchedule(start=2.0, decay=0.5, floor=0.3)
    records = list(make_trainer(replace(SHORT, temperature=schedule), loss=watching).run())
    assert [record.temperature for record in records] == pytest.approx([2.0, 1.0, 0.5, 0.3, 0.3, 0.3])
    assert set(seen) == {(record.epoch, record.temperature) for record in records}


def test_gradients_are_clipped() -> None:
    def norms(clip: float | None) -> list[float]:
        trainer = make_trainer(replace(SHORT, clip_norm=clip, epochs=2))
        found, step = [], trainer.optimizer.step

        def watched() -> None:
            gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
            found.append(torch.cat([g.flatten() for g in gradients]).norm().item())
            step()

        trainer.optimizer.step = watched  # type: ignore[method-assign]
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
def test_only_the_backbone_decays_unless_all_shall(optimizer: str, kind: type) -> None:
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

    def after(optimizer: str) -> float:
        model = nn.Linear(6, 3)
        nn.init.constant_(model.weight, 0.5)
        trainer = Trainer(
            model,
            lambda m, _x, _y, _e: {"loss": (0 * m.weight).sum() + (0 * m.bias).sum()},
            TensorBatches(*data(32), batch_size=32),
            TrainingConfig(epochs=1, learning_rate=0.1, optimizer=optimizer, weight_decay=0.2),  # type: ignore[arg-type]
        )
        list(trainer.run())
        return model.weight[0, 0].item()

    assert after("adamw") == pytest.approx(0.5 * (1 - 0.1 * 0.2), rel=1e-5)
    assert after("adam") == pytest.approx(0.4, rel=1e-4)


def test_two_stages() -> None:
    """In the first the backbone and its batch norm stand still; in the second all move, at a tenth of the rate."""
    config = replace(SHORT, epochs=6, frozen_share=0.5, finetune_scale=0.1)
    model = make_model()
    model.backbone[4].bias.requires_grad_(False)  # frozen by the user, for good
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
    assert not model.backbone[4].bias.requires_grad
    assert model.backbone[0].weight.requires_grad


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


def test_mixed_precision_is_for_gpus_only() -> None:
    plain, mixed = make_trainer(), make_trainer(replace(SHORT, mixed_precision=True))
    assert timeless(list(plain.run())) == timeless(list(mixed.run()))
    assert same_weights(plain.model, mixed.model)


# ------------------------------------------------------------------------------------------- repeating and resuming


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    one, other, third = make_trainer(seed=3), make_trainer(seed=3), make_trainer(seed=4)
    records = timeless(list(one.run()))
    for disturbed in other.run():
        torch.randn(disturbed.epoch + 1), random.random(), np.random.random()  # what others draw does not matter
    assert same_weights(one.model, other.model)
    assert timeless(list(third.run())) != records
    assert not same_weights(one.model, third.model)


EXACT = {
    "plain": SHORT,
    "step": replace(SHORT, scheduler="step", step_size=2, clip_norm=0.5),
    "plateau": replace(SHORT, scheduler="plateau", patience=0, factor=0.3, watch="error"),
    "early stopping": replace(SHORT, epochs=30, learning_rate=0.1, stop_patience=3, watch="nll"),
    "two stages": replace(SHORT, frozen_share=0.5, optimizer="adamw", weight_decay=0.1, scheduler="step", step_size=2),
}


@cache
def never_stopped(name: str) -> tuple[Trainer, list[EpochRecord]]:
    trainer = make_trainer(EXACT[name], seed=5, model=make_model(depth=2))
    return trainer, timeless(list(trainer.run()))


@pytest.mark.parametrize("stop_after", [1, 3, 4])
@pytest.mark.parametrize("name", EXACT)
def test_a_resumed_run_equals_one_that_was_never_stopped(name: str, stop_after: int, tmp_path: Path) -> None:
    whole, records = never_stopped(name)
    assert name != "early stopping" or len(records) < 30
    first = make_trainer(EXACT[name], seed=5, model=make_model(depth=2))
    before = [record for _, record in zip(range(stop_after), first.run(), strict=False)]
    first.save(tmp_path / "run.pt")
    second = make_trainer(EXACT[name], seed=5, model=make_model(seed=99, depth=2))  # its own weights are overwritten
    torch.randn(7)
    second.resume(tmp_path / "run.pt")
    after = list(second.run())
    assert timeless([*before, *after]) == records
    assert same_weights(whole.model, second.model)
    assert (whole.best, whole.best_epoch, whole.epoch) == (second.best, second.best_epoch, second.epoch)


def test_a_finished_run_resumes_as_finished_with_its_best_weights(tmp_path: Path) -> None:
    trainer = make_trainer(EXACT["early stopping"])
    for _ in trainer.run():
        trainer.save(tmp_path / "run.pt")
    again = make_trainer(EXACT["early stopping"])
    again.resume(tmp_path / "run.pt")
    assert list(again.run()) == []
    assert same_weights(trainer.model, again.model)


def test_a_state_handed_over_in_memory_is_not_shared() -> None:
    one, other = make_trainer(), make_trainer()
    running = one.run()
    next(running)
    other.load_state_dict(one.state_dict())
    rest = list(other.run())
    assert timeless(list(running)) == timeless(rest)
    assert same_weights(one.model, other.model)


def test_an_interrupt_passes_through_and_the_last_checkpoint_goes_on(tmp_path: Path) -> None:
    whole, records = never_stopped("two stages")

    def interrupted(model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Mapping[str, Tensor]:
        if epoch == 1 and len(y) < 32:
            raise KeyboardInterrupt
        return loss(model, x, y, epoch)

    trainer = make_trainer(EXACT["two stages"], seed=5, model=make_model(depth=2), loss=interrupted)
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        for record in trainer.run():
            done.append(record)
            trainer.save(tmp_path / "run.pt")
    assert len(done) == 1
    assert all(parameter.requires_grad for parameter in trainer.model.parameters())
    with pytest.raises(nbsr.InputError, match="epoch 1 was interrupted"):
        trainer.save(tmp_path / "half.pt")
    with pytest.raises(nbsr.InputError, match="epoch 1 was interrupted"):
        next(trainer.run())
    assert not (tmp_path / "half.pt").exists()
    trainer.loss = loss
    trainer.resume(tmp_path / "run.pt")
    assert timeless([*done, *trainer.run()]) == records
    assert same_weights(trainer.model, whole.model)


# ------------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    trainer = make_trainer(EXACT["early stopping"])
    next(trainer.run())
    trainer.save(tmp_path / "folder" / "run.pt")
    return tmp_path / "folder" / "run.pt"


def test_a_checkpoint_holds_plain_values_and_leaves_nothing_else_behind(checkpoint: Path) -> None:
    state = torch.load(checkpoint, weights_only=True)
    assert state["epoch"] == 1
    assert [path.name for path in checkpoint.parent.iterdir()] == ["run.pt"]


def test_a_save_that_fails_leaves_the_old_file(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = checkpoint.read_bytes()

    def full(state: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space"):
        save_atomically({"a": 1}, checkpoint)
    assert checkpoint.read_bytes() == before
    assert [path.name for path in checkpoint.parent.iterdir()] == ["run.pt"]


class Malicious:
    """Would leave a trace if it were ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.fixture
def untouched() -> Iterator[Trainer]:
    """A trainer that must not have changed, whatever it refused to resume from."""
    trainer, twin = make_trainer(EXACT["early stopping"]), make_trainer(EXACT["early stopping"])
    yield trainer
    assert same_weights(trainer.model, twin.model)
    assert trainer.epoch == 0
    next(trainer.run())
    next(twin.run())
    assert same_weights(trainer.model, twin.model)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated_checkpoints_are_refused_by_name(checkpoint: Path, share: float, untouched: Trainer) -> None:
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(nbsr.InputError, match=r"run\.pt is damaged or no checkpoint"):
        untouched.resume(checkpoint)


@pytest.mark.parametrize("where", [0.01, 0.05, 0.5])
def test_a_checkpoint_with_a_hole_is_refused_by_name(checkpoint: Path, where: float, untouched: Trainer) -> None:
    content = bytearray(checkpoint.read_bytes())
    start = int(where * len(content))
    content[start : start + 600] = bytes(600)
    checkpoint.write_bytes(content)
    with pytest.raises(nbsr.InputError, match=r"run\.pt"):
        untouched.resume(checkpoint)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pt"
        path.write_bytes(content)
        with pytest.raises(nbsr.InputError, match=r"run\.pt"):
            load_checkpoint(path)


def test_foreign_files_are_refused_and_never_executed(tmp_path: Path, untouched: Trainer) -> None:
    path, trace = tmp_path / "foreign.pt", tmp_path / "executed"
    for content, reason in (
        ([1, 2, 3], "holds a list"),
        ({"weights": torch.ones(3)}, "lacks best, best_epoch"),
        ({"epoch": Malicious(trace)}, "damaged or no checkpoint"),
    ):
        torch.save(content, path)
        with pytest.raises(nbsr.InputError, match=rf"foreign\.pt.*{reason}"):
            untouched.resume(path)
    path.write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(nbsr.InputError, match=r"foreign\.pt"):
        untouched.resume(path)
    assert not trace.exists()
    with pytest.raises(nbsr.InputError, match=r"no checkpoint .*absent\.pt"):
        untouched.resume(tmp_path / "absent.pt")


def test_checkpoints_of_other_runs_are_refused(checkpoint: Path, untouched: Trainer) -> None:
    config = EXACT["early stopping"]
    with pytest.raises(nbsr.InputError, match=r"run\.pt.*seed 0, not 1"):
        make_trainer(config, seed=1).resume(checkpoint)
    with pytest.raises(nbsr.InputError, match=r"run\.pt.*learning_rate 0\.1, not 0\.2"):
        make_trainer(replace(config, learning_rate=0.2)).resume(checkpoint)
    other = nbsr.NBSR(nn.Linear(6, 8), nbsr.DecisionGraph.chain(1), 3, 8)
    with pytest.raises(nbsr.InputError, match=r"run\.pt.*another model"):
        make_trainer(config, model=other).resume(checkpoint)
    almost = torch.load(checkpoint, weights_only=True)
    del almost["model"]["prior"]  # all the rest would fit
    torch.save(almost, checkpoint)
    with pytest.raises(nbsr.InputError, match=r"run\.pt.*another model"):
        untouched.resume(checkpoint)


def test_a_fitted_density_is_resumed_with_the_model(tmp_path: Path) -> None:
    def trainer() -> Trainer:
        model = make_model()
        model.density = nbsr.DensityFactor(8)
        return make_trainer(model=model)

    first, second = trainer(), trainer()
    with torch.no_grad():
        first.model.fit_density(first.model.eval().oracle(data()[0]), data()[1])
    first.save(tmp_path / "run.pt")
    second.resume(tmp_path / "run.pt")
    assert second.model.density.fitted
    assert same_weights(first.model, second.model)


# -------------------------------------------------------------------------------------------------- batches and seeds


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
    config = EXACT["two stages"]
    assert pickle.loads(pickle.dumps(config)) == config
    record = next(make_trainer().run())
    assert pickle.loads(pickle.dumps(record)) == record


# ----------------------------------------------------------------------------------------------------------- mistakes


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
    with pytest.raises(nbsr.InputError, match="optimizer must be one of 'adam', 'adamw', got 'sgd'"):
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
