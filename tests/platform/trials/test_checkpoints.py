"""A long trial on one worker that was cut off goes on from where it was, and ends as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.study.study import Study
from nbsr_platform.trials.checkpoints import CHECKPOINT, Checkpoints, run_alone
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid

from nbsr_core.learning import EpochRecord

Events = list[EpochRecord | TrialResult]


@pytest.fixture(scope="module")
def trial() -> Trial:
    study = Study.from_dict(
        {
            "name": "cut-off",
            "domain": "navigation",
            "data": {"task": "tmaze", "train": 24, "valid": 10, "test": 10},
            "training": {"epochs": 5, "batch_size": 16},
            "models": {"nbsr_mem": {"encoder": {"channels": [4, 4]}, "dagger": {"rounds": 2, "episodes": 6}}},
        }
    )
    (only,) = grid(study, data_fingerprint(study))
    return only


def test_a_short_trial_that_cannot_grow_leaves_no_checkpoint(tmp_path: Path, trial: Trial) -> None:
    assert len(list(events(trial, tmp_path / "kept", seconds=60.0))) == 6
    assert not (tmp_path / "kept").exists()


def test_two_checkpoints_are_kept(tmp_path: Path, trial: Trial) -> None:
    list(events(trial, tmp_path))
    assert len(list(tmp_path.rglob(CHECKPOINT))) == 2
    assert not list(tmp_path.rglob(".*"))


def test_a_disk_that_takes_no_checkpoint_does_not_end_a_trial(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    *_, result = events(trial, Path("/proc/nobody"))
    assert isinstance(result, TrialResult)
    assert "no checkpoint after epoch 1: " in caplog.text


def events(trial: Trial, kept: Path, seconds: float = 0.0) -> Iterator[EpochRecord | TrialResult]:
    return run_alone(partial(run_trial, trial, "cpu"), "cpu", Checkpoints.of(kept, trial), seconds)


def learned(found: Events) -> tuple[list[object], dict[str, float], dict[str, Any]]:
    """All that does not depend on the clock."""
    *epochs, result = found
    assert isinstance(result, TrialResult)
    assert result.state is not None
    timeless: list[object] = []
    for epoch in epochs:
        assert isinstance(epoch, EpochRecord)
        timeless.append(asdict(replace(epoch, seconds=0.0, samples_per_second=0.0)))
    return timeless, result.metrics, result.state


@pytest.mark.parametrize("done", [1, 3, 5])
def test_a_trial_that_was_cut_off_goes_on(tmp_path: Path, trial: Trial, done: int) -> None:
    whole = list(events(trial, tmp_path / "never"))
    with closing(events(trial, tmp_path / "kept")) as running:  # type: ignore[type-var]
        before = list(islice(running, done))
    after = list(events(trial, tmp_path / "kept"))
    assert after[:done] == before, "the very same epochs, down to the seconds they took: they were not run again"
    (epochs, figures, state), (epochs_whole, figures_whole, state_whole) = learned(after), learned(whole)
    assert epochs == epochs_whole
    assert figures == pytest.approx(figures_whole, rel=0, abs=0, nan_ok=True)
    assert all(torch.equal(state[name], state_whole[name]) for name in state_whole)


# ------------------------------------------------------------------------------------------------------- more epochs


def of_epochs(trial: Trial, epochs: int) -> Trial:
    return replace(trial, training={**trial.training, "epochs": epochs})


@pytest.fixture(scope="module")
def growing(trial: Trial) -> Trial:
    return replace(trial, options={**trial.options, "dagger": {**trial.options["dagger"], "rounds": 0}})


def test_more_epochs_go_on_from_fewer_as_if_asked_for_at_once(tmp_path: Path, growing: Trial) -> None:
    short, whole = of_epochs(growing, 2), list(events(growing, tmp_path / "never"))
    before = list(events(short, tmp_path / "kept", seconds=3600.0))
    Checkpoints.of(tmp_path / "kept", short).end(2)
    after = list(events(growing, tmp_path / "kept", seconds=3600.0))
    assert after[:2] == before[:2], "the very same epochs: they were not run again"
    (epochs, figures, state), (epochs_whole, figures_whole, state_whole) = learned(after), learned(whole)
    assert epochs == epochs_whole
    assert figures == pytest.approx(figures_whole, rel=0, abs=0, nan_ok=True)
    assert all(torch.equal(state[name], state_whole[name]) for name in state_whole)
    *_, result = after
    assert isinstance(result, TrialResult)
    assert result.seconds == sum(epoch.seconds for epoch in before[:2] if isinstance(epoch, EpochRecord))


def test_a_training_that_depends_on_all_its_epochs_begins_anew(tmp_path: Path, trial: Trial) -> None:
    short = of_epochs(trial, 3)
    list(events(short, tmp_path))
    Checkpoints.of(tmp_path, short).end(3)
    assert Checkpoints.of(tmp_path, short).last_good() is None, "such a one keeps nothing of its own when it has ended"
    assert Checkpoints.of(tmp_path, trial).last_good() is None


def test_fewer_epochs_do_not_go_on_from_more(tmp_path: Path, growing: Trial) -> None:
    list(events(growing, tmp_path))
    Checkpoints.of(tmp_path, growing).end(5)
    assert Checkpoints.of(tmp_path, of_epochs(growing, 4)).last_good() is None
    assert Checkpoints.of(tmp_path, of_epochs(growing, 6)).last_good() is not None


def test_of_trials_that_ended_the_longest_leaves_its_last_epoch_and_nothing_else(
    tmp_path: Path, growing: Trial
) -> None:
    for epochs in (2, 3, 1):
        list(events(of_epochs(growing, epochs), tmp_path))
        Checkpoints.of(tmp_path, of_epochs(growing, epochs)).end(epochs)
    (left,) = tmp_path.rglob(CHECKPOINT)
    assert left.parent.name.startswith("checkpoint_000003_")
    list(events(of_epochs(growing, 4), tmp_path))
    Checkpoints.of(tmp_path, of_epochs(growing, 4)).end(None)
    assert list(tmp_path.rglob(CHECKPOINT)) == [left], "one that failed takes with it what is its own"
