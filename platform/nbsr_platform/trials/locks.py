"""Nobody runs a study twice at once in one store."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from nbsr_core.errors import NbsrError
from nbsr_platform.trials.home import Home


class AlreadyRunningError(NbsrError):
    """Somebody else is running this study in this store."""


@contextlib.contextmanager
def study_lock(home: Home, study: str) -> Iterator[None]:
    """One driver a study and store. The lock ends with its process, however that ends."""
    path = home.lock(study)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise AlreadyRunningError(f"study {study!r} is already running in {home.root} (process {owner})") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
