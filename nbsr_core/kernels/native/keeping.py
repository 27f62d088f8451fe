"""Where compiled code may be kept: in a folder that is ours alone, in files whose names tell their content.

A library runs with all the rights of whoever loads it, so nobody else may be able to put one where we look: folder and
file must be ours, and neither they nor the folders above may be open to others. A file that was cut off or changed no
longer fits the checksum in its name and is never loaded, since a process that maps it may be killed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
SUFFIX = ".so"


def folders() -> Iterator[Path]:
    """Where libraries may be kept, best first: the user's cache, then a folder of the user's among temporary files."""
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        yield (caches / "nbsr").resolve() / "native"
    except (OSError, RuntimeError):  # nobody knows where this user is at home, or links lead in a circle
        pass
    yield Path(tempfile.gettempdir()).resolve() / f"nbsr-{os.geteuid()}" / "native"


def complaint(folder: Path) -> str:
    """Why libraries of this folder cannot be trusted; empty if they can."""
    us = os.geteuid()
    for place in (folder, *folder.parents):
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{place}: {error.strerror}"
        if not stat.S_ISDIR(found.st_mode):
            return f"{place} is {'a symbolic link' if stat.S_ISLNK(found.st_mode) else 'no folder'}"
        if found.st_uid not in ({us} if place == folder else {us, 0}):
            return f"{place} belongs to user {found.st_uid}, not to us ({us})"
        kept_apart = place != folder and found.st_mode & stat.S_ISVTX  # as in /tmp: only owners rename what is there
        if found.st_mode & OTHERS_WRITE and not kept_apart:
            return f"{place} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def is_writable(folder: Path) -> bool:
    """Whether a library could be put there, or the folder be made."""
    standing = next(place for place in (folder, *folder.parents) if place.exists())
    return os.access(standing, os.W_OK | os.X_OK)


def make(folder: Path) -> None:
    """Make the folder and what is missing above, for nobody but us; raises OSError if somebody else was quicker."""
    for place in (*reversed(folder.parents), folder):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)
    reason = complaint(folder)
    if reason:
        raise PermissionError(errno.EPERM, reason)


def kept(folder: Path, stem: str) -> tuple[list[Path], list[str]]:
    """Libraries of this name that are whole and ours, and what is wrong with each of the others."""
    whole, wrong = [], []
    for path in sorted(folder.glob(f"{stem}-*{SUFFIX}")):
        reason = _flaw(path, stem)
        if reason:
            wrong.append(f"{path} {reason}")
        else:
            whole.append(path)
    return whole, wrong


def keep(made: Path, folder: Path, stem: str) -> Path:
    """Move a library into the folder under the name that tells its content; what is there and no good is removed."""
    path = folder / f"{stem}-{hashlib.sha256(made.read_bytes()).hexdigest()}{SUFFIX}"
    made.chmod(0o600)
    made.replace(path)  # others may be compiling too: the last one wins, whole
    for other in folder.glob(f"{stem}-*{SUFFIX}"):
        if other != path and _flaw(other, stem):
            other.unlink(missing_ok=True)
    return path


def _flaw(path: Path, stem: str) -> str:
    """Why a file is not to be loaded; empty if it can be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return "is no file"
        if found.st_uid != os.geteuid():
            return f"belongs to user {found.st_uid}"
        if found.st_mode & OTHERS_WRITE:
            return "can be written by others"
        content = file.read()
    fits = path.name == f"{stem}-{hashlib.sha256(content).hexdigest()}{SUFFIX}"
    return "" if fits else "is damaged: it does not fit its checksum"
