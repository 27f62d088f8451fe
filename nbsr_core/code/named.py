"""Code that a study names (its domain, a backbone of its own): what is installed, or stands in a folder the user named.

Names of code also come out of stored results, which are data: they lead to nothing but these two places. A folder goes
to the end of Python's path, and only where the named module stands in it, so it hides nothing that is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from nbsr_core.code.project import module_folders
from nbsr_core.errors import InputError

# Folders that users named; a process can import only one module of a name.
_folders: list[Path] = []


def allow(folder: Path | str) -> tuple[Path, ...]:
    """Let modules of this folder and of the project around it be named from now on; returns where they may stand.

    Only for folders that the user named.
    """
    places = module_folders(Path(folder).absolute())
    _folders.extend(place for place in places if place not in _folders)
    return places


def split_name(name: str) -> tuple[str, str]:
    """Module and attribute of `package.module:name`; raises where it can be neither a module nor an attribute."""
    module, _, attribute = name.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise InputError("expected package.module:name")
    return module, attribute


def import_named(name: str, among: Sequence[Path] | None = None) -> ModuleType:
    """Import a module by its name.

    Args:
        name: of the module.
        among: folders in which it may stand, where it is not installed; any that `allow` knows if None.

    Raises:
        ImportError: there is no such module, or it cannot import what it needs; `is_missing` tells which.
    """
    make_findable(name, among)
    module, top = importlib.import_module(name), name.partition(".")[0]
    own = None if among is None else PathFinder.find_spec(top, [str(folder) for folder in among])
    here, there = (None if spec is None else spec.origin for spec in (own, sys.modules[top].__spec__))
    if here and there and here != there:
        others = set(_folders).intersection(Path(there).parents[:2])
        if others:
            mine = set(_folders).intersection(Path(here).parents[:2])
            raise InputError(f"module {top!r} stands in {others.pop()} and in {mine.pop()}: rename one of them")
    return module


def make_findable(name: str, among: Sequence[Path] | None = None) -> None:
    """Put the folders at the end of Python's path where a module stands in one of them and is not found without."""
    importlib.invalidate_caches()
    top = name.partition(".")[0]
    folders = _folders if among is None else among
    if PathFinder.find_spec(top, [str(folder) for folder in folders]) is not None and not _is_known(top):
        sys.path.extend(str(folder) for folder in folders if str(folder) not in sys.path)


def is_missing(name: str, error: ImportError) -> bool:
    """Whether it is the module itself that was not found, rather than something that it imports."""
    return isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")


def _is_known(top: str) -> bool:
    if top in sys.modules:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except ValueError:
        return True
