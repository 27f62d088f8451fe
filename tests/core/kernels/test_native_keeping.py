"""Compiled code is loaded only if it is ours and whole; anything else is compiled anew, or done without, and said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nbsr_core.kernels.native import build, keeping

pytestmark = pytest.mark.skipif(not build.availability()[0], reason=f"not compiled: {build.availability()[1]}")

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
# Leaves a file where it is loaded, and has none of our functions.
MALICE = '#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ fclose(fopen("{}", "w")); }}\n'


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled once for all tests here."""
    path = tmp_path_factory.mktemp("good") / "walk.so"
    build._compile(build._wanted()[0], path)
    return path


@dataclass
class Machine:
    """A user's cache and temporary folder, and a compiler that takes no time and counts what it is asked for."""

    root: Path

    @property
    def caches(self) -> Path:
        return self.root / "caches"

    @property
    def folder(self) -> Path:
        return self.caches / "nbsr" / "native"

    @property
    def second(self) -> Path:
        """Where libraries go if the cache is no good."""
        return self.root / "tmp" / f"nbsr-{os.geteuid()}" / "native"

    @property
    def compiled(self) -> int:
        asked = self.root / "asked"
        return len(asked.read_text().splitlines()) if asked.exists() else 0

    def load(self) -> build.Loaded:
        """As a new process would."""
        return build._loaded.__wrapped__()

    def library(self) -> Path:
        (found,) = self.folder.glob("*.so")
        return found


@pytest.fixture
def machine(tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path.resolve())
    if reason := keeping.complaint(found.root):
        pytest.skip(f"temporary files are not safe here: {reason}")
    compiler = tmp_path / "cc"
    compiler.write_text(
        f'#!/bin/sh\necho asked >> {tmp_path}/asked\nwhile [ "$1" != -o ]; do shift; done\ncp {good} "$2"\n'
    )
    compiler.chmod(0o755)
    found.caches.mkdir(mode=0o700)
    (tmp_path / "tmp").mkdir(mode=0o700)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(found.caches))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return found


def malicious(machine: Machine) -> Path:
    """A library of somebody else's; the file `owned` appears if it is ever loaded."""
    source, library = machine.root / "malice.c", machine.root / "malice.so"
    source.write_text(MALICE.format(machine.root / "owned"))
    subprocess.run([shutil.which("cc") or "gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return library


def test_it_is_compiled_once_into_a_folder_that_is_ours_alone(machine: Machine) -> None:
    first, second = machine.load(), machine.load()
    assert machine.compiled == 1
    assert first.says == second.says == str(machine.library())
    assert (first.warning, second.warning) == ("", "")
    assert machine.folder.stat().st_mode & 0o777 == 0o700
    assert machine.library().stat().st_mode & 0o077 == 0
    assert build.outlook() == build.Outlook(True, f"by {os.environ['CC']}, kept in {machine.folder}")


def damage_file(path: Path, content: bytes) -> None:
    """A new file of the same name: this process has loaded the old one, and would itself die of a page that is gone."""
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o600)


@pytest.mark.parametrize("damage", ["truncated", "emptied", "one bit"])
def test_a_damaged_library_is_told_and_compiled_anew(machine: Machine, damage: str) -> None:
    machine.load()
    path = machine.library()
    content = bytearray(path.read_bytes())
    whole = bytes(content)
    if damage == "one bit":
        content[len(content) // 2] ^= 1
    else:
        del content[0 if damage == "emptied" else len(content) // 2 :]
    damage_file(path, bytes(content))
    told = build.outlook()
    assert "is damaged" in told.says
    assert "compile it anew" in told.advice
    found = machine.load()
    assert found.library is not None
    assert machine.compiled == 2
    assert machine.library().read_bytes() == whole


def test_a_truncated_library_ends_no_process(machine: Machine) -> None:
    """The kernel kills whoever touches a page of it that is not there."""
    machine.load()
    path = machine.library()
    damage_file(path, path.read_bytes()[:20_000])
    code = "from nbsr_core.kernels.native import build; print(build.library() is not None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, timeout=100)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_library_without_our_functions_is_compiled_anew(machine: Machine) -> None:
    machine.load()
    machine.library().unlink()
    stem = build._wanted()[1]
    other = malicious(machine)
    other.write_bytes(other.read_bytes())
    keeping.keep(other, machine.folder, stem)
    assert "has no function nbsr_level" in build.outlook().says
    found = machine.load()
    assert found.library is not None
    assert found.library.nbsr_walk.restype is not None
    assert machine.compiled == 2


def test_what_is_no_library_is_compiled_anew(machine: Machine) -> None:
    machine.load()
    text = machine.root / "text"
    text.write_text("hello")
    keeping.keep(text, machine.folder, build._wanted()[1])
    assert machine.load().library is not None


@needs_root
def test_the_library_of_another_user_is_not_loaded(machine: Machine) -> None:
    machine.load()
    path = machine.library()
    damage_file(path, malicious(machine).read_bytes())
    kept = keeping.keep(path, machine.folder, build._wanted()[1])
    os.chown(kept, STRANGER, STRANGER)
    assert f"belongs to user {STRANGER}" in build.outlook().says
    assert machine.load().library is not None
    assert not (machine.root / "owned").exists()


def test_a_library_that_others_may_write_is_not_loaded(machine: Machine) -> None:
    machine.load()
    machine.library().chmod(0o666)
    assert "can be written by others" in build.outlook().says
    assert machine.load().library is not None
    assert machine.compiled == 2
    assert machine.library().stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("what", ["file", "folder"])
def test_symbolic_links_are_not_followed(machine: Machine, what: str) -> None:
    machine.load()
    target = machine.library() if what == "file" else machine.folder
    elsewhere = machine.root / "elsewhere"
    target.rename(elsewhere)
    target.symlink_to(elsewhere)
    found = machine.load()
    assert found.library is not None
    assert machine.compiled == 2
    if what == "folder":
        assert "is a symbolic link" in found.warning


@pytest.mark.parametrize("open_one", ["caches", "caches/nbsr", "caches/nbsr/native"])
def test_a_cache_that_others_may_write_is_not_used(machine: Machine, open_one: str) -> None:
    machine.load()
    place = machine.root / open_one
    place.chmod(0o777)
    told, found = build.outlook(), machine.load()
    assert f"{place} can be written by others (mode 0777)" in told.advice
    assert f"{place} can be written by others (mode 0777)" in found.warning
    assert "XDG_CACHE_HOME" in found.warning
    assert found.says.startswith(str(machine.second))
    assert machine.load().says == found.says
    assert machine.compiled == 2, "processes share what is kept elsewhere"


@needs_root
@pytest.mark.parametrize("foreign", ["caches", "caches/nbsr", "caches/nbsr/native"])
def test_a_cache_of_another_user_is_not_used(machine: Machine, foreign: str) -> None:
    machine.load()
    os.chown(machine.root / foreign, STRANGER, STRANGER)
    found = machine.load()
    assert found.says.startswith(str(machine.second))
    assert f"{machine.root / foreign} belongs to user {STRANGER}, not to us (0)" in found.warning


@needs_root
def test_where_nothing_can_be_kept_each_process_compiles_for_itself(machine: Machine) -> None:
    machine.caches.chmod(0o777)
    squatted = machine.second.parent
    squatted.mkdir()
    os.chown(squatted, STRANGER, STRANGER)
    found = machine.load()
    assert found.library is not None
    assert found.says.startswith("compiled for this process alone")
    assert f"belongs to user {STRANGER}" in found.warning
    assert [path for path in (machine.root / "tmp").iterdir() if path != squatted] == [], "it leaves nothing behind"
    assert "anew in every process" in build.outlook().says


def test_a_file_in_place_of_the_cache_is_survived(machine: Machine) -> None:
    machine.caches.rmdir()
    machine.caches.write_text("")
    found = machine.load()
    assert found.says.startswith(str(machine.second))
    assert "Not a directory" in found.warning


def test_the_reason_is_warned_of_once_when_torch_does_the_work(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    found = machine.load()
    assert found.library is None
    monkeypatch.setattr(build, "_loaded", lambda: found)
    build.library.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"walks are not compiled: /bin/false failed.*half as fast") as said:
            assert [build.library() for _ in range(3)] == [None, None, None]
        assert len(said) == 1
    finally:
        build.library.cache_clear()
