"""Temporary places: a living owner's stay, a dead one's go."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from nbsr_platform.base.leftovers import sweep, temporary_place

OWNER = """
import sys
from pathlib import Path
from nbsr_platform.base.leftovers import temporary_place
with temporary_place(Path(sys.argv[1]), "mine") as place:
    place.mkdir()
    (place / "half").write_text("written")
    print(place, flush=True)
    sys.stdin.read()
"""


def test_nobody_removes_what_a_living_process_is_writing_and_a_killed_ones_goes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        place = Path(owner.stdout.readline().strip())
        assert sweep(tmp_path) == []
        assert (place / "half").read_text() == "written"
        owner.kill()
        owner.wait()
    assert place.exists()
    assert sweep(tmp_path) == [place]
    assert list(tmp_path.iterdir()) == []


def test_a_place_is_gone_at_its_end_whatever_stands_there(tmp_path: Path) -> None:
    with temporary_place(tmp_path, "file") as place:
        place.write_text("x")
    with temporary_place(tmp_path, "renamed") as place:
        place.mkdir()
        place.rename(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_sweeping_without_pause_disturbs_nobody(tmp_path: Path) -> None:
    over = threading.Event()

    def keep_sweeping() -> None:
        while not over.is_set():
            sweep(tmp_path)

    sweeper = threading.Thread(target=keep_sweeping)
    sweeper.start()
    try:
        for number in range(300):
            with temporary_place(tmp_path, "x") as place:
                place.mkdir()
                (place / "a").write_text("a")
                place.rename(tmp_path / str(number))
    finally:
        over.set()
        sweeper.join()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(300))


def test_in_a_folder_like_tmp_what_others_left_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".tmp-theirs.lock").write_text("")
    (tmp_path / ".tmp-theirs").mkdir()
    os.mkfifo(tmp_path / ".tmp-trap.lock")  # whoever opens it waits for ever
    (tmp_path / "precious").write_text("")
    (tmp_path / ".tmp-link.lock").symlink_to("precious")
    tmp_path.chmod(0o1777)
    me = os.geteuid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: me + 1)
        assert sweep(tmp_path) == []
    assert sweep(tmp_path) == [tmp_path / ".tmp-theirs"]
    assert {path.name for path in tmp_path.iterdir()} == {".tmp-trap.lock", ".tmp-link.lock", "precious"}
