"""Where a search keeps its proposals: a journal file here, a database on a cluster; both outlive a crash.

A damaged journal is mended first (`search_journal`). A database that restarts is waited for: what was under way is
simply done again, so each step that is repeated must not mind having been done before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy
import sqlalchemy.exc
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from nbsr_core.errors import InputError, NbsrError
from nbsr_platform.credentials import masked, scrubbed, secrets_in
from nbsr_platform.paths import Home

logger = logging.getLogger("nbsr.search")

# Seconds for which a database that was there is waited for, and in which a new one must answer.
PATIENCE, OPENING_PATIENCE = 120.0, 10
LONGEST_PAUSE = 5.0
EXPECTED = "postgresql+psycopg://user@host:port/name or another URL that SQLAlchemy knows"

T = TypeVar("T")


class SearchStorageError(NbsrError, RuntimeError):
    """The database of a search was lost."""


def open_storage(home: Home, study: str, url: str | None = None) -> BaseStorage:
    """A journal file in the store, safe for parallel writers; a database (Postgres, say) where a URL is given."""
    if url is not None:
        return _open_database(url)
    path = home.search_journal(study)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return JournalStorage(JournalFileBackend(str(path)))
    except OSError:
        raise
    except Exception as error:  # whatever Optuna makes of nonsense
        raise InputError(
            f"{path}: this journal of a search is damaged ({type(error).__name__}: {error}); "
            f"`nbsr run` of its study mends it and goes on from what can be read"
        ) from None


def _open_database(url: str) -> RDBStorage:
    try:
        parsed = sqlalchemy.make_url(url)
        arguments = {"connect_timeout": OPENING_PATIENCE} if parsed.get_backend_name() == "postgresql" else {}
        options = {"pool_pre_ping": True, "connect_args": arguments}
        # Of several who open a new database at once, one makes the tables and the others fail on them once.
        return patiently(lambda: RDBStorage(url, options), seconds=float(OPENING_PATIENCE), also=SOMEBODY_WAS_QUICKER)
    except (SearchStorageError, sqlalchemy.exc.SQLAlchemyError, StorageInternalError, ImportError, ValueError) as error:
        raise InputError(
            f"cannot open search storage {masked(url)!r}: {_scrubbed(error, url)}; give {EXPECTED}"
        ) from None


AWAY = (StorageInternalError, sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError, ConnectionError)
SOMEBODY_WAS_QUICKER = (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError)


def patiently(
    action: Callable[[], T],
    *,
    before_retry: Callable[[], object] = lambda: None,
    seconds: float | None = None,
    also: tuple[type[Exception], ...] = (),
) -> T:
    """What the action gives; repeated while the database is away.

    Args:
        action: something that may be done twice.
        before_retry: looks up what a lost answer may have been about.
        seconds: how long to wait; `PATIENCE` unless told.
        also: further errors that pass.
    """
    deadline, pause, failed = time.monotonic() + (PATIENCE if seconds is None else seconds), 0.2, False
    passing: tuple[type[BaseException], ...] = (*AWAY, *also)
    while True:
        try:
            if failed:
                before_retry()
            return action()
        except passing as error:
            if time.monotonic() + pause > deadline:
                raise SearchStorageError(f"the search's database was lost: {scrubbed(_first_line(error))}") from None
            if not failed:
                logger.warning("the search's database does not answer; waiting for it")
            failed = True
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _first_line(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    return next((line.strip()[:300] for line in str(cause).splitlines() if line.strip()), type(cause).__name__)


def _scrubbed(error: BaseException, url: str) -> str:
    return scrubbed(_first_line(error), secrets_in(url))
