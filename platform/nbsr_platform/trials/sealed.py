"""Folders that are written whole or not at all, and checked whenever they are read.

Each lies under its key and has a manifest: the key, and a checksum of each file. What does not fit its manifest is as
good as not there: whoever needs it makes it again. Many drivers may share one place.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nbsr_core.errors import InputError, NbsrError
from nbsr_platform.base import leftovers

MANIFEST = "manifest.json"
# Bytes that a store must have room for to be called writable: a small result has as many.
PROBE = 100_000
AGAIN = "run its study again to make it anew"


class StoreError(NbsrError, RuntimeError):
    """The disk under the store is full, read-only or gone."""

    def __init__(self, place: Path, error: OSError) -> None:
        super().__init__(
            f"cannot write to the store {place}: {error.strerror}; what is done is kept, and the same command goes on "
            "when there is room"
        )


class DamagedError(InputError):
    """A folder is not what was saved there."""


@dataclass(frozen=True)
class SealedFolders:
    """Folders by key. One appears under its key only when all its files are on disk.

    Attributes:
        root: where they are.
        required: files that each folder has.
        optional: files that it may have.
    """

    root: Path
    required: ClassVar[frozenset[str]]
    optional: ClassVar[frozenset[str]] = frozenset()

    def folder(self, key: str) -> Path:
        return self.root / key

    def keys(self) -> list[str]:
        """Keys of all that was saved here, whole or not."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if path.name[0] != "." and path.is_dir())

    def has(self, key: str) -> bool:
        """Whether it is here, and every file of it is as it was saved."""
        return self.folder(key).is_dir() and self.damage(key) is None

    def damage(self, key: str) -> str | None:
        """What is wrong with a folder that was saved; None if nothing is."""
        try:
            self.check(key)
        except DamagedError as error:
            return str(error)
        return None

    def check(self, key: str) -> None:
        """Raise a `DamagedError` where a folder is not what was saved."""
        for name in self.names(key):
            self.read(key, name)

    def names(self, key: str) -> list[str]:
        """The files that were saved under a key."""
        return list(self._manifest(key))

    def read(self, key: str, name: str) -> bytes:
        """The content of a file, if it is what was saved."""
        path = self.folder(key) / name
        expected = self._manifest(key).get(name)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DamagedError(f"{path}: {error.strerror}; {AGAIN}") from None
        if _checksum(content) != expected:
            raise DamagedError(f"{path} is not what was saved: its checksum differs; {AGAIN}")
        return content

    def check_writable(self) -> None:
        """Raise where nothing more can be kept."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as file:
                file.write(bytes(PROBE))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(self.root, error) from None

    def sweep(self) -> None:
        """Remove what killed processes left half-written; what a living one is writing stays."""
        if self.root.is_dir():
            leftovers.sweep(self.root)

    def keep(self, key: str, write: Callable[[Path], None]) -> None:
        """Keep what `write` puts into a folder.

        Written beside its place, then renamed: a crash leaves nothing half-done.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with leftovers.temporary_place(self.root, key) as beside:
                beside.mkdir()
                write(beside)
                seal(beside, key)
                for path in beside.iterdir():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                self._publish(beside, key)
        except OSError as error:
            raise StoreError(self.root, error) from None
        except RuntimeError:
            self.check_writable()  # torch has no better word for a full disk
            raise

    def _publish(self, beside: Path, key: str) -> None:
        """Give a whole folder its name, unless an equal one of another driver has it by now.

        One driver at a time: otherwise one could move a whole folder aside that another has just put there.
        """
        with leftovers.one_at_a_time(self.root, f"publishing-{key}"):
            if self._is_whole(key):
                return
            with leftovers.temporary_place(self.root, f"damaged-{key}") as aside:
                with suppress(FileNotFoundError):
                    self.folder(key).rename(aside)
                beside.rename(self.folder(key))

    def _is_whole(self, key: str) -> bool:
        try:
            self.check(key)
        except DamagedError:
            return False
        return True

    def _manifest(self, key: str) -> dict[str, str]:
        """Checksums of a folder's files by name."""
        path = self.folder(key) / MANIFEST
        try:
            plain = json.loads(path.read_bytes())
            found = {str(name): str(checksum) for name, checksum in plain["files"].items()}
            owner = plain["key"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise DamagedError(f"{path}: no readable list of checksums; {AGAIN}") from None
        if owner != key or not self.required <= found.keys() <= self.required | self.optional:
            raise DamagedError(f"{path} does not belong to {key}; {AGAIN}")
        return found


def seal(folder: Path, key: str) -> None:
    """Write the manifest of a folder as its files are now."""
    checksums = {path.name: _checksum(path.read_bytes()) for path in folder.iterdir() if path.name != MANIFEST}
    (folder / MANIFEST).write_text(json.dumps({"key": key, "files": checksums}))


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
