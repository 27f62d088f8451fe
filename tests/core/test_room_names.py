"""Every room of the core says what it is for and has the names that it offers; kernels are entered by their door."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import nbsr_core

CORE = Path(nbsr_core.__file__).parent
ROOMS = sorted(path.parent.name for path in CORE.glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for_and_has_what_it_offers(room: str) -> None:
    package = importlib.import_module(f"nbsr_core.{room}")
    assert (package.__doc__ or "").splitlines()[0].endswith((".", ":"))
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_nobody_outside_the_kernels_knows_of_backends() -> None:
    """They import from `nbsr_core.kernels` itself, which does not say what computes."""
    found = []
    for folder in (CORE, CORE.parent / "platform" / "nbsr_platform"):
        for path in folder.rglob("*.py"):
            if CORE / "kernels" in path.parents:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
                inside = any(module.startswith("nbsr_core.kernels.") for module in modules)
                if inside or ("nbsr_core.kernels" in modules and "native" in names):
                    found.append(f"{path}:{node.lineno}")  # type: ignore[attr-defined]
    assert found == []
