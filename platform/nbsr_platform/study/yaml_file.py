"""Reading a study file: YAML without its traps, with the line of every key, and `key=value` overrides on top.

Scalars are read as YAML 1.2 does: `1e-3` is a number, `no` and `2020-01-01` are text. Files may come from anywhere, so
nothing in them is executed (tags), expanded without limit (aliases) or nested without limit.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from nbsr_core.files import opened
from nbsr_platform.study.problems import NOTHING, KeyPath, Problem, Problems, StudyError, did_you_mean, show, spell

LARGEST_FILE = 1 << 20
MOST_VALUES = 20_000
DEEPEST = 40
LONGEST_INT = 1000  # bits

TOO_MANY = f"more than {MOST_VALUES} values, with aliases written out"
TAG = "tag:yaml.org,2002:"
MERGE_KEY = "<<"
# A NUL, which databases refuse, and halves of characters, which no file can hold; YAML has escapes for both.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Composes nodes only; what they mean is decided here, by YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    depth = 0
    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        self.nodes += 1
        if self.depth > DEEPEST or self.nodes > 2 * MOST_VALUES:  # keys are nodes too
            what = f"nested deeper than {DEEPEST} levels" if self.depth > DEEPEST else TOO_MANY
            raise yaml.MarkedYAMLError(problem=what, problem_mark=self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+(_[0-9]+)*|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(TAG + _tag, re.compile(rf"^(?:{_pattern})$"), _first)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes text that YAML 1.1 or 1.2 would read as something else."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: yaml.SafeDumper.yaml_implicit_resolvers.get(first, []) + _Loader.yaml_implicit_resolvers.get(first, [])
        for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
    }


def _represent_text(dumper: _Dumper, text: str) -> Any:
    # Line breaks that only YAML knows survive in double quotes alone.
    style = '"' if re.search("[\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar(TAG + "str", text, style)


_Dumper.add_representer(str, _represent_text)


def dump(values: Mapping[str, Any]) -> str:
    """Plain values as YAML that `parse` gives back."""
    text: str = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


@dataclass
class Document:
    """A file as plain values, and the collector of what is wrong with it."""

    value: Any
    problems: Problems

    def override(self, override: Override) -> None:
        """Take over one `key=value` of the command line; missing mappings are made."""
        if override.problems:
            self.problems.found += override.problems
            return
        path = locate(self.value, override.key)
        new = [path[:end] for end in range(1, len(path)) if not holds(self.value, path[:end])]
        obstacle = assign(self.value, path, copy.deepcopy(override.value))
        if obstacle:
            self.problems.found.append(Problem(override.place, spell(path), obstacle))
            return
        for known in [known for known in self.problems.lines if known[: len(path)] == path]:
            del self.problems.lines[known]
        self.problems.overrides |= dict.fromkeys([*new, path], override.place)


class Override:
    """A `key=value` of the command line: a dotted key and a value in YAML."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, f"--set {text}"
        key, equals, raw = text.partition("=")
        # Problems spell list items as experts[1]; both spellings are understood.
        self.key = re.sub(r"\[(\d+)\]", r".\1", key.strip())
        parsed = parse(raw, self.place)
        self.value = parsed.value
        self.problems = [replace(problem, line=None) for problem in parsed.problems.found]
        if not equals or not all(self.key.split(".")):
            self.problems = [Problem(self.place, what="expected key=value, such as training.epochs=5")]


def read(path: str | Path) -> Document:
    """A file from disk; raises at once where there is nothing that could be checked further."""
    document = parse(text_of(Path(path), str(path)), str(path))
    document.problems.folder = Path(path).absolute().parent
    if document.value is None and not document.problems.found:
        document.problems.found.append(
            Problem(str(path), what="is empty", hint="a study needs name, domain and models")
        )
    return document


def text_of(path: Path, source: str) -> str:
    """The text of a file that may be a study; `source` is what messages call it."""
    try:
        str(path).encode()
        with opened(path) as file:
            content = file.read(LARGEST_FILE + 1)
    except UnicodeEncodeError:  # no report or database could name it
        raise StudyError([Problem(source, what="its path is not UTF-8", hint="rename it")]) from None
    except FileNotFoundError:
        raise StudyError([Problem(source, what="no such file", hint=_nearest_file(path))]) from None
    except IsADirectoryError:
        raise StudyError([Problem(source, what="is a folder", hint="name a study file in it")]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StudyError([Problem(source, what=f"cannot be read: {reason}")]) from None
    if len(content) > LARGEST_FILE:
        raise StudyError([Problem(source, what="is larger than 1 MiB: this is no study file")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"is not a text file in UTF-8 (byte {error.start})"
        raise StudyError([Problem(source, what=what)]) from None


def parse(text: str, source: str) -> Document:
    """YAML text as plain values; a value of None with problems where it is no YAML at all."""
    problems = Problems(source)
    try:
        node = yaml.compose(text, Loader=_Loader)
        value = None if node is None else _Builder(problems).build(node, (), 0)
    except yaml.YAMLError as error:
        problems.found.append(_syntax_problem(error, source))
        value = None
    return Document(value, problems)


class _Builder:
    """Turns composed nodes into plain values, one value of the budget at a time."""

    def __init__(self, problems: Problems) -> None:
        self.problems, self.left = problems, MOST_VALUES

    def build(self, node: Any, path: KeyPath, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > DEEPEST:
            what = TOO_MANY if self.left < 0 else "an alias that contains itself"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark)
        self.problems.lines.setdefault(path, node.start_mark.line + 1)
        kind = node.tag.removeprefix(TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self.mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self.build(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and kind in {"null", "bool", "int", "float", "str"}:
            return self.scalar(node, kind, path)
        tag = node.tag.replace(TAG, "!!")
        return self.refuse(path, f"the YAML tag {show(tag)} is not allowed; write plain values")

    def refuse(self, path: KeyPath, what: str, given: Any = NOTHING) -> None:
        self.problems.add(path, what, given=given)
        self.problems.unreadable.add(path)

    def mapping(self, node: Any, path: KeyPath, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        merges = [pair for pair in node.value if _is_merge(pair[0])]
        for _, value_node in merges:
            several = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            for base in several:
                values = self.build(base, path, depth + 1)
                if isinstance(values, dict):
                    inherited = {**values, **inherited}
                else:
                    self.problems.add((*path, MERGE_KEY), given=values, allowed="a mapping to take keys from")
        for key_node, value_node in (pair for pair in node.value if pair not in merges):
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add(path, f"a key must be plain text, in line {line} it is a list or mapping")
                continue
            name = str(key_node.value)
            here = (*path, name)
            first = self.problems.lines.get(here)
            self.problems.lines[here] = line
            if name in own:
                self.problems.add(here, f"the key stands twice, first in line {first}")
            if UNSTORABLE.search(name):
                self.problems.add(path, f"a key has a character that cannot be stored, in line {line}: {name!r}")
                continue
            own[name] = self.build(value_node, here, depth + 1)
        return {**inherited, **own}

    def scalar(self, node: Any, kind: str, path: KeyPath) -> Any:
        text = node.value
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                number = int(text, 0) if text[:2] in {"0x", "0o"} else int(text)
                if number.bit_length() > LONGEST_INT:
                    raise ValueError
                return number
            if kind == "float":
                return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
        except (ValueError, KeyError):
            return self.refuse(path, f"cannot be read as {kind}", text)
        if UNSTORABLE.search(text):
            return self.refuse(path, "has a character that cannot be stored", text)
        return text


def _is_merge(key_node: Any) -> bool:
    return isinstance(key_node, yaml.ScalarNode) and key_node.value == MERGE_KEY and not key_node.style


def _syntax_problem(error: yaml.YAMLError, source: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return Problem(source, what=f"YAML error: {getattr(error, 'reason', error)}")
    what = f"YAML error at column {mark.column + 1}: {getattr(error, 'problem', None) or error}"
    hint = "indent with spaces, not tabs" if "'\\t'" in what else ""
    return Problem(source, what=what, hint=hint, line=mark.line + 1)


def _nearest_file(path: Path) -> str:
    folder = path.parent
    beside = [str(other) for other in folder.glob("*.y*ml")] if folder.is_dir() else []
    return did_you_mean(path, beside) or (f"in {folder}: {', '.join(sorted(beside))}" if 0 < len(beside) < 6 else "")


def locate(tree: Any, dotted: str) -> KeyPath:
    """A dotted key as a path into plain values; keys that contain dots themselves (a search space's) are found too."""
    parts, path = dotted.split("."), list[str | int]()
    while parts:
        key: str | int = parts[0]
        taken = 1
        if isinstance(tree, Mapping):
            known = [end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in tree]
            taken = known[0] if known else len(parts) if path == ["search", "space"] else 1
            key = ".".join(parts[:taken])
            tree = tree.get(key)
        elif isinstance(tree, list) and parts[0].isdecimal():
            key = int(parts[0])
            tree = tree[key] if key < len(tree) else None
        else:
            tree = None
        path.append(key)
        parts = parts[taken:]
    return tuple(path)


def holds(tree: Any, path: KeyPath) -> bool:
    """Whether there is such a key."""
    for key in path:
        inside = key < len(tree) if isinstance(tree, list) and isinstance(key, int) else False
        if not (inside or (isinstance(tree, Mapping) and key in tree)):
            return False
        tree = tree[key]
    return True


def assign(tree: Any, path: KeyPath, value: Any) -> str:
    """Set what a path leads to; what stands in the way is returned as text."""
    for depth, key in enumerate(path):
        if isinstance(tree, list):
            if not holds(tree, (key,)):
                return f"{spell(path[:depth])} is a list of {len(tree)}, counted from 0"
        elif not isinstance(tree, dict):
            return f"{spell(path[:depth]) or 'the file'} is {show(tree)}, no mapping that could hold a key"
        if depth == len(path) - 1:
            tree[key] = value
        elif not holds(tree, (key,)) or tree[key] is None:
            tree[key] = {}
        tree = tree[key]
    return ""


def forget(tree: Any, path: KeyPath) -> None:
    """Remove what a path leads to, if there is such a key."""
    if holds(tree, path):
        *above, last = path
        for key in above:
            tree = tree[key]
        del tree[last]
