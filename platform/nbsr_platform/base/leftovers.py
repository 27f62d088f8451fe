"""Temporary places whose owner may be killed: a living one keeps them, a dead one's are removed by whoever comes next.

Each has a lock file beside it, held for as long as its owner lives; the kernel lets go of it however the owner ends,
and on a shared disk for owners on other machines too. So many drivers share one home: nobody removes what another one
is still writing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

PREFIX, LOCK = ".tmp-", ".lock"


@contextlib.contextmanager
def temporary_place(folder: Path, name: str) -> Iterator[Path]:
    """A path in `folder` that nobody else uses, for a file or a folder; what stands there at the end is removed.

    Args:
        folder: must exist.
        name: said in the path, for people who look.
    """
    place = folder / f"{PREFIX}{name}-{uuid4().hex[:12]}"
    with _claimed(place):
        try:
            yield place
        finally:
            _remove(place)


@contextlib.contextmanager
def one_at_a_time(folder: Path, name: str) -> Iterator[None]:
    """Of all processes that come here with the same `folder` and `name`, one goes on at a time; the others wait."""
    with _claimed(folder / f"{PREFIX}{name}"):
        yield


def sweep(folder: Path) -> list[Path]:
    """Remove temporary places in `folder` whose owner is dead; returns them."""
    removed = []
    for lock in folder.glob(f"{PREFIX}*{LOCK}"):
        with contextlib.suppress(OSError):  # it may go away in between, with its owner
            if not _is_for_us(lock):
                continue
            with lock.open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                place = lock.with_name(lock.name.removesuffix(LOCK))
                _remove(place)
                lock.unlink(missing_ok=True)
                removed.append(place)
    return removed


def _is_for_us(lock: Path) -> bool:
    """Whether it is a lock file that we may look into: in a folder like /tmp, others' are theirs, whatever they are."""
    status = lock.lstat()
    shared = lock.parent.stat().st_mode & stat.S_ISVTX
    return stat.S_ISREG(status.st_mode) and (not shared or status.st_uid == os.geteuid())


@contextlib.contextmanager
def _claimed(place: Path) -> Iterator[None]:
    """Hold the lock beside a place. Somebody who sweeps may come between its making and its locking: then once more."""
    lock = place.with_name(place.name + LOCK)
    while True:
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_still(lock, file.fileno()):
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)
