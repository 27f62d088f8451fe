"""An MLflow store that is opened with care and waited for: clear errors, no passwords in them, and patience.

MLflow's own retries are switched off here: they repeat a request whose answer was lost, and the run that it had created
exists twice then. Whoever creates something says how to find out whether it is there already (`recover`).
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nbsr_core._extras import raise_if_missing
from nbsr_core.errors import InputError, NbsrError
from nbsr_platform.base.compat import forget_artifact_places
from nbsr_platform.base.credentials import masked, scrubbed, secrets_in
from nbsr_platform.base.leftovers import sweep, temporary_place
from nbsr_platform.base.sqlite_address import sqlite_file, sqlite_uri
from nbsr_platform.tracking.moved_store import follow

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger("nbsr.tracking")

DATABASES = ("postgresql", "mysql", "mssql")
SERVERS = ("http", "https")
EXPECTED = "sqlite:///path/to/mlflow.db, http(s)://host:port or postgresql://user@host/name"

# Seconds in which a store must answer when it is opened: a mistyped address shall not look like a slow one.
OPENING_PATIENCE = 10.0
# Seconds for which a store that was there is waited for: a server that restarts.
PATIENCE = 120.0
LONGEST_PAUSE = 5.0

# Only for our own calls: no second layer of retries, no links or bars on standard output.
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
# What a store says when it is only busy or away. "INTERNAL_ERROR" is also what a refused connection becomes.
PASSING = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"}
# What long messages of the network layers come down to.
SHORT = {
    "Connection refused": "connection refused",
    "Name or service not known": "no host of that name",
    "name resolution": "no host of that name",
    "NameResolutionError": "no host of that name",
    "timed out": "timed out",
    "Connection reset": "connection lost",
    "RemoteDisconnected": "connection lost",
    "No module named 'boto3'": "boto3 is not installed: pip install 'nbsr[cluster]'",
}


class TrackingError(NbsrError, RuntimeError):
    """The tracking store was lost or refused a request.

    Attributes:
        reason: the message without the name of the store.
        code: MLflow's name for the kind of error.
    """

    def __init__(self, where: str, reason: str, code: str) -> None:
        super().__init__(where, reason, code)  # all of them, so that it can travel between processes
        self.where, self.reason, self.code = where, reason, code

    def __str__(self) -> str:
        return f"tracking store {self.where}: {self.reason}"


class TrackingStore:
    """An open store; every call to it goes through `call`.

    Args:
        uri: where it is; a new sqlite file gets its tables here, before anybody else looks at it.
        patience: seconds for which a call waits for a store that does not answer.
    """

    def __init__(self, uri: str, patience: float = PATIENCE) -> None:
        self.secrets = secrets_in(uri)
        self.public_uri = masked(uri)
        self.patience = min(patience, OPENING_PATIENCE)
        for noisy in ("mlflow.store.db.utils", "mlflow.store.tracking", "alembic"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
        self.uri = checked(uri)
        self.given_up = False
        self.client: MlflowClient = self._open()
        self.patience = patience

    @property
    def is_database(self) -> bool:
        """Whether we write to the database ourselves, and so must say where artifacts go."""
        return urlsplit(self.uri).scheme.split("+")[0] not in SERVERS

    def call(self, method: str, *args: Any, recover: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Call a method of the client by its name; wait while the store is away, and give up after `patience` seconds.

        A store that was given up is not waited for again before it answers: ten calls do not wait ten times.
        `recover` is asked before a repetition for what a lost answer may have been about, None if there is nothing.
        """
        deadline, pause = time.monotonic() + (0.0 if self.given_up else self.patience), 0.2
        failed = False
        while True:
            try:
                with our_settings:
                    if failed and recover is not None and (found := recover()) is not None:
                        return found
                    answer = getattr(self.client, method)(*args, **options)
                self.given_up = False
                return answer
            except TrackingError:
                raise
            except Exception as error:
                passing = _passes(error, self.uri)
                if not passing or time.monotonic() + pause > deadline:
                    self.given_up = passing
                    waited = f" (for {self.patience:.0f} s)" if passing else ""
                    code = str(getattr(error, "error_code", ""))
                    raise TrackingError(self.public_uri, self.scrubbed(error) + waited, code) from None
                if not failed:
                    logger.warning("tracking store %s does not answer; waiting for it", self.public_uri)
                failed = True
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def scrubbed(self, error: BaseException) -> str:
        """What went wrong in one line, without what nobody may read."""
        text = scrubbed(str(error) or type(error).__name__, self.secrets)
        for sign, short in SHORT.items():
            if sign in text:
                return short
        return next((line.strip()[:500] for line in text.splitlines() if line.strip()), type(error).__name__)

    def _open(self) -> MlflowClient:
        import sqlalchemy.exc
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        sqlite = sqlite_file(self.uri)
        try:
            if sqlite is not None:
                if not sqlite.exists():
                    _migrate_beside(sqlite)
                else:
                    follow(sqlite)
            elif self.is_database:
                _try_to_connect(self.uri)
            forget_artifact_places()
            self.client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
            self.call("search_experiments", max_results=1)
        except (TrackingError, MlflowException, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise InputError(self._why_closed(error)) from None
        except ImportError as error:
            raise_if_missing(error, "cluster", "psycopg")
            raise InputError(
                f"tracking store {self.public_uri} needs a driver that is not installed: {self.scrubbed(error)}"
            ) from None
        return self.client

    def _why_closed(self, error: Exception) -> str:
        reason = error.reason if isinstance(error, TrackingError) else self.scrubbed(error)
        if re.search(r"401|403|Unauthorized|PERMISSION_DENIED|UNAUTHENTICATED", reason):
            reason += " (MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD say who you are)"
        return f"cannot open tracking store {self.public_uri}: {reason}"


def checked(uri: str) -> str:
    """The URI, absolute where it names a file; says at once what can be said without opening anything."""
    public = masked(uri)
    scheme = urlsplit(uri).scheme.split("+")[0]
    named = sqlite_file(uri)
    if named is not None:
        file = named.absolute()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot open tracking store {public}: {error.strerror} ({error.filename})") from None
        if file.is_dir():
            raise InputError(f"cannot open tracking store {public}: {file} is a folder, expected a file")
        for place in (file.parent, *([file] if file.exists() else [])):
            if not os.access(place, os.W_OK):
                raise InputError(f"cannot open tracking store {public}: {place} is read-only")
        return sqlite_uri(file)
    if scheme in ("", "file"):
        raise InputError(f"tracking store {public!r} is a folder; MLflow keeps runs in a database now: give {EXPECTED}")
    if scheme not in (*SERVERS, *DATABASES):
        raise InputError(f"tracking store {public!r} is of unknown kind {scheme!r}: give {EXPECTED}")
    if not urlsplit(uri).hostname:
        raise InputError(f"tracking store {public!r} names no host: give {EXPECTED}")
    return uri


def _migrate_beside(file: Path) -> None:
    """Make the tables of a new sqlite store in another file, which gets its name when it is whole.

    Killed on the way, MLflow would leave a database that it refuses to open ever after.
    """
    from mlflow import MlflowClient

    sweep(file.parent)  # what somebody left who was killed here
    with temporary_place(file.parent, file.name) as folder:
        folder.mkdir()  # the database has files beside it while it is written to
        beside = folder / file.name
        MlflowClient(tracking_uri=sqlite_uri(beside)).search_experiments(max_results=1)
        try:
            os.link(beside, file)  # fails where somebody else was quicker, and theirs may hold runs already
        except FileExistsError:
            pass
        except OSError:
            os.rename(beside, file)  # a file system without links


def _try_to_connect(uri: str) -> None:
    """One attempt of our own: MLflow would try ten times, over more than a minute, and log each."""
    import sqlalchemy

    seconds = {"timeout" if "mssql" in uri else "connect_timeout": int(OPENING_PATIENCE)}
    engine = sqlalchemy.create_engine(uri, connect_args=seconds)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def _passes(error: Exception, uri: str) -> bool:
    """Whether waiting may help. A busy sqlite file is waited for; a full disk or a read-only file is not."""
    import requests
    import sqlalchemy.exc
    from mlflow.exceptions import InvalidUrlException, MlflowException

    if isinstance(error, InvalidUrlException):
        return False
    if sqlite_file(uri) is not None:
        return "locked" in str(error)
    if isinstance(error, MlflowException):
        return error.error_code in PASSING
    away = (requests.ConnectionError, requests.Timeout, ConnectionError, TimeoutError, sqlalchemy.exc.OperationalError)
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code in (408, 429, 500, 502, 503, 504)
    return isinstance(error, away)


class _OurSettings:
    """Our settings in the environment while anybody is inside, on whatever thread; what was there before comes back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.before = {name: os.environ.get(name) for name in SETTINGS}
                os.environ.update(SETTINGS)
            self.inside += 1

    def __exit__(self, *exc: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                for name, value in self.before.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value


our_settings = _OurSettings()
