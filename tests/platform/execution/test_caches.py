"""Caches stay in the home folder where they can, and go into the store where they cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from nbsr_platform.execution.caches import CACHES, homeless, keep_in_store
from nbsr_platform.trials.home import Home

from nbsr_core.domains.vision import oracle_cache


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in CACHES:
        monkeypatch.setenv(variable, "")  # so that it is put back afterwards, whatever a test sets
        monkeypatch.delenv(variable)


def test_the_variables_are_those_that_are_read() -> None:
    assert list(CACHES) == [oracle_cache.FOLDER_VARIABLE, "MPLCONFIGDIR"]
    assert str(oracle_cache.cache_folder(None)) == os.path.expanduser(CACHES[oracle_cache.FOLDER_VARIABLE])


def test_a_home_folder_that_can_be_written_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_in_store(Home(tmp_path / "store"))
    assert not set(CACHES) & set(os.environ)
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_written_is_replaced_by_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/self")
    monkeypatch.setenv("NBSR_CACHE", "/elsewhere")
    assert homeless() == ["MPLCONFIGDIR"]
    keep_in_store(Home(tmp_path))
    assert os.environ["NBSR_CACHE"] == "/elsewhere", "what somebody has chosen stays"
    assert os.environ["MPLCONFIGDIR"] == str(tmp_path / "cache" / "mplconfigdir")
