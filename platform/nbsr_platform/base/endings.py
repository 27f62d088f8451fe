"""How a run ends that somebody else ends: by a signal, which becomes one exception in the main thread.

Before anything is under way a signal ends the process at once, see `starting`.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nbsr_platform.base.starting import is_starting, leave

# What a batch system, `nbsr stop` or `timeout` sends, what a terminal sends that is closed, and Ctrl-C.
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
AGAIN_SECONDS = 0.05
# Who presses Ctrl-C once more after so many seconds does not want to wait for an end in good order.
INSISTENCE = 1.0


class Interrupted(KeyboardInterrupt):
    """A signal asked us to end. To whoever does not care which one it is like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.exit_code = number, 128 + number  # as shells count


class Interruption:
    """What ends the block of `interruptible`: a signal, or another thread of ours.

    Attributes:
        possible: whether the block can be interrupted at all.
        number: the signal that interrupted it, None before.
    """

    def __init__(self) -> None:
        self.possible = threading.current_thread() is threading.main_thread()
        self.number: int | None = None
        self.at = 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Once: whoever asks again (a process group, then each of its members) does not disturb the ending.

        A person who asks again by Ctrl-C is heard: that ends the process at once, and loses nothing that is done.
        """
        if is_starting():
            return
        if self.number is None:
            self.number, self.at = number, time.monotonic()
            raise Interrupted(number)
        if number == signal.SIGINT and time.monotonic() - self.at > INSISTENCE:
            leave(number, [])

    def cause(self, number: int = signal.SIGTERM) -> None:
        """Interrupt the main thread as a signal would; not heard while it waits in C that does not look for signals."""
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    def try_again(self, number: int) -> None:
        """After it came where exceptions are lost (the collection of garbage, finalizers): from another thread."""
        self.number = None
        again = threading.Timer(AGAIN_SECONDS, self.cause, [number])
        again.daemon = True
        again.start()


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Have signals that ask us to end raise `Interrupted` here, so that what is under way is ended in good order.

    A closed terminal, or Ctrl-C, is ignored where somebody wanted that: under nohup a study outlives it. Only a
    process's main thread can be interrupted; elsewhere this does nothing.
    """
    interruption = Interruption()
    if not interruption.possible:
        yield interruption
        return
    lost_before, before = sys.unraisablehook, {number: signal.getsignal(number) for number in SIGNALS}

    def lost(what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, Interrupted):
            interruption.try_again(what.exc_value.number)
        else:
            lost_before(what)

    sys.unraisablehook = lost
    for number, handler in before.items():
        if handler is not signal.SIG_IGN or number == signal.SIGTERM:
            signal.signal(number, interruption.handle)
    try:
        yield interruption
    except KeyboardInterrupt:
        if interruption.number is not None:  # Ray makes a new exception of ours
            raise Interrupted(interruption.number) from None
        raise
    finally:
        sys.unraisablehook = lost_before
        for number, handler in before.items():
            signal.signal(number, handler)
