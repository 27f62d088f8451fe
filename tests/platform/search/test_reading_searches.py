"""Whoever looks at a search changes nothing: no study, no table, no file, and not a byte of what is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from nbsr_platform.search.record import SearchRecord
from nbsr_platform.search.storage import open_for_reading
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from postgres import postgres
from searches import STUDY, feed, finish, run

from nbsr_core.errors import InputError


def read(home: Home, url: str | None = None, key: str = "key") -> SearchRecord | None:
    return SearchRecord.read(Study.from_dict(STUDY), key, home, url)


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows_of(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Every table of a database with all its rows."""
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.connect() as connection:
            names = sorted(sqlalchemy.inspect(engine).get_table_names())
            return {
                name: sorted(map(tuple, connection.execute(sqlalchemy.text(f'select * from "{name}"'))), key=repr)
                for name in names
            }
    finally:
        engine.dispose()


def refuses(storage: BaseStorage, reason: str) -> None:
    with pytest.raises(StorageInternalError) as error:
        storage.create_new_study([StudyDirection.MINIMIZE], "another")
    assert reason in str(error.value.__cause__)


def test_a_journal_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    home = Home(tmp_path)
    keys = run(feed(home), 3)
    before = bytes_below(tmp_path)
    found = read(home)
    assert found is not None
    assert [proposal.key for proposal in found.proposals()] == keys
    assert (found.asked, found.remaining, [trial.key for trial, _ in found.ended()]) == (3, 1, keys)
    assert bytes_below(tmp_path) == before


def test_where_there_is_no_journal_none_is_made(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert read(home) is None
    assert not home.root.exists()


@pytest.mark.parametrize("name", ["optuna.db", "a %41 b.db"])
def test_a_sqlite_file_is_read_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    home, url = Home(tmp_path), f"sqlite:///{tmp_path / name.replace('%', '%25')}"
    keys = finish(feed(home, url))
    before = bytes_below(tmp_path)
    found = read(home, url)
    assert found is not None
    assert [proposal.key for proposal in found.proposals()] == keys
    assert found.remaining == 0
    assert read(home, url, "another") is None, "a study that is not there is not made"
    assert bytes_below(tmp_path) == before


def test_a_sqlite_file_that_is_not_there_or_holds_nothing_stays_so(tmp_path: Path) -> None:
    assert read(Home(tmp_path), f"sqlite:///{tmp_path / 'none.db'}") is None
    assert list(tmp_path.iterdir()) == []
    empty = tmp_path / "empty.db"
    empty.touch()
    assert read(Home(tmp_path), f"sqlite:///{empty}") is None
    assert empty.read_bytes() == b""


def test_what_is_opened_for_reading_refuses_to_be_written(tmp_path: Path) -> None:
    home, url = Home(tmp_path), f"sqlite:///{tmp_path / 'optuna.db'}"
    run(feed(home, url), 1)
    storage = open_for_reading(home, "hunt-key", url)
    assert storage is not None
    refuses(storage, "readonly database")


def test_a_database_that_does_not_answer_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbsr_platform.search.storage.OPENING_PATIENCE", 1)
    with pytest.raises(InputError, match="cannot open search storage") as error:
        read(Home(tmp_path), "postgresql+psycopg://nbsr:geheim@127.0.0.1:1/optuna")
    assert "geheim" not in str(error.value)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture
def database(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address; connections are closed in the end, which Optuna leaves to the end of the process."""
    make, engines = sqlalchemy.create_engine, list[sqlalchemy.Engine]()

    def remembered(*args: Any, **options: Any) -> sqlalchemy.Engine:
        engines.append(make(*args, **options))
        return engines[-1]

    monkeypatch.setattr(sqlalchemy, "create_engine", remembered)
    monkeypatch.setattr(sqlalchemy.engine, "create_engine", remembered)
    yield server
    for engine in engines:
        engine.dispose()


def test_a_postgres_without_searches_stays_without(tmp_path: Path, database: str) -> None:
    assert read(Home(tmp_path), database) is None
    assert rows_of(database) == {}


def test_a_postgres_is_read_and_left_as_it_is(tmp_path: Path, database: str) -> None:
    home = Home(tmp_path)
    keys = run(feed(home, database), 3)
    before = rows_of(database), bytes_below(tmp_path)
    found = read(home, database)
    assert found is not None
    assert [proposal.key for proposal in found.proposals()] == keys
    assert read(home, database, "another") is None
    assert (rows_of(database), bytes_below(tmp_path)) == before
    storage = open_for_reading(home, "hunt-key", database)
    assert storage is not None
    refuses(storage, "read-only transaction")
