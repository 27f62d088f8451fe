"""What a person sees while a study runs is what happens."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.execution.progress import Progress
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial
from toys import flat_trial


class Clock:
    """Seconds that go by when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Watched(Progress):
    """On a clock of a test's own."""

    def __init__(self, total: int, reused: int = 0, at_most: int = 0) -> None:
        self.ticks = Clock()
        super().__init__(Terminal(io.StringIO(), width=200), "study", total, reused, at_most, self.ticks)

    def after(self, seconds: float) -> Watched:
        self.ticks.now += seconds
        return self

    def trains(self, trial: Trial, epochs: int, seconds: float) -> None:
        for epoch in range(epochs):
            self.after(seconds).progressed(trial, {"epoch": float(epoch), "seconds": seconds})


def trial(seed: int, epochs: int = 3) -> Trial:
    return replace(flat_trial()[0], seed=seed, training={"epochs": epochs}, label="mlp")


def finished(one: Trial) -> TrialResult:
    return TrialResult(one.key, "finished", 1.0)


def test_epochs_are_counted_once_also_where_a_worker_was_lost() -> None:
    seen, one = Watched(1), trial(0)
    seen.started(one)
    for epoch in (0, 1, 0, 1, 2):  # lost after the second
        seen.progressed(one, {"epoch": float(epoch)})
    seen.ended(one, finished(one))
    assert seen.epochs == 3
    assert "1/1 trials, 3 epochs" in seen.text()


def test_the_start_of_workers_does_not_count_as_work_to_come() -> None:
    """The first trial of a worker takes 40 s to start and 3 s to run: the other nine take 27 s, not 387."""
    seen = Watched(10)
    seen.wait_for({"mlp": 10})
    first = trial(0)
    seen.started(first)
    assert seen.seconds_left is None
    seen.after(40).trains(first, 3, 1.0)
    assert seen.seconds_left == pytest.approx(27)
    seen.ended(first, finished(first))
    assert seen.seconds_left == pytest.approx(27)


def test_what_is_left_takes_as_long_as_what_ran_on_as_many_as_run() -> None:
    seen = Watched(6)
    seen.wait_for({"mlp": 6})
    for seed in (0, 1):
        seen.started(trial(seed))
    seen.after(30)
    for seed in (0, 1):
        seen.progressed(trial(seed), {"epoch": 2.0, "seconds": 1.0})
        seen.ended(trial(seed), finished(trial(seed)))
    for seed in (2, 3):
        seen.started(trial(seed))
    seen.after(5)  # with loading and judging
    for seed in (2, 3):
        seen.ended(trial(seed), finished(trial(seed)))
    for seed in (4, 5):
        seen.started(trial(seed))
    assert seen.seconds_left == pytest.approx(5)
    assert seen.after(4).seconds_left == pytest.approx(1)


def test_further_seeds_of_a_search_are_part_of_the_count() -> None:
    seen = Watched(4, 0, at_most=6)
    assert "0/4 trials (at most 6 more with further seeds)" in seen.text()
    for seed in range(4):
        seen.started(trial(seed))
        seen.ended(trial(seed), finished(trial(seed)))
    seen.expect(4 + 3, reused=1)
    assert seen.text().startswith("study: 5/7 trials,")
