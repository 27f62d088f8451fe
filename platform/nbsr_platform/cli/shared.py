"""What the verbs share: their exit codes, how an error is told, how a study file is read."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nbsr_core._extras import extra
from nbsr_core.errors import NbsrError
from nbsr_platform.base import plain_json
from nbsr_platform.base.starting import begun
from nbsr_platform.base.streams import lead_stdout_nowhere
from nbsr_platform.base.terminal import Terminal, TerminalHandler

if TYPE_CHECKING:
    from nbsr_platform.study.study import Collection, Study

# Of the packages that the extra brings, those that commands import when they need them.
PLATFORM = ("mlflow", "optuna", "pandas", "ray", "sqlalchemy", "yaml")
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # signals end with 128 + their number, see `endings`
# What a disk says that a user can do something about.
OF_THE_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
}
PLAIN_WIDTH = 120  # of lines in files and pipes, which have none of their own


@contextmanager
def clear_errors(*, is_slow_to_begin: bool = False) -> Iterator[None]:
    """What a user can cause is told in one message, without a traceback; our warnings come the same way.

    Ctrl-C too. A command that is slow to begin says itself when it has begun (`starting`).
    """
    if not is_slow_to_begin:
        begun()
    ours, handler = logging.getLogger("nbsr"), TerminalHandler()
    ours.addHandler(handler)
    try:
        with extra("platform", *PLATFORM):
            yield
    except NbsrError as error:
        Terminal(stderr=True).say(str(error), style="red")
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt as interruption:
        Terminal(stderr=True).say("\nstopped")
        raise typer.Exit(getattr(interruption, "exit_code", INTERRUPTED)) from None
    except BrokenPipeError:
        lead_stdout_nowhere()
        raise typer.Exit(0) from None
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        place = f"{error.filename}: " if error.filename else ""
        Terminal(stderr=True).say(f"{place}{error.strerror}; what is done is kept", style="red")
        raise typer.Exit(BAD_INPUT) from None
    finally:
        ours.removeHandler(handler)


def print_json(document: object) -> None:
    """One JSON document on standard output."""
    print(plain_json.dumps(document))


def load(path: str | Path, overrides: Sequence[str] = (), *, with_modules: bool = True) -> Study | Collection:
    """See `nbsr_platform.study.study.load`, which is imported when a study is read: help is given without."""
    from nbsr_platform.study import study

    return study.load(path, overrides, with_modules=with_modules)


def say_warnings(studies: Iterable[Study], console: Terminal) -> None:
    """See `nbsr_platform.study.warnings`."""
    from nbsr_platform.study import warnings

    warnings.say_warnings(studies, console)
