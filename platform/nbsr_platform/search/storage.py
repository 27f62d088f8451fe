"""Where a search keeps its proposals: a journal file here, a database on a cluster; both outlive a crash.

A damaged journal is mended first (`nbsr_platform.search.journal`). A database that restarts is waited for: what was
under way is simply done again, so each step that is repeated must not mind having been done before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy
import sqlalchemy.exc
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from nbsr_core._extras import raise_if_missing
from nbsr_core.errors import InputError, NbsrError
from nbsr_platform.base.compat import OPTUNA_STUDIES
from nbsr_platform.base.credentials import masked, scrubbed, secrets_in
from nbsr_platform.base.sqlite_address import is_sqlite, sqlite_file
from nbsr_platform.trials.home import Home

logger = logging.getLogger("nbsr.search")

# Seconds for which a database that was there is waited for, and in which a new one must answer.
PATIENCE, OPENING_PATIENCE = 120.0, 10
LONGEST_PAUSE = 5.0
EXPECTED = "postgresql+psycopg://user@host:port/name or another URL that SQLAlchemy knows"

T = TypeVar("T")


class SearchStorageError(NbsrError, RuntimeError):
    """The database of a search was lost."""


def open_storage(home: Home, study: str, url: str | None = None) -> BaseStorage:
    """For whoever runs a search: a journal file in the store, safe for parallel writers, or a database by its URL.

    What is not there yet is made.
    """
    if url is not None:
        return _open_database(url)
    path = home.search_journal(study)
    path.parent.mkdir(parents=True, exist_ok=True)
    return _open_journal(path)


def open_for_reading(home: Home, study: str, url: str | None = None) -> BaseStorage | None:
    """For whoever looks at a search: nothing is made or changed, not even a table; None where there is no such storage.

    A database is asked to refuse whatever would change it.
    """
    if url is None:
        path = home.search_journal(study)
        return _open_journal(path) if path.exists() else None
    if is_sqlite(url):
        file = sqlite_file(url)
        assert file is not None
        if not file.exists():
            return None
        # Read-only for sqlite itself; quoted as a URI, in which SQLAlchemy's own quotes are quoted once more.
        url = f"sqlite+pysqlite:///file:{quote(quote(str(file.absolute())))}?mode=ro&uri=true"
    return _open_database(url, only_to_read=True) if _has_tables(url) else None


def _open_journal(path: Path) -> JournalStorage:
    try:
        return JournalStorage(JournalFileBackend(str(path)))
    except OSError:
        raise
    except Exception as error:  # whatever Optuna makes of nonsense
        raise InputError(
            f"{path}: this journal of a search is damaged ({type(error).__name__}: {error}); "
            f"`nbsr run` of its study mends it and goes on from what can be read"
        ) from None


def _open_database(url: str, *, only_to_read: bool = False) -> RDBStorage:
    try:
        options = _engine_options(url, only_to_read=only_to_read)
        # Of several who open a new database at once, one makes the tables and the others fail on them once.
        return patiently(
            lambda: RDBStorage(url, options, skip_table_creation=only_to_read),
            seconds=float(OPENING_PATIENCE),
            also=SOMEBODY_WAS_QUICKER,
        )
    except CANNOT_OPEN as error:
        raise _cannot_open(error, url) from None


def _has_tables(url: str) -> bool:
    """Whether a database holds searches, or anything of Optuna's, at all."""

    def look() -> bool:
        engine = sqlalchemy.create_engine(url, **_engine_options(url, only_to_read=True))
        try:
            return sqlalchemy.inspect(engine).has_table(OPTUNA_STUDIES)
        finally:
            engine.dispose()

    try:
        return patiently(look, seconds=float(OPENING_PATIENCE))
    except CANNOT_OPEN as error:
        raise _cannot_open(error, url) from None


def _engine_options(url: str, *, only_to_read: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if sqlalchemy.make_url(url).get_backend_name() == "postgresql":
        arguments = {"connect_timeout": OPENING_PATIENCE}
        if only_to_read:
            arguments["options"] = "-c default_transaction_read_only=on"
    return {"pool_pre_ping": True, "connect_args": arguments}


def _cannot_open(error: Exception, url: str) -> InputError:
    raise_if_missing(error.__cause__ or error, "cluster", "psycopg")  # Optuna has words of its own
    return InputError(f"cannot open search storage {masked(url)!r}: {_scrubbed(error, url)}; give {EXPECTED}")


AWAY = (StorageInternalError, sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError, ConnectionError)
SOMEBODY_WAS_QUICKER = (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError)
CANNOT_OPEN = (SearchStorageError, sqlalchemy.exc.SQLAlchemyError, StorageInternalError, ImportError, ValueError)


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
        seconds: how long to wait; `PATIENCE` by default.
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
