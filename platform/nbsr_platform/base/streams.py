"""Standard output and error while a study runs: nobody has to read them, and only we write there."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

STDERR = 2


class _Words(io.TextIOWrapper):
    """A stream that never fails: once its reader is gone, what is written goes nowhere."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            self._to_nowhere()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._to_nowhere()

    def _to_nowhere(self) -> None:
        """What is in the buffers can be written then, too."""
        _lead_nowhere(self.fileno())


@contextlib.contextmanager
def outliving_their_readers() -> Iterator[None]:
    """Let a study outlive whoever reads what it says: a closed pipe or terminal, a log on a full disk.

    Meanwhile file descriptor 2 itself leads nowhere: Ray's C++ parts write to it behind Python's back, and say the same
    in Ray's own logs. Streams that are no files (as in tests) stay as they are.
    """
    with contextlib.ExitStack() as until_the_end:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            try:
                descriptor = stream.fileno()
            except (AttributeError, OSError, ValueError):
                continue
            kept = os.dup(descriptor)
            words = _Words(
                os.fdopen(kept, "wb"), encoding=stream.encoding, errors=stream.errors, line_buffering=stream.isatty()
            )
            words.reconfigure(write_through=name == "stderr")
            until_the_end.callback(words.close)
            setattr(sys, name, words)
            until_the_end.callback(setattr, sys, name, stream)
            if descriptor == STDERR:
                _lead_nowhere(STDERR)
                until_the_end.callback(os.dup2, kept, STDERR)
        yield


def lead_stdout_nowhere() -> None:
    """Once its reader is gone: Python would complain at its end about what it could not write."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        _lead_nowhere(sys.stdout.fileno())


def _lead_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
