"""The store of results and weights: shared by many drivers, checked when it is read, made again where it is damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.sealed import DamagedError, seal
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.weights import WeightsStore

from nbsr_core.errors import InputError

SWEEPER = """
import sys
from pathlib import Path
from nbsr_platform.trials.store import ResultStore
store = ResultStore(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    store.sweep()
"""


def result(key: str, value: float = 1.0, weights: str | None = None) -> TrialResult:
    return TrialResult(
        key,
        "finished",
        1.0,
        epochs=[{"epoch": 0.0, "seconds": 0.5, "train/loss": float("nan")}],
        metrics={"test/accuracy": value},
        environment={"torch": "2"},
        weights=weights or f"weights_of_{key}",
        state={"w": torch.full((1000,), value)},
    )


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
        "import os, sys, signal; from pathlib import Path; from nbsr_platform.base import leftovers\n"
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


def take_the_result_of_another_and_seal_it(folder: Path) -> None:
    shutil.copy(folder.with_name("other") / "result.json", folder)
    seal(folder, folder.name)


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "result gone": lambda folder: (folder / "result.json").unlink(),
    "result cut": cut("result.json"),
    "a bit of the result flipped": flip("result.json"),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest cut": cut("manifest.json"),
    "manifest of another shape": lambda folder: (folder / "manifest.json").write_text("[]"),
    "result of another trial": lambda folder: shutil.copy(folder.with_name("other") / "result.json", folder),
    "all of another trial": lambda folder: shutil.copytree(folder.with_name("other"), folder, dirs_exist_ok=True),
    "result of another trial, sealed": take_the_result_of_another_and_seal_it,
    "an empty folder": empty,
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


def lose_epochs_and_seal(folder: Path) -> None:
    (folder / "training.json").write_text('{"key": "weights_of_key", "epochs": {}, "environment": {}}')
    seal(folder, folder.name)


def lose_weights_and_seal(folder: Path) -> None:
    (folder / "model.pt").unlink()
    seal(folder, folder.name)


def take_the_epochs_of_another_and_seal_them(folder: Path) -> None:
    shutil.copy(folder.with_name("weights_of_other") / "training.json", folder)
    seal(folder, folder.name)


DAMAGED_WEIGHTS: dict[str, Callable[[Path], object]] = {
    "weights gone": lambda folder: (folder / "model.pt").unlink(),
    "weights cut": cut("model.pt"),
    "a bit of the weights flipped": flip("model.pt"),
    "all gone": shutil.rmtree,
    "epochs cut": cut("training.json"),
    "epochs of another shape, sealed": lose_epochs_and_seal,
    "weights gone, sealed": lose_weights_and_seal,
    "all of another trial": lambda folder: shutil.copytree(
        folder.with_name("weights_of_other"), folder, dirs_exist_ok=True
    ),
    "epochs of another trial, sealed": take_the_epochs_of_another_and_seal_them,
}


@pytest.mark.parametrize("kind", DAMAGED_WEIGHTS)
def test_a_trial_with_damaged_weights_is_not_there_and_both_are_made_again(store: ResultStore, kind: str) -> None:
    store.save(result("key", 1.0))
    store.save(result("other", 2.0))
    DAMAGED_WEIGHTS[kind](store.weights.folder("weights_of_key"))
    assert not store.has("key")
    assert store.weights.find("weights_of_key") is None
    assert "run its study again" in str(store.damage("key"))
    with pytest.raises(DamagedError, match="run its study again"):
        read(store, "key")
    store.save(result("key", 1.0))
    assert store.has("key")
    assert store.has("other")
    assert sorted(path.name for path in store.weights.root.iterdir()) == ["weights_of_key", "weights_of_other"]


def test_what_was_learned_is_kept_once_for_all_trials_that_judge_it(store: ResultStore) -> None:
    store.save(result("one", weights="shared"))
    learned = store.weights.find("shared")
    assert learned is not None
    assert learned.epochs == [{"epoch": 0.0, "seconds": 0.5, "train/loss": None}]
    assert (learned.environment, learned.seconds) == ({"torch": "2"}, 0.5)
    again = TrialResult("two", "finished", 1.0, weights="shared", trained_in=learned.environment)
    store.save(again)
    assert store.load("two").was_judged_again
    assert store.weights.keys() == ["shared"]
    state = store.load_state("two")
    assert state is not None
    assert state["w"].tolist() == [1.0] * 1000
    assert store.weights.find("another") is None


def test_weights_that_are_there_are_not_written_again(store: ResultStore) -> None:
    store.save(result("one", weights="shared"))
    before = store.weights.folder("shared").stat().st_ino
    store.save(result("two", weights="shared"))
    assert store.weights.folder("shared").stat().st_ino == before


def test_many_drivers_may_save_the_same_weights_at_once(store: ResultStore) -> None:
    code = (
        "import sys, torch; from pathlib import Path; from nbsr_platform.trials.weights import Learned, WeightsStore\n"
        "store = WeightsStore(Path(sys.argv[1]))\n"
        "for number in range(40): store.save(Learned(f'{number}', [], {'torch': '2'}, {'w': torch.ones(1000)}))"
    )
    drivers = [subprocess.Popen([sys.executable, "-c", code, str(store.weights.root)]) for _ in range(3)]
    assert [driver.wait(120) for driver in drivers] == [0, 0, 0]
    assert len(store.weights.keys()) == 40
    assert all(store.weights.has(key) for key in store.weights.keys())  # noqa: SIM118
    assert sorted(path.name for path in store.weights.root.iterdir()) == store.weights.keys(), "nothing is left over"


def test_a_driver_moves_nothing_aside_that_another_has_just_saved(
    store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one has looked and found nothing when the quicker one comes: that one must wait, and see it then."""
    quicker = threading.Thread(target=store.save, args=[result("key")])
    looked, rename, moved_aside = WeightsStore._is_whole, Path.rename, list[Path]()

    def look(weights: WeightsStore, key: str) -> bool:
        found = looked(weights, key)
        if threading.current_thread() is threading.main_thread() and not quicker.ident:
            quicker.start()
            quicker.join(0.5)
        return found

    def note(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        moved_aside.extend([path] if "damaged" in target.name else [])
        return renamed

    monkeypatch.setattr(WeightsStore, "_is_whole", look)
    monkeypatch.setattr(Path, "rename", note)
    store.save(result("key"))
    quicker.join(60)
    assert moved_aside == []
    assert store.has("key")
    assert sorted(path.name for path in store.weights.root.iterdir()) == ["weights_of_key"]


def test_a_result_with_weights_needs_a_key_for_them(store: ResultStore) -> None:
    with pytest.raises(ValueError, match="no key for them"):
        store.save(TrialResult("key", "finished", 1.0, state={}))
    assert store.keys() == []


@pytest.mark.parametrize("weights", ["../trials/other", "a/b", ".."])
def test_a_forged_result_leads_to_no_other_place(store: ResultStore, weights: str) -> None:
    store.save(result("key"))
    (store.folder("key") / "result.json").write_text(TrialResult("key", "finished", 1.0, weights=weights).to_json())
    seal(store.folder("key"), "key")
    assert not store.has("key")
    with pytest.raises(DamagedError, match="which is no key"):
        store.load_state("key")


def test_a_result_of_an_earlier_version_still_has_the_model_that_was_kept_beside_it(store: ResultStore) -> None:
    place = store.folder("old")
    place.mkdir(parents=True)
    (place / "result.json").write_text('{"key": "old", "status": "finished", "seconds": 1.0, "metrics": {"a": 1}}')
    torch.save({"w": torch.ones(2)}, place / "model.pt")
    seal(place, "old")
    assert store.has("old")
    state = store.load_state("old")
    assert state is not None
    assert state["w"].tolist() == [1.0, 1.0]
    flip("model.pt")(place)
    assert not store.has("old")


def test_looking_makes_nothing(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "home" / "trials")
    assert (store.keys(), store.has("key"), store.weights.find("key")) == ([], False, None)
    store.sweep()
    assert list(tmp_path.iterdir()) == []


def test_weights_that_run_code_are_refused_however_well_sealed(store: ResultStore) -> None:
    from benchmarks.reliability.hostile.case import malicious_weights

    store.save(result("key"))
    place = store.weights.folder("weights_of_key")
    (place / "model.pt").write_bytes(malicious_weights())
    seal(place, place.name)
    with pytest.raises(InputError):
        store.load_state("key")
