"""Which files of a project a module needs: its own, and those of the modules that it imports, however deep.

Read from the source rather than from what is loaded: an import inside a function counts too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def needed_files(module: str, places: Sequence[Path]) -> list[Path]:
    """Files below `places` that `import module` can read, in the order in which they are met.

    Args:
        module: dotted name.
        places: folders in which modules are looked for; the first that has one counts, as on `sys.path`.
    """
    found: dict[Path, None] = {}
    todo, seen = [module], {module}
    while todo:
        name = todo.pop()
        for owner, path in _located(name, places):
            if path in found:
                continue
            found[path] = None
            package = owner if path.name == "__init__.py" else owner.rpartition(".")[0]
            news = [other for other in _imports(path, package) if other not in seen]
            seen.update(news)
            todo += news
    return list(found)


def _located(name: str, places: Sequence[Path]) -> list[tuple[str, Path]]:
    """The file of a module and those of the packages around it, each with its dotted name; none if it is not here."""
    *packages, last = name.split(".")
    if (packages or [last])[0] in sys.stdlib_module_names:
        return []  # the standard library goes first
    for place in places:
        here, files = place, []
        for depth, part in enumerate(packages, start=1):
            here = here / part
            if (here / "__init__.py").is_file():
                files.append((".".join(packages[:depth]), here / "__init__.py"))
        own = [here / last / "__init__.py", *(here / f"{last}{suffix}" for suffix in (".py", *EXTENSION_SUFFIXES))]
        ending = next((path for path in own if path.is_file()), None)
        if ending is not None:
            return [*files, (name, ending)]
    return []


def _imports(path: Path, package: str) -> Iterator[str]:
    """Dotted names that a file may import; `package` is what its relative imports start from."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*around, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
