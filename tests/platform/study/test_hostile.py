"""Broken and hostile inputs: one clear message, exit code 2, nothing run, nothing written, no secret told."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbsr_platform.cli.app import app
from nbsr_platform.search import storage as search_storage
from nbsr_platform.tracking import store as tracking_store
from typer.testing import CliRunner

from benchmarks.reliability.hostile import HOSTILE, OWNED, PASSWORD, Hostile


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.name)
def test_hostile_input_is_refused(case: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tracking_store, search_storage):
        monkeypatch.setattr(module, "OPENING_PATIENCE", 1)
    case.place(tmp_path)
    before = files(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, case.arguments)
    assert done.exit_code == 2, (done.output, done.exception)
    assert "Traceback" not in done.output
    assert case.says in done.output
    assert PASSWORD not in done.output
    assert not (tmp_path / OWNED).exists()
    after = files(tmp_path)
    assert {name: text for name, text in after.items() if name not in before} == {}, "half-written state"
    assert {name: after.get(name) for name in before} == before


def test_there_are_sixty_of_them_and_no_two_alike() -> None:
    assert len({case.name for case in HOSTILE}) == len(HOSTILE) >= 60
