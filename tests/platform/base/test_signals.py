"""Signals that ask us to end: one exception where it is expected, and everything as before afterwards."""

from __future__ import annotations

import signal
import sys
import threading

import pytest
from nbsr_platform.base.endings import Interrupted, interruptible


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_interrupts_once_and_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught, interruptible():  # noqa: PT012
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # whoever asks twice does not disturb the ending
    assert caught.value.exit_code == 128 + number
    assert isinstance(caught.value, KeyboardInterrupt)
    assert signal.getsignal(number) == before


def test_an_interruption_keeps_its_number_on_its_way_through_ray() -> None:
    with pytest.raises(Interrupted) as caught, interruptible():  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGHUP)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # as Ray's C++ does
    assert caught.value.exit_code == 129


def test_a_closed_terminal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_interrupts_a_wait_that_has_no_end() -> None:
    never = threading.Event()
    with pytest.raises(Interrupted), interruptible() as interruption:  # noqa: PT012
        threading.Timer(0.2, interruption.cause).start()
        never.wait(60)


def test_an_interruption_that_comes_where_exceptions_are_lost_is_not_lost() -> None:
    class Thing:
        """Something with a finalizer, of which nobody hears."""

        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    before = sys.unraisablehook
    with pytest.raises(Interrupted) as caught, interruptible():  # noqa: PT012
        Thing()
        threading.Event().wait(60)
    assert caught.value.exit_code == 143
    assert sys.unraisablehook == before


def test_elsewhere_than_in_the_main_thread_nothing_is_interrupted() -> None:
    found = []

    def elsewhere() -> None:
        with interruptible() as interruption:
            found.append(interruption.possible)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False]
