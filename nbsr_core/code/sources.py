"""The files behind a name: a module of somebody's own with all that it imports, for those who ask whether it changed.

Imports are read from the source, wherever in it they stand; nothing is run for it. Installed packages do not count:
their versions tell them apart. A module whose name is only known when the code runs is not seen.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

# Our own packages have a version of their own.
OURS = ("nbsr_core", "nbsr_platform")
INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@runtime_checkable
class NamesFiles(Protocol):
    """Options that name files or code of one's own."""

    def decisive_files(self) -> Mapping[str, Path]:
        """Files, by a name for each, whose content decides what the options stand for."""


@runtime_checkable
class StartsElsewhere(Protocol):
    """Options of a part that begins with what was learned elsewhere, or that needs packages which others do not."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Names of the packages that must be installed to build it."""

    def once_trained(self) -> StartsElsewhere:
        """The same part, for whoever fills in all its weights: nothing is read or downloaded for a start."""


def starting_elsewhere(options: object) -> Iterator[StartsElsewhere]:
    """The parts of options that begin elsewhere."""
    if isinstance(options, StartsElsewhere):
        yield options
    elif is_dataclass(options):
        for part in fields(options):
            yield from starting_elsewhere(getattr(options, part.name))


def once_trained(options: Any) -> Any:
    """The options of a model whose weights are known: building it reads no file and loads nothing."""
    if isinstance(options, StartsElsewhere):
        return options.once_trained()
    if not is_dataclass(options) or isinstance(options, type):
        return options
    return replace(options, **{part.name: once_trained(getattr(options, part.name)) for part in fields(options)})


def naming_files(options: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], NamesFiles]]:
    """The parts of options that name files, each with its path in them."""
    if isinstance(options, NamesFiles):
        yield path, options
    if is_dataclass(options):
        for part in fields(options):
            yield from naming_files(getattr(options, part.name), (*path, part.name))


def code_behind(module: str) -> dict[str, Path]:
    """The source files of a module and of all that it imports and that is not installed, by the names of the modules.

    A module of an installed package counts with the other modules of that package.
    """
    own, found, todo = module.partition(".")[0], dict[str, Path](), [module]
    while todo:
        name = todo.pop()
        if name in found or name.partition(".")[0] in OURS:
            continue
        spec = _find(name)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            continue
        file = Path(spec.origin)
        if name.partition(".")[0] != own and any(file.resolve().is_relative_to(place) for place in INSTALLED):
            continue
        found[name] = file
        if file.suffix == ".py":
            package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
            todo += _imports(file, package)
        todo += list(accumulate(name.split(".")[:-1], "{}.{}".format))  # packages around it run as well
    return found


def checksum(files: Mapping[str, Path]) -> str:
    """A hash of names and contents, 12 hex digits."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + hashlib.sha256(files[name].read_bytes()).digest())
    return digest.hexdigest()[:12]


def _find(name: str) -> ModuleSpec | None:
    """Where a module is, without importing anything: Python's own `find_spec` imports the packages around it."""
    spec: ModuleSpec | None = None
    for part in accumulate(name.split("."), "{}.{}".format):
        if spec is not None and spec.submodule_search_locations is None:
            return None
        loaded = getattr(sys.modules.get(part), "__spec__", None)
        within = None if spec is None else list(spec.submodule_search_locations or ())
        # By its last name: a folder without __init__.py asks for the modules above it, which need not be loaded.
        spec = loaded or PathFinder.find_spec(part.rpartition(".")[2], within)
        if spec is None:
            return None
    return spec


def imported_packages(file: Path, *, at_once: bool = False) -> set[str]:
    """Top-level names that a source file imports; with `at_once` only what its own import cannot do without."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _imports(file: Path, package: str) -> Iterator[str]:
    """Names of modules that a source file may import."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
            base = ".".join(filter(None, [*above, node.module]))
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
