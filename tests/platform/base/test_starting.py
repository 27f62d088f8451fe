"""Ctrl-C while a run starts: it ends soon, with our words and exit code, whoever would not have heard of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from nbsr_platform.base.endings import Interrupted, interruptible
from nbsr_platform.base.starting import begun, is_starting, starting
from processes import COMMAND, GRID, place, under_way, wait_for

STUDY = """
name: flowers
domain: own:Own
models: {nbsr: {}}
"""
SLEEPS = """
import pathlib, time
from nbsr_core.domains.iris import Iris
pathlib.Path("here").touch()
time.sleep(300)
"""
# As code that catches everything, over and over.
DEAF = """
import pathlib, time
from nbsr_core.domains.iris import Iris

class Own(Iris):
    def load(self, data, seed):
        while True:
            try:
                pathlib.Path("here").touch()
                time.sleep(0.05)
            except BaseException:
                pass
"""
GOES_ON = "stopped. What is done is kept; the same command goes on from here:\n  nbsr run"


@pytest.mark.parametrize(
    ("module", "number"),
    [(SLEEPS, signal.SIGINT), (DEAF, signal.SIGINT), (DEAF, signal.SIGTERM)],
    ids=["imports", "deaf code", "deaf code, SIGTERM"],
)
def test_nobody_can_keep_a_run_from_ending(tmp_path: Path, module: str, number: int) -> None:
    (tmp_path / "own.py").write_text(module)
    (tmp_path / "flowers.yaml").write_text(STUDY)
    with under_way(tmp_path, [*COMMAND, "run", "flowers.yaml"]) as driver:
        wait_for(lambda: (tmp_path / "here").exists() or driver.poll() is not None, 60)
        if module is DEAF and number == signal.SIGTERM:
            time.sleep(1)
        driver.send_signal(number)
        output, errors = driver.communicate(timeout=60)
    expected = {signal.SIGINT: (130,), signal.SIGTERM: (143, -signal.SIGTERM)}[signal.Signals(number)]
    assert driver.returncode in expected, output + errors
    assert "Traceback" not in output + errors
    if driver.returncode > 0:
        assert GOES_ON in output


def test_other_commands_say_it_in_a_word(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SLEEPS)
    (tmp_path / "flowers.yaml").write_text(STUDY)
    with under_way(tmp_path, [*COMMAND, "validate", "flowers.yaml"]) as driver:
        wait_for(lambda: (tmp_path / "here").exists() or driver.poll() is not None, 60)
        driver.send_signal(signal.SIGINT)
        output, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert (output + errors).split() == ["stopped"]


def test_a_store_that_is_being_made_is_not_waited_for(tmp_path: Path) -> None:
    """Trials run in this process while the tracking store of a new home makes its tables, for seconds."""
    study = "name: naps\ndomain: napping:Napping\ntraining: {epochs: 500, batch_size: 30}\nmodels: {mlp: {}}\n"
    folder = place(tmp_path / "naps", study)
    with under_way(folder, [*COMMAND, "run", "naps.yaml", "--local"]) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "study   naps.yaml\n"
        assert driver.stdout.readline() == "naps: 1 trials\n"
        time.sleep(1)
        driver.send_signal(signal.SIGINT)
        output, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130, output + errors
    assert GOES_ON in output
    assert "Traceback" not in output + errors


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_at_any_moment_of_the_start(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(GRID)
    for moment in (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 13.0):
        with under_way(tmp_path, [*COMMAND, "run", "tiny.yaml"]) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "study   tiny.yaml\n"
            time.sleep(moment)
            driver.send_signal(signal.SIGINT)
            output, errors = driver.communicate(timeout=120)
        assert driver.returncode == 130, (moment, output + errors)
        assert GOES_ON in output, moment
        assert "Traceback" not in output + errors, moment


def test_when_something_is_under_way_a_signal_is_an_exception_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with starting():
        assert is_starting()
        begun()
        assert not is_starting()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted) as caught, interruptible():  # noqa: PT012
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        assert caught.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) == before
