"""Files that users name, read with care: never a pipe that nobody writes to, never more than can be meant.

Everything that is wrong with one is an `InputError` that names the file; what a library makes of its content is the
business of whoever reads it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from nbsr_core.errors import InputError

MEGABYTE = 1_000_000
NO_FILE = "it is a pipe, a socket or a device, not a file"


def size(count: int | float) -> str:
    """Bytes as a person says them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


NAMES_A_PATH = "names_a_path"


def path_except(*names: str) -> dict[str, tuple[str, ...]]:
    """Metadata of an option (text, or several texts) that is a path unless it is one of some names.

    Paths in a study file are relative to the file; options that are annotated as `Path` need no such mark.
    """
    return {NAMES_A_PATH: names}


def user_path(text: str) -> Path:
    """A path as people write it, `~` for somebody's home included."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"{text}: there is no such user") from None


def opened(path: Path) -> BinaryIO:
    """A file for reading; an `OSError` where it is anything else. Opening a pipe would wait for who writes to it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL character
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, NO_FILE, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_file(path: Path) -> BinaryIO:
    """As `opened`, with a message for people."""
    try:
        return opened(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file that has at most so many bytes."""
    with open_file(path) as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > most:
        raise InputError(f"{path} is larger than {size(most)}, more than such a file may have")
    return content


def read_text(path: Path, most: int) -> str:
    """The text of a file in UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start:,})") from None
