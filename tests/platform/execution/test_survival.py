"""The small parts that survive: damaged checkpoints, disks that take nothing, files of jobs on other nodes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from nbsr_platform.cli.shared import clear_errors
from nbsr_platform.execution.coordinator import Coordinator
from nbsr_platform.execution.feeds import GridFeed
from nbsr_platform.execution.on_ray.tune_trials import TuneTrials
from nbsr_platform.execution.on_ray.warm_pool import _Ending
from nbsr_platform.execution.worker import beside_here
from nbsr_platform.trials.checkpoints import CHECKPOINT, EPOCHS, Checkpoints
from nbsr_platform.trials.ended_trials import EndedTrials
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.sealed import StoreError
from nbsr_platform.trials.store import ResultStore
from toys import flat_trial

from nbsr_core.learning import EpochRecord
from nbsr_core.learning.checkpoint import save_atomically


def checkpoint(folder: Path, number: int) -> Path:
    """As two runs of Ray Train leave them, each in a folder of its own."""
    place = folder / "own" / f"run{5 - number}" / f"checkpoint_{number}"
    save_atomically({"epoch": number}, place / CHECKPOINT)
    records = [EpochRecord(epoch, {"nll": 1.0}, {"accuracy": 0.5}, 0.1, 1.0, 2.0, 3.0) for epoch in range(number)]
    os.utime(place / CHECKPOINT, (number, number))
    (place / EPOCHS).write_text(json.dumps([asdict(record) for record in records]))
    return place


@pytest.mark.parametrize("damaged", [CHECKPOINT, EPOCHS])
def test_the_last_good_checkpoint_is_used(tmp_path: Path, damaged: str) -> None:
    older, newer = checkpoint(tmp_path, 1), checkpoint(tmp_path, 2)
    kept = Checkpoints(tmp_path, tmp_path / "own", epochs=5)
    assert kept.last_good() == newer / CHECKPOINT
    os.truncate(newer / damaged, (newer / damaged).stat().st_size // 2)
    os.utime(newer / CHECKPOINT, (2, 2))
    assert kept.last_good() == older / CHECKPOINT
    (older / damaged).unlink()
    assert kept.last_good() is None, "then it starts from the beginning"


@pytest.mark.parametrize("place", ["/proc/nobody/trials", "/dev/null/trials"])
def test_a_store_that_cannot_be_written_says_so(place: str) -> None:
    store = ResultStore(Path(place))
    for attempt in (store.check_writable, lambda: store.save(TrialResult("key", "finished", 1.0))):
        with pytest.raises(StoreError, match=f"cannot write to the store {place}: .*what is done is kept"):
            attempt()


def test_what_a_disk_says_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, clear_errors():
        Path("/proc/nobody").mkdir()
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "/proc/nobody: No such file or directory; what is done is kept\n"
    with pytest.raises(ConnectionError), clear_errors():
        raise ConnectionError("no disk: a bug is to be seen as one")


def test_the_first_thing_that_goes_wrong_in_the_driver_ends_the_study(tmp_path: Path) -> None:
    one = [flat_trial()[0]]
    coordinator = Coordinator(GridFeed(one), "study", Home(tmp_path), cast(Any, None), cast(Any, None), EndedTrials())
    ending = _Ending(cast(Any, SimpleNamespace(trials=TuneTrials(coordinator), check_wanted=lambda: None)))
    with coordinator.guard():
        pass
    assert not ending.stop_all()
    for text in ("first", "second"):
        with coordinator.guard():
            raise OSError(text)
    assert ending.stop_all()
    assert str(coordinator.error) == "first"
    assert coordinator.next() is None, "no more trials are begun"


def test_a_jobs_files_are_found_where_this_node_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "worker" / "_ray_pkg_0123"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    assert beside_here("/head/files/_ray_pkg_0123/studies/mine") == str(here / "studies" / "mine")
    assert beside_here("/head/files/_ray_pkg_0123") == str(here)
    assert beside_here("/somewhere/else") == "/somewhere/else"
    assert beside_here(None) is None
    monkeypatch.chdir(tmp_path)
    assert beside_here("/head/files/_ray_pkg_0123/studies") == "/head/files/_ray_pkg_0123/studies"
