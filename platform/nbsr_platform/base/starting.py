"""While a command starts, a signal ends it at once: nothing is under way that would have to be ended in good order.

Importing libraries and starting Ray takes seconds, in which an exception may be lost (in finalizers, in code that
catches everything), end in somebody else's traceback, or wait for C code that does not look for signals. So it is no
exception: a thread of its own says our words and ends the process, which is as safe as `kill -9`, and that loses
nothing. From `begun` on a signal is an exception in the main thread (`endings`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

SHOW_CURSOR = "\x1b[?25h"


class _Start:
    """The time until something is under way."""

    def __init__(self) -> None:
        self.is_over = False
        self.cleaning: list[Callable[[], object]] = []
        self.reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self.writing = writing
        self.before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.handler = signal.getsignal(signal.SIGINT)
        if self.handler is signal.default_int_handler:  # not where somebody wants it to be ignored
            signal.signal(signal.SIGINT, _left_to_the_thread)
        threading.Thread(target=self._listen, name="starting", daemon=True).start()

    def _listen(self) -> None:
        """Python's part in C writes there which signal came, whatever the main thread is doing."""
        while numbers := os.read(self.reading, 1):
            number = numbers[0]
            if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) and not self.is_over:
                leave(number, self.cleaning)

    def end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        signal.set_wakeup_fd(self.before)
        if signal.getsignal(signal.SIGINT) is _left_to_the_thread:
            signal.signal(signal.SIGINT, self.handler)
        os.close(self.writing)  # ends the thread


def _left_to_the_thread(number: int, frame: FrameType | None) -> None:
    """See `_Start`."""


_start: _Start | None = None


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Until `begun`, or the end of the block, a signal ends the process at once, with our words."""
    global _start
    _start = _Start()
    try:
        yield
    finally:
        begun()


def is_starting() -> bool:
    return _start is not None and not _start.is_over


def begun() -> None:
    """From now on there is something to be ended in good order."""
    if _start is not None and threading.current_thread() is threading.main_thread():
        _start.end()


@contextlib.contextmanager
def cleaning_up(action: Callable[[], object]) -> Iterator[None]:
    """What to do if the process ends at once within the block: processes of ours that would go on."""
    actions = [] if _start is None else _start.cleaning
    actions.append(action)
    try:
        yield
    finally:
        actions.remove(action)


def leave(number: int, cleaning: list[Callable[[], object]]) -> None:
    """Say that it was stopped, and end the process."""
    with contextlib.suppress(Exception):
        stream = sys.stderr if "--json" in sys.argv else sys.stdout
        print(f"{SHOW_CURSOR if stream.isatty() else ''}\n{words()}", file=stream, flush=True)
    for action in cleaning:
        with contextlib.suppress(Exception):
            action()
    os._exit(128 + number)  # as shells count


def end_with(code: int) -> NoReturn:
    """End a command that was interrupted, and has ended what is its own; nobody waits for its threads."""
    waiting = [thread for thread in threading.enumerate() if not thread.daemon]
    if len(waiting) > 1:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def words() -> str:
    """What is said to those who stop a command; a run that was stopped can go on."""
    if sys.argv[1:2] != ["run"]:
        return "stopped"
    from nbsr_platform.base.credentials import command_line

    again = command_line(["nbsr", *sys.argv[1:]])
    return f"stopped. What is done is kept; the same command goes on from here:\n  {again}"
