"""Hostile inputs that show only in a real run: what is decoded on Ray, and a home whose name is read by many parts."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from PIL import Image

STUDY = "name: odd\ndomain: iris\nseeds: 1\ntraining: {epochs: 1}\nmodels: {mlp: {}}\n"


def nbsr(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nbsr_platform.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)


def bomb(side: int) -> bytes:
    """A PNG that declares a size and has nothing else."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.slow
def test_a_picture_that_cannot_be_decoded_on_ray_is_one_message(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "tree" / part / name).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / "tree" / part / name / "a.png")
    (tmp_path / "tree" / "train" / "cat" / "a.png").write_bytes(bomb(9_000))
    (tmp_path / "s.yaml").write_text(
        "name: bomb\ndomain: vision\ndata: {source: tree, ood: [], size: 8, cache: cache}\n"
        "models: {flat: {backbone: {name: resnet18}}}\n"
    )
    done = nbsr(tmp_path, "run", "s.yaml")
    assert done.returncode == 2, done
    assert "tree/train/cat/a.png has 9,000 x 9,000 pixels" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.slow
def test_a_study_runs_in_a_home_of_an_odd_name_and_goes_on_where_it_was_moved(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY)
    before, after = tmp_path / "a%41?#ü [red]'b", tmp_path / "b%41"
    first = nbsr(tmp_path, "run", "s.yaml", "--home", str(before / ".nbsr"))
    assert first.returncode == 0, first
    assert {path.name for path in tmp_path.iterdir()} == {"s.yaml", before.name}
    before.rename(after)
    again = nbsr(tmp_path, "run", "s.yaml", "--home", str(after / ".nbsr"))
    assert again.returncode == 0, again
    assert "was moved" in again.stderr
    assert "1 trials, 1 of them done before" in again.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"s.yaml", after.name}
    shutil.rmtree(after)
