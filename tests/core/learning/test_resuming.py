"""A run of training can be repeated, stopped and resumed to the last bit; what is no checkpoint of it is refused."""

from __future__ import annotations

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
from training_runs import SHORT, data, loss, make_model, make_trainer, same_weights, timeless

import nbsr_core as nbsr
from nbsr_core.learning import (
    EpochRecord,
    Trainer,
    load_checkpoint,
    save_atomically,
)
from nbsr_core.learning.learners import Execution, NbsrLearner
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.options.specs import ObjectiveWeights

# ----------------------------------------------------------------------------------------------- repeating and resuming


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
    "muon": replace(
        SHORT, optimizer="muon", muon_rate=0.1, bias_rate=0.3, weight_decay=0.1, scheduler="step", step_size=2
    ),
    "linear": replace(SHORT, optimizer="muon", muon_rate=0.1, scheduler="linear", warmup_share=0.3, frozen_share=0.5),
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


@pytest.mark.parametrize("name", [name for name, config in EXACT.items() if config.grows])
def test_a_finished_run_grows_into_one_that_was_asked_for_more_at_once(name: str, tmp_path: Path) -> None:
    whole, records = never_stopped(name)
    short = make_trainer(replace(EXACT[name], epochs=2), seed=5, model=make_model(depth=2))
    before = []
    for record in short.run():
        before.append(record)
        short.save(tmp_path / "run.pt")
    longer = make_trainer(EXACT[name], seed=5, model=make_model(seed=99, depth=2))
    longer.resume(tmp_path / "run.pt")
    assert timeless([*before, *longer.run()]) == records
    assert same_weights(whole.model, longer.model)


@pytest.mark.parametrize("stop_patience", [None, 2])
def test_a_learner_leaves_its_last_epoch_for_those_that_may_follow(stop_patience: int | None, tmp_path: Path) -> None:
    x, y = data()
    rows = Split(x, y)
    splits = Splits(rows, rows, rows, ("a", "b", "c"), tuple("abcdef"), "toy", synthetic=True)

    def train(epochs: int, checkpoint: Path | None) -> tuple[list[EpochRecord], NbsrLearner]:
        config = replace(SHORT, epochs=epochs, stop_patience=stop_patience, watch="nll", learning_rate=0.1)
        learner = NbsrLearner(make_model(), ObjectiveWeights())
        execution = Execution(checkpoint=checkpoint, checkpoint_seconds=3600.0)
        return list(learner.train(splits, config, 3, execution)), learner

    first, _ = train(3, tmp_path / "run.pt")
    rest, grown = train(7, tmp_path / "run.pt")
    records, whole = train(7, None)
    assert timeless([*first, *rest]) == timeless(records)
    assert same_weights(grown.module, whole.module)


def test_a_run_neither_shrinks_nor_grows_where_a_setting_is_a_share_of_its_epochs(tmp_path: Path) -> None:
    whole, _ = never_stopped("plain")
    whole.save(tmp_path / "run.pt")
    with pytest.raises(nbsr.InputError, match=rf"epochs {SHORT.epochs}, not 2"):
        make_trainer(replace(SHORT, epochs=2), seed=5).resume(tmp_path / "run.pt")
    staged = EXACT["two stages"]
    trainer = make_trainer(replace(staged, epochs=2), seed=5, model=make_model(depth=2))
    list(trainer.run())
    trainer.save(tmp_path / "staged.pt")
    with pytest.raises(nbsr.InputError, match=rf"epochs 2, not {staged.epochs}"):
        make_trainer(staged, seed=5, model=make_model(depth=2)).resume(tmp_path / "staged.pt")


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


# ---------------------------------------------------------------------------------------------------------- checkpoints


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
    assert isinstance(first.model, nbsr.NBSR)
    assert isinstance(second.model, nbsr.NBSR)
    with torch.no_grad():
        first.model.fit_density(first.model.eval().oracle(data()[0]), data()[1])
    first.save(tmp_path / "run.pt")
    second.resume(tmp_path / "run.pt")
    assert second.model.density is not None
    assert second.model.density.fitted
    assert same_weights(first.model, second.model)
