"""The store of finished trials: shared by many drivers, checked when it is read, made again where it is damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nbsr_platform.results import TrialResult
from nbsr_platform.store import DamagedError, ResultStore, seal

from nbsr_core.errors import InputError

SWEEPER = """
import sys
from pathlib import Path
from nbsr_platform.store import ResultStore
store = ResultStore(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    store.sweep()
"""


def result(key: str, value: float = 1.0) -> TrialResult:
    return TrialResult(key, "finished", 1.0, metrics={"test/accuracy": value}, state={"w": torch.full((1000,), value)})


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "trials")


def test_what_is_saved_is_there_whole(store: ResultStore) -> None:
    assert store.keys() == []
    store.save(result("a"))
    store.save(TrialResult("b", "finished", 1.0))
    assert store.keys() == ["a", "b"]
    assert store.has("a")
    assert not store.has("c")
    assert store.load("a").metrics == {"test/accuracy": 1.0}
    state = store.load_state("a")
    assert state is not None
    assert state["w"].tolist() == [1.0] * 1000
    assert store.load_state("b") is None
    assert sorted(path.name for path in store.root.iterdir()) == ["a", "b"]


def test_a_driver_that_starts_removes_nothing_that_another_one_is_saving(store: ResultStore) -> None:
    store.root.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", SWEEPER, str(store.root)], stdout=subprocess.PIPE, text=True
    ) as another:
        try:
            assert another.stdout is not None
            assert another.stdout.readline() == "ready\n"
            for number in range(150):
                store.save(result(f"{number:03d}"))
        finally:
            another.kill()
    assert all(store.has(f"{number:03d}") for number in range(150))


def test_what_a_killed_driver_left_is_removed_by_the_next(store: ResultStore) -> None:
    code = (
        "import os, sys, signal; from pathlib import Path; from nbsr_platform import leftovers\n"
        "with leftovers.temporary_place(Path(sys.argv[1]), 'key') as place:\n"
        "    place.mkdir(); (place / 'result.json').write_text('{'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    store.root.mkdir()
    subprocess.run([sys.executable, "-c", code, str(store.root)], check=False)
    assert len(list(store.root.iterdir())) == 2
    store.sweep()
    assert list(store.root.iterdir()) == []


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def flip(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return change


DAMAGE: dict[str, Callable[[Path], None]] = {
    "weights gone": lambda folder: (folder / "model.pt").unlink(),
    "weights cut": cut("model.pt"),
    "a bit of the weights flipped": flip("model.pt"),
    "result gone": lambda folder: (folder / "result.json").unlink(),
    "result cut": cut("result.json"),
    "a bit of the result flipped": flip("result.json"),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest cut": cut("manifest.json"),
    "manifest of another shape": lambda folder: (folder / "manifest.json").write_text("[]"),
    "result of another trial": lambda folder: shutil.copy(folder.with_name("other") / "result.json", folder),
    "all of another trial": lambda folder: shutil.copytree(folder.with_name("other"), folder, dirs_exist_ok=True),
    "result of another trial, sealed": lambda folder: (
        shutil.copy(folder.with_name("other") / "result.json", folder),
        seal(folder, folder.name),
    ),
    "an empty folder": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
}


def read(store: ResultStore, key: str) -> None:
    store.load(key)
    store.load_state(key)


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_damaged_is_as_good_as_not_there_and_is_made_again(store: ResultStore, kind: str) -> None:
    store.save(result("key", 1.0))
    store.save(result("other", 2.0))
    DAMAGE[kind](store.folder("key"))
    assert not store.has("key")
    assert "run its study again" in str(store.damage("key"))
    with pytest.raises(DamagedError, match="run its study again"):
        read(store, "key")
    store.save(result("key", 1.0))
    assert store.has("key")
    assert store.load("key").metrics == {"test/accuracy": 1.0}
    assert store.has("other")
    assert sorted(path.name for path in store.root.iterdir()) == ["key", "other"]


def test_weights_that_run_code_are_refused_however_well_sealed(store: ResultStore) -> None:
    from benchmarks.reliability.hostile.case import malicious_weights

    store.save(result("key"))
    (store.folder("key") / "model.pt").write_bytes(malicious_weights())
    seal(store.folder("key"), "key")
    with pytest.raises(InputError):
        store.load_state("key")
