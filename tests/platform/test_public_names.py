"""Every room of the platform exports its names, and importing a room waits for none of the heavy libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import nbsr_platform
import pytest

HEAVY = ("torch", "ray", "mlflow", "optuna", "numpy", "pandas")
WITHOUT_NAMES = {"base", "cli"}  # a room of tools, each a module of its own; a command, which nobody imports from
ROOMS = sorted(path.parent.name for path in Path(str(nbsr_platform.__file__)).parent.glob("*/__init__.py"))


def test_importing_the_rooms_imports_nothing_heavy() -> None:
    code = (
        "import importlib, json, sys\n"
        f"for room in {ROOMS}: importlib.import_module(f'nbsr_platform.{{room}}')\n"
        f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in WITHOUT_NAMES])
def test_the_names_of_a_room_are_there_and_its_own(room: str) -> None:
    module = import_module(f"nbsr_platform.{room}")
    assert module.__all__, f"{room} exports nothing"
    for name in module.__all__:
        found = getattr(module, name)
        owner = getattr(found, "__module__", f"nbsr_platform.{room}")  # a constant does not say
        assert owner.startswith(f"nbsr_platform.{room}"), f"{room}.{name} is {owner}'s"
        assert not isinstance(found, type(sys)), f"{room}.{name} is a module: one of its own name stands for it"
