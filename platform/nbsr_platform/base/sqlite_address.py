"""Paths of sqlite files as addresses, and back: the one place where either is made of the other.

SQLAlchemy reads `%41` in an address as a character and all after `?` as parameters, so such a path must be quoted.
MLflow makes the folder of every address that begins with `sqlite:///` itself, and takes its path literally: a quoted
one would leave an empty folder of another name beside the right one. With its driver named, an address is left alone.
"""

from __future__ import annotations

from pathlib import Path

from nbsr_core.errors import InputError

PLAIN, WITH_DRIVER = "sqlite:///", "sqlite+pysqlite:///"
SPECIAL = "%?"  # read by SQLAlchemy as something else


def sqlite_uri(file: Path) -> str:
    """The address of a file; plain wherever that is understood."""
    path = str(file.absolute())
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{path}: a database cannot lie there, for its path is not UTF-8; choose another one"
        ) from None
    if not any(character in path for character in SPECIAL):
        return PLAIN + path
    import sqlalchemy

    uri = sqlalchemy.URL.create("sqlite+pysqlite", database=path).render_as_string()
    if sqlalchemy.make_url(uri).database != path:  # SQLAlchemy before 2.1 quotes nothing
        raise InputError(f"{path}: a database cannot lie there, for its path has one of {SPECIAL}; choose another one")
    return uri


def is_sqlite(uri: str) -> bool:
    return uri.split(":", 1)[0].split("+")[0] == "sqlite"


def sqlite_file(uri: str) -> Path | None:
    """The file behind a sqlite address; None for any other store."""
    if not is_sqlite(uri):
        return None
    path = uri.removeprefix(PLAIN)
    if path == uri or any(character in path for character in SPECIAL):
        import sqlalchemy

        try:
            url = sqlalchemy.make_url(uri)
        except (sqlalchemy.exc.ArgumentError, ValueError) as error:
            raise InputError(f"{uri}: {error}; give {PLAIN}path/to/mlflow.db") from None
        if url.query:
            raise InputError(
                f"{uri.partition('?')[0]}: a sqlite file takes no parameters; a ? in its path is written as %3F"
            )
        path = url.database or ""
    if path in ("", ":memory:") or path.startswith("file:"):
        raise InputError(f"{uri}: sqlite needs a file, such as {PLAIN}mlflow.db")
    return Path(path)
