"""What source code means, as a fingerprint: equal for code that does the same, whatever it looks like, wherever it is.

A module is cut into its top-level definitions. That is the largest piece that can be moved to another file as it is,
and the smallest one that has a name of its own: inside it the order of statements counts, between definitions it does
not. The fingerprint of some modules is a hash of the set of their definitions. So nothing changes when a module is
renamed, moved or split in two, when definitions change places, or when only docstrings, comments, formatting or what a
class says to readers alone differ; anything else does change it: a constant, a default, a type annotation, an import of
another package.

Imports among the modules themselves say where a definition is, and are left out. Instead a definition counts together
with those that its names stand for: `f` imported from elsewhere is another `f`, and two constants of one name that
change places are seen.

Nothing is imported for it. A module that Python cannot read counts with its bytes. Of C sources comments and spaces do
not count, and of TOML files only the values do.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Names by which a package shows what it has: they say where definitions are, not what these do.
SHOWING = {"__all__", "__getattr__"}
# What a class says to readers of a page alone: no model learns from it, and no figure depends on it.
FOR_READERS = {"unusable"}
# Fields of a syntax tree without a meaning of their own: a name is written or read by where it stands, `u""` is `""`.
SILENT = {"ctx", "kind", "type_comment", "type_ignores"}
C_SOURCES = {".c", ".h"}
C_COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*.*?\*/|//[^\n]*""", re.DOTALL)
C_TOKEN = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\w+|[^\s\w]""")


class Code:
    """Some modules, read once, for fingerprints of any of them.

    Args:
        files: source files by the dotted names under which they are imported; names of other files (C, TOML) are free.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._own = own = {name.partition(".")[0] for name in files}
        self._modules: dict[str, _Module] = {}
        self._others: dict[str, str] = {}
        with _no_collection():
            for name, file in files.items():
                try:
                    module = _Module.read(file, name, own) if file.suffix == ".py" else None
                except (SyntaxError, ValueError, RecursionError):
                    module = None
                if module is None:
                    self._others[name] = _hash(_plain_meaning(file))
                else:
                    self._modules[name] = module

    def fingerprint(self, names: Collection[str] | None = None, beside: Collection[str] = ()) -> str:
        """12 hex digits.

        Args:
            names: of the modules that count; all by default.
            beside: further ones that are looked at only where a definition that counts uses one of theirs.
        """
        counted = self._modules.keys() | self._others.keys() if names is None else set(names)
        seen = counted.union(beside)
        parts = {self._others[name] for name in counted & self._others.keys()}
        for name in counted & self._modules.keys():
            module = self._modules[name]
            parts |= {f"import {target}" for target in module.needed}
            parts |= {self._with_links(module, definition, seen) for definition in module.definitions}
        return _hash("\n".join(sorted(parts)))[:12]

    def _with_links(self, module: _Module, definition: _Definition, seen: Collection[str]) -> str:
        """A definition together with what its names stand for."""
        links = set()
        for name in definition.uses:
            first, *rest = name.split(".")
            imported = definition.imports.get(first) or module.imports.get(first)
            if imported is None:
                target = module.named[first].digest if first in module.named else None
            else:
                target = self._target(*imported, rest, seen, frozenset())
            if target is not None:
                links.add(f"{name} {target}")
        return _hash("\n".join([definition.digest, *sorted(links)]))

    def _target(
        self, module: str, name: str | None, rest: list[str], seen: Collection[str], been: frozenset[str]
    ) -> str | None:
        """The hash of the definition behind an import, or the name of what another package has; None if not known."""
        place = f"{module}.{name}" if name else module
        if module.partition(".")[0] not in self._own:
            return None if rest else place
        if place in been:
            return None
        if name is None or place in self._modules:
            return self._target(place, rest[0], rest[1:], seen, been | {place}) if rest else None
        if module not in self._modules:
            return None
        found = self._modules[module]
        if name in found.named:
            return found.named[name].digest if module in seen else None
        onwards = found.imports.get(name)
        return None if onwards is None else self._target(*onwards, rest, seen, been | {place})


def fingerprint(files: Mapping[str, Path]) -> str:
    """12 hex digits that stand for what some modules mean, by their dotted names."""
    return Code(files).fingerprint()


@dataclass(frozen=True, eq=False)
class _Definition:
    """A top-level definition: its hash, the names that it reads, and what it imports itself from the other modules."""

    digest: str
    uses: frozenset[str]
    imports: Mapping[str, tuple[str, str | None]]


@dataclass
class _Module:
    """A module as far as its meaning goes.

    Attributes:
        definitions: all of them, and all else that runs when it is imported.
        named: definitions by the names that they bind.
        imports: what names stand for that come from elsewhere: module, and name in it (None is the module itself).
        needed: what is imported from other packages when the module is.
    """

    definitions: list[_Definition] = field(default_factory=list)
    named: dict[str, _Definition] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)

    @staticmethod
    def read(file: Path, name: str, own: Collection[str]) -> _Module:
        tree = ast.parse(file.read_bytes())
        module, package = _Module(), name if file.name == "__init__.py" else name.rpartition(".")[0]
        groups: list[tuple[set[str], list[ast.stmt]]] = []
        apart: list[ast.stmt] = []  # binds no name: runs for what it does
        for statement in tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for bound, target in _imported(statement, package):
                    module.imports[bound] = target
                    if target[0].partition(".")[0] not in own:
                        module.needed.add(":".join(filter(None, target)))
            elif _is_for_types(statement):
                assert isinstance(statement, ast.If)
                for inner in statement.body:
                    if isinstance(inner, ast.Import | ast.ImportFrom):
                        module.imports |= dict(_imported(inner, package))
            elif names := _bound(statement):
                if not names <= SHOWING:
                    # Statements that bind the same name are one definition: overloads, a value that is changed later.
                    shared = [group for group in groups if group[0] & names]
                    groups = [group for group in groups if not group[0] & names]
                    merged = [one for group in shared for one in group[1]]
                    groups.append((names.union(*(group[0] for group in shared)), [*merged, statement]))
            elif not (_is_text(statement) or isinstance(statement, ast.Pass)):
                apart.append(statement)
        own_module = re.compile(rf"(?:{'|'.join(map(re.escape, own))})(?:\.\w+)+(:\w+)?")
        if apart:
            groups.append((set(), apart))
        for names, statements in groups:
            definition = _Writer(own, package, own_module).definition(statements)
            module.definitions.append(definition)
            module.named |= dict.fromkeys(names, definition)
        return module


class _Writer:
    """Writes a syntax tree as text: equal texts, equal meaning. Unlike `ast.dump` the same for all Python versions."""

    def __init__(self, own: Collection[str], package: str, own_module: re.Pattern[str]) -> None:
        self.own, self.package, self.own_module = own, package, own_module
        self.text: list[str] = []
        self.read: set[str] = set()
        self.bound: set[str] = set()
        self.imports: dict[str, tuple[str, str | None]] = {}

    def definition(self, statements: list[ast.stmt]) -> _Definition:
        self.write(statements)
        # A name that is bound within is a local one, wherever else it stands for something.
        uses = frozenset(
            name for name in self.read if (first := name.partition(".")[0]) not in self.bound or first in self.imports
        )
        return _Definition(_hash(" ".join(self.text)), uses, self.imports)

    def write(self, value: Any) -> None:
        kind = type(value)
        if kind is ast.Name:
            (self.read if type(value.ctx) is ast.Load else self.bound).add(value.id)
            self.text.append(f"Name {value.id};")
        elif kind is list:
            self.text.append("[")
            for item in value:
                if not (isinstance(item, ast.stmt) and self._is_left_out(item)):
                    self.write(item)
            self.text.append("]")
        elif isinstance(value, ast.AST):
            self._write_node(value)
        elif kind is str and (named := self.own_module.fullmatch(value)):
            # The name of one of the modules, as in a table of what is where, counts by what is named in it.
            self.text.append(named[1] or "")
        else:
            self.text.append(repr(value))

    def _write_node(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute):
            if (name := _dotted(node)) is not None:
                self.read.add(name)
        elif isinstance(node, ast.arg):
            self.bound.add(node.arg)
        self.text.append(type(node).__name__)
        for field_name in node._fields:
            part = getattr(node, field_name, None)
            if isinstance(node, ast.ClassDef) and field_name == "body":
                part = [item for item in node.body if not _is_for_readers(item)]
            if part is not None and part != [] and field_name not in SILENT:
                self.text.append(field_name)
                self.write(part)
        self.text.append(";")

    def _is_left_out(self, item: ast.stmt) -> bool:
        """Whether a statement has no effect, or imports from one of the modules."""
        if isinstance(item, ast.Import | ast.ImportFrom):
            targets = dict(_imported(item, self.package))
            if all(target[0].partition(".")[0] in self.own for target in targets.values()):
                self.imports |= targets
                return True
        return isinstance(item, ast.Pass) or _is_text(item)


def _imported(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """What an import binds, and to which name of which module."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield (alias.asname, (alias.name, None)) if alias.asname else _top(alias.name)
        return
    above = package.split(".")[: len(package.split(".")) - (statement.level - 1)] if statement.level else []
    module = ".".join(filter(None, [*above, statement.module]))
    for alias in statement.names:
        yield alias.asname or alias.name, (module, alias.name)


def _top(name: str) -> tuple[str, tuple[str, str | None]]:
    """`import a.b` binds `a`."""
    top = name.partition(".")[0]
    return top, (top, None)


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    places: Sequence[ast.AST] = [statement]
    if isinstance(statement, ast.Assign | ast.Delete):
        places = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        places = [statement.target]
    elif isinstance(statement, ast.Expr):
        places = []
    nodes = (node for place in places for node in ast.walk(place))
    return {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}


def _is_text(statement: Any) -> bool:
    """A docstring, of whatever."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_for_readers(statement: ast.stmt) -> bool:
    """An attribute of a class that only pages show."""
    return isinstance(statement, ast.Assign | ast.AnnAssign) and _bound(statement) <= FOR_READERS


def _is_for_types(statement: ast.stmt) -> bool:
    """`if TYPE_CHECKING:`, which never runs."""
    return isinstance(statement, ast.If) and not statement.orelse and _dotted(statement.test) in _FOR_TYPES


_FOR_TYPES = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _dotted(node: ast.AST) -> str | None:
    """`a.b.c` as it is written; None where it begins with something else than a name."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else None


def _plain_meaning(file: Path) -> bytes:
    """What counts of a file that is not Python, or that Python cannot read."""
    content = file.read_bytes()
    try:
        if file.suffix in C_SOURCES:
            return _c_meaning(content.decode()).encode()
        if file.suffix == ".toml":
            return json.dumps(tomllib.loads(content.decode()), sort_keys=True, default=str).encode()
    except ValueError:
        pass
    return content


def _c_meaning(text: str) -> str:
    """C without comments and spaces; lines count for the preprocessor alone, and the places of own headers do not."""
    text = C_COMMENT.sub(lambda match: match[1] or " ", text).replace("\\\n", " ")
    written: list[str] = []
    for line in text.splitlines():
        tokens = C_TOKEN.findall(line)
        if not tokens or (tokens[:2] == ["#", "include"] and '"' in line):
            continue
        written += ["\n", *tokens, "\n"] if tokens[0] == "#" else tokens
    return " ".join(written)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Syntax trees are many small objects that all live until the end: looking for garbage among them takes longest."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()
