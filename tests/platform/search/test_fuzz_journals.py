"""Journals with damage of any kind: whoever runs the study goes on with it, and its search is whole in the end."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
from fuzzing import FEW, MANY, MEMORY, damaged, good_or_refused
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.search.storage import open_storage
from nbsr_platform.trials.home import Home
from searches import STUDY, feed, finish, run


@cache
def searched() -> Path:
    """A home with a search of which three of four trials are done and one is under way."""
    folder = Path(tempfile.mkdtemp(prefix="nbsr-test-", dir=MEMORY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    begun = feed(Home(folder))
    run(begun, 3)
    assert begun.next() is not None
    return folder


def journal_of(home: Home) -> Path:
    return home.search_journal("hunt-key")


def runs_to_its_end(content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        home = Home(Path(folder) / "home")
        shutil.copytree(searched(), home.root)
        journal_of(home).write_bytes(content)
        good_or_refused(lambda: open_storage(home, "hunt-key"))  # as a reader does

        def go_on() -> list[str]:
            search = feed(home)
            finish(search)
            return [proposal.state for proposal in search.proposals()]

        states = good_or_refused(go_on)
        assert states is not None, "who runs the study is never refused"
        assert len(states) >= STUDY["search"]["trials"]
        assert set(states) <= {"COMPLETE", "FAIL", "PRUNED"}, "nothing stays under way"


def contents() -> st.SearchStrategy[bytes]:
    whole = journal_of(Home(searched())).read_bytes()
    lines = whole.splitlines(keepends=True)
    return st.one_of(
        damaged(whole),
        st.binary(max_size=300),
        st.permutations(lines).map(b"".join),
        st.lists(st.sampled_from(lines), max_size=2 * len(lines)).map(b"".join),
    )


def test_a_damaged_journal_runs_to_its_end() -> None:
    FEW(given(contents())(runs_to_its_end))()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_damaged_journals_run_to_their_end() -> None:
    MANY(given(contents())(runs_to_its_end))()
