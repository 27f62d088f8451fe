"""Names of a package that are imported when they are first used: whoever needs one does not wait for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562).

    Args:
        package: its name.
        modules: by public name, the module that has it, below the package or by its full name; a module of that very
            name is meant itself.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        place = modules[name]
        module = import_module(place if place.startswith("nbsr_core.") else f"{package}.{place}")
        found = module if place.rpartition(".")[2] == name else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    return find
