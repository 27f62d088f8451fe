"""What is wrong with a study file: all of it at once, each with its place, what was given and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbsr_core.errors import InputError

# Where a value stands in a file: keys of mappings and places in lists, from the top.
KeyPath = tuple[str | int, ...]

NOTHING: Any = object()
LONGEST_VALUE = 60


def spell(path: KeyPath) -> str:
    """A path as people write it: `models.nbsr.experts[1].activation`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if part.isprintable() else repr(part))
    return text


def show(value: Any) -> str:
    """A value as it looks in YAML, short enough for one line."""
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def nearest(given: Any, candidates: Iterable[str]) -> str | None:
    """The candidate that is spelt most alike, if any is."""
    names = {name.lower(): name for name in candidates}
    close = difflib.get_close_matches(str(given).lower(), names, n=1)
    return names[close[0]] if close else None


def did_you_mean(given: Any, candidates: Iterable[str]) -> str:
    """The nearest spelling as a hint, or nothing."""
    name = nearest(given, candidates)
    return f"did you mean {name!r}?" if name is not None else ""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        file: the file, or the `--set` override, that says so.
        key: path of the key, such as `models.nbsr.graph.dept`; empty where the file as a whole is meant.
        what: what is wrong; empty where `allowed` says it all ("expected ...").
        given: the value found there, as text.
        allowed: what would be right.
        hint: the nearest spelling, or another way out.
        line: of the file, from 1, where known.
    """

    file: str
    key: str = ""
    what: str = ""
    given: str = ""
    allowed: str = ""
    hint: str = ""
    line: int | None = None

    @property
    def message(self) -> str:
        """The problem without its place."""
        text = self.what or f"expected {self.allowed}"
        if self.given:
            text += f", got {self.given}"
        if self.hint:
            text += f"; {self.hint}"
        if self.what and self.allowed:
            text += f"{'' if self.hint.endswith('?') else ';'} allowed: {self.allowed}"
        return text

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.message) if part)


class StudyError(InputError):
    """A study that cannot be run as it is written; `problems` holds all that was found, the text one a line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


@dataclass
class Problems:
    """Collects problems while a file is read, so that none hides another.

    Attributes:
        file: name of the file in messages.
        lines: where each key stands in it.
        overrides: keys that came from the command line, with what was written there.
        unreadable: keys without a usable value, of which enough has been said.
        folder: what relative paths in it are relative to; None leaves them as they are.
    """

    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overrides: dict[KeyPath, str] = field(default_factory=dict)
    unreadable: set[KeyPath] = field(default_factory=set)
    found: list[Problem] = field(default_factory=list)
    folder: Path | None = None

    def folder_of(self, path: KeyPath) -> Path | None:
        """What a relative path under this key is relative to: where the file stands, or where a command was typed."""
        typed = any(path[:end] in self.overrides for end in range(len(path) + 1))
        return Path.cwd() if typed else self.folder

    def add(
        self,
        path: KeyPath,
        what: str = "",
        *,
        given: Any = NOTHING,
        allowed: str = "",
        hint: str = "",
    ) -> None:
        if path in self.unreadable:
            return
        file, line = self.place(path)
        shown = "" if given is NOTHING else show(given)
        self.found.append(Problem(file, spell(path), what, shown, allowed, hint, line))

    def unknown_key(self, path: KeyPath, allowed: Iterable[str]) -> None:
        names = list(allowed)
        self.add(path, "unknown key", hint=did_you_mean(path[-1], names), allowed=", ".join(names) or "none")

    def expect_mapping(self, value: Any, path: KeyPath, allowed: Iterable[str] | None = None) -> dict[str, Any] | None:
        """The value if it is a mapping (nothing at all is an empty one) with no key but the allowed ones reported."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            names = "" if allowed is None else f" (keys: {', '.join(allowed)})"
            self.add(path, given=value, allowed=f"a mapping{names}")
            return None
        for key in value:
            if allowed is not None and key not in allowed:
                self.unknown_key((*path, str(key)), allowed)
        return {str(key): item for key, item in value.items()}

    def place(self, path: KeyPath) -> tuple[str, int | None]:
        """File and line of a key, or of what it stands in."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.overrides:
                return self.overrides[path[:end]], None
            if path[:end] in self.lines:
                return self.file, self.lines[path[:end]]
        return self.file, None

    def scratch(self) -> Problems:
        """An empty one for the same file, for trying whether something would be a problem."""
        return Problems(self.file, self.lines, self.overrides, folder=self.folder)

    def stop_if_any(self) -> None:
        """Raise what was found, file by file in the order of its lines."""
        if self.found:
            files = list(dict.fromkeys(problem.file for problem in self.found))
            raise StudyError(sorted(self.found, key=lambda problem: (files.index(problem.file), problem.line or 0)))
