"""A search outlives what happens to its storage: a cut journal, a database that is away, results that are lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy.exc
from nbsr_platform.search import storage as search_storage
from nbsr_platform.search.storage import SearchStorageError, open_storage, patiently
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from searches import feed, finish, run

from nbsr_core.errors import InputError


@pytest.mark.parametrize("tail", [b'{"op_code":5,"wor', b"\0" * 40, b"\0\0\0\n"], ids=["cut", "zeros", "line of zeros"])
def test_a_cut_journal_is_good_up_to_the_cut(tmp_path: Path, tail: bytes) -> None:
    home = Home(tmp_path)
    first = run(feed(home), 2)
    (journal,) = (tmp_path / "searches").glob("*.journal")
    whole = journal.read_bytes()
    journal.write_bytes(whole + tail)
    again = feed(home)
    assert again.remaining == 2
    assert [trial.user_attrs["nbsr.trial_key"] for trial in again.optuna_study.trials] == first
    assert journal.read_bytes().startswith(whole)
    assert not journal.read_bytes().removeprefix(whole).startswith(tail)
    run(again, 2)
    assert [trial.state.name for trial in feed(home).optuna_study.trials] == ["COMPLETE"] * 4


def test_a_journal_that_lost_its_last_lines_learns_them_from_the_results(tmp_path: Path) -> None:
    home = Home(tmp_path)
    keys = run(feed(home), 3)
    (journal,) = (tmp_path / "searches").glob("*.journal")
    text = journal.read_bytes()
    journal.write_bytes(text[: text.rindex(b"\n", 0, -1) - 10])
    again = feed(home)
    finish(again)
    trials = again.optuna_study.trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert [trial.user_attrs["nbsr.trial_key"] for trial in trials][:3] == keys


def test_a_database_that_outlived_the_results_has_them_made_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    first, second = Home(tmp_path / "first"), Home(tmp_path / "second")
    keys = run(feed(first, url), 3)
    shutil.rmtree(first.root)
    again = feed(second, url)
    assert again.remaining == 4
    assert run(again, 4)[:3] == keys
    assert again.next() is None
    assert [trial.state.name for trial in again.optuna_study.trials] == ["COMPLETE"] * 4
    assert feed(second, url).remaining == 0


def away(*_: Any, **__: Any) -> Any:
    raise sqlalchemy.exc.OperationalError("select 1", {}, Exception("server closed the connection"))


def test_a_proposal_whose_answer_was_lost_is_taken_up_and_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = feed(Home(tmp_path), f"sqlite:///{tmp_path / 'optuna.db'}")
    ask, lost = search.optuna_study.ask, [True]

    def ask_and_lose_the_answer() -> optuna.Trial:
        trial = ask()
        if lost.pop() if lost else False:
            away()
        return trial

    monkeypatch.setattr(search.optuna_study, "ask", ask_and_lose_the_answer)
    trial = search.next()
    assert trial is not None
    assert trial.proposal == 0
    assert len(search.optuna_study.trials) == 1


def test_what_is_told_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = feed(Home(tmp_path), f"sqlite:///{tmp_path / 'optuna.db'}")
    trial = search.next()
    assert trial is not None
    tell, lost = search.optuna_study.tell, [True]

    def tell_and_lose_the_answer(*args: Any, **options: Any) -> Any:
        told = tell(*args, **options)
        return away() if lost and lost.pop() else told

    monkeypatch.setattr(search.optuna_study, "tell", tell_and_lose_the_answer)
    search.done(trial, TrialResult(trial.key, "finished", 1.0, metrics={"valid/accuracy": 0.5}))
    assert [(found.state.name, found.values) for found in search.optuna_study.trials] == [("COMPLETE", [0.5])]
    assert search.running == {}


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SearchStorageError, match="server closed the connection"):
        patiently(away, seconds=0.3)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "http://127.0.0.1/x",
        "postgresql+psycopg://nbsr:geheim@127.0.0.1:1/optuna",
        "sqlite:////nowhere/at/all.db",
        "postgresql+nodriver://a:geheim@b/c",
    ],
)
def test_a_storage_that_is_none_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(search_storage, "OPENING_PATIENCE", 1)
    with pytest.raises(InputError, match="cannot open search storage") as error:
        open_storage(Home(tmp_path), "hunt", url)
    assert "geheim" not in str(error.value)
