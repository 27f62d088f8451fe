"""Reading never writes: what only looks leaves a home as it was, and makes none where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from nbsr_platform.explain.explain import explain
from nbsr_platform.inspect import estimates
from nbsr_platform.inspect.estimates import Timing
from nbsr_platform.inspect.listing import listing
from nbsr_platform.inspect.plan import plan
from nbsr_platform.report.find import find
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid

from benchmarks.reliability.hostile.case import trained
from nbsr_core.errors import InputError


def study() -> Study:
    """That of the trial that was trained."""
    return Study.from_dict({"name": "real", "domain": "iris", "models": {"nbsr": {}}, "training": {"epochs": 1}})


def refused(action: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        action()


READERS: dict[str, Callable[[Home], object]] = {
    "ls": listing,
    "plan": lambda home: plan(study(), home),
    "report": lambda home: find(home, "study.yaml"),
    "explain": lambda home: explain(home, trained().key, 0),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimates, "probe", lambda trial, where: Timing(1.0, 2.0, False, "a stand-in"))
    (tmp_path / "study.yaml").write_text(study().to_yaml())
    return tmp_path


def everything(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("name", READERS)
def test_where_there_is_no_home_none_is_made(folder: Path, name: str) -> None:
    before = everything(folder)
    if name in ("report", "explain"):
        refused(lambda: READERS[name](Home(folder / "home")))
    else:
        READERS[name](Home(folder / "home"))
    assert everything(folder) == before


@pytest.mark.parametrize("name", READERS)
def test_a_home_stays_as_it_was(folder: Path, name: str) -> None:
    home = Home(folder / "home")
    ResultStore(home.trials).save(trained())
    (same,) = grid(study(), data_fingerprint(study()))
    assert same.key == trained().key
    before = everything(folder)
    READERS[name](home)
    assert everything(folder) == before
