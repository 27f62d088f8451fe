"""The steps of a run: who does what, on which thread, and until when a study is locked."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform import Collection, Study, run
from nbsr_platform.execution import records, runner
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.locks import study_lock

STUDIES = tuple(
    Study.from_dict({"name": name, "domain": "iris", "training": {"epochs": 1}, "models": {"mlp": {}}, "seeds": [seed]})
    for seed, name in enumerate(("first", "second"))
)


def is_locked(home: Home, study: str) -> bool:
    with home.lock(study).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_study_is_locked_by_the_main_thread_until_its_last_entry_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, steps = Home(tmp_path), []

    @contextmanager
    def watched(home: Home, study: str) -> Iterator[None]:
        with study_lock(home, study):
            steps.append(("lock", study, threading.current_thread().name))
            yield
        steps.append(("release", study, threading.current_thread().name))

    finish = records.StudyRecord.finish

    def finished(self: records.StudyRecord, complaints: list[str]) -> None:
        finish(self, complaints)
        name = self.part.study.name
        assert is_locked(home, name)
        steps.append(("written", name, threading.current_thread().name))

    monkeypatch.setattr(runner, "study_lock", watched)
    monkeypatch.setattr(records.StudyRecord, "finish", finished)
    result = run(Collection("both", None, STUDIES), home=tmp_path, local=True)
    assert result.to_json()["trials"]["finished"] == 2
    main = threading.main_thread().name
    for study in ("first", "second"):
        own: list[Any] = [step for step in steps if step[1] == study]
        assert own == [("lock", study, main), ("written", study, "recorder"), ("release", study, main)]
        assert not is_locked(home, study)


def test_the_next_study_does_not_wait_for_the_report_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, finish = threading.Event(), records.StudyRecord.finish

    def waiting(self: records.StudyRecord, complaints: list[str]) -> None:
        if self.part.study.name == "first":
            assert has_begun.wait(60), "the second study waits for the report of the first"
        finish(self, complaints)

    def began(self: runner.Runner, *arguments: Any) -> None:
        if arguments[0].study.name == "second":
            has_begun.set()
        execute(self, *arguments)

    execute = runner.Runner.execute
    monkeypatch.setattr(runner.Runner, "execute", began)
    monkeypatch.setattr(records.StudyRecord, "finish", waiting)
    result = run(Collection("both", None, STUDIES), home=tmp_path, local=True)
    assert [part.complaints for part in result.parts] == [[], []]


def test_studies_that_are_run_together_have_a_report_together(tmp_path: Path) -> None:
    both = run(Collection("both", "Which?", STUDIES), home=tmp_path, local=True)
    assert both.report == Home(tmp_path).report("both")
    page = both.report.read_text()
    assert "Which?" in page
    alone = run(STUDIES[0], home=tmp_path, local=True)
    assert alone.report == Home(tmp_path).report("first")
    assert alone.to_json()["trials"]["reused"] == 1
