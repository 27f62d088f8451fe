"""What the commands share: their options, their exit codes, and how an error is told."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from nbsr_core.errors import NbsrError
from nbsr_platform.streams import lead_stdout_nowhere
from nbsr_platform.study import Collection, Study
from nbsr_platform.terminal import Terminal, TerminalHandler

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # signals end with 128 + their number, see `endings`
# What a disk says that a user can do something about.
OF_THE_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
}

StudyFile = Annotated[Path, typer.Argument(help="A study file, or a collection of them.", show_default=False)]
Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the file.")]
HomeFolder = Annotated[Path | None, typer.Option("--home", help="Folder for results; $NBSR_HOME or .nbsr unless told")]
Tracking = Annotated[
    str | None,
    typer.Option("--tracking", envvar="NBSR_TRACKING", help="MLflow tracking URI; sqlite in the home unless told."),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage", envvar="NBSR_STORAGE", help="Database URL for searches; a journal file in the home unless told."
    ),
]
CodeFolder = Annotated[
    Path | None,
    typer.Option(
        "--code",
        envvar="NBSR_CODE",
        metavar="FOLDER",
        exists=True,
        file_okay=False,
        help="Folder with the module of a stored trial's own domain, if you trust what is there.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@contextmanager
def clear_errors() -> Iterator[None]:
    """What a user can cause is told in one message, without a traceback; our warnings come the same way."""
    ours, handler = logging.getLogger("nbsr"), TerminalHandler()
    ours.addHandler(handler)
    try:
        yield
    except NbsrError as error:
        Terminal(stderr=True).say(str(error), style="red")
        raise typer.Exit(BAD_INPUT) from None
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


def members(what: Study | Collection) -> tuple[Study, ...]:
    return what.studies if isinstance(what, Collection) else (what,)
