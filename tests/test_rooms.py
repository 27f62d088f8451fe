"""Imports go one way, from the rooms that use to the rooms that are used: read off the sources, deferred ones too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
# Lowest first: a module imports from its own room and from rooms on lines above its own.
LAYERS = {
    "nbsr_core": """
        errors _lazy
        _checks _extras files
        options code
        kernels graph metrics
        belief
        trace
        model
        learning
        evaluation
        plots
        domains
    """,
    "nbsr_platform": """
        base
        study
        trials
        search serving
        tracking
        report
        execution
        explain inspect cluster
        cli
        __main__
    """,
}
HOME = {"nbsr_core": ROOT / "nbsr_core", "nbsr_platform": ROOT / "platform" / "nbsr_platform"}


class Import(NamedTuple):
    """One import of a module of ours: where it stands, and the dotted name that it asks for."""

    file: Path
    line: int
    room: str
    wanted: str


def imports(package: str) -> Iterator[Import]:
    """All imports of our packages in the modules of one of them, wherever in a module they stand."""
    for file in sorted(HOME[package].rglob("*.py")):
        inside = file.relative_to(HOME[package])
        room = "" if inside.parts == ("__init__.py",) else inside.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file.relative_to(ROOT)}:{node.lineno}: a relative import"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                if name.partition(".")[0] in LAYERS:
                    yield Import(file.relative_to(ROOT), node.lineno, room, name)


def rank(package: str) -> dict[str, int]:
    lines = [line.split() for line in LAYERS[package].strip().splitlines()]
    return {room: number for number, rooms in enumerate(lines) for room in rooms}


def offences(package: str) -> list[str]:
    """Every import that goes up, or sideways to a room on the same line, with its place."""
    ranks, found = rank(package), []
    for one in imports(package):
        owner, _, rest = one.wanted.partition(".")
        wanted = rest.partition(".")[0]
        if owner == package:
            if wanted not in ranks:
                continue  # a name of the package itself, which is not a room
            if one.room in ("", wanted) or ranks[wanted] < ranks[one.room]:
                continue
        elif package == "nbsr_platform":
            continue  # the platform stands on the core
        found.append(f"{one.file}:{one.line}: {one.room or package} imports {one.wanted}")
    return found


@pytest.mark.parametrize("package", LAYERS)
def test_imports_go_one_way(package: str) -> None:
    assert offences(package) == []


@pytest.mark.parametrize("package", LAYERS)
def test_every_room_has_its_place_and_says_what_it_is_for(package: str) -> None:
    rooms = {path.name for path in HOME[package].iterdir() if (path / "__init__.py").is_file()}
    modules = {path.stem for path in HOME[package].glob("*.py")} - {"__init__"}
    assert rooms | modules == set(rank(package))
    for room in rooms:
        text = (HOME[package] / room / "__init__.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), f"{package}/{room} does not say what it is for"


def test_an_import_that_goes_up_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "up.py").write_text("def f():\n    from nbsr_core.domains import iris\n    return iris\n")
    monkeypatch.setitem(HOME, "nbsr_core", tmp_path)
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert offences("nbsr_core") == ["graph/up.py:2: graph imports nbsr_core.domains.iris"]
