"""Options are plain dataclasses; here plain values from a file become such dataclasses, and back.

A converter of our own rather than a general one, because of what it says when something is wrong: it speaks of whole
numbers and keys, not of types; it reports everything at once; and where a dataclass itself rejects a value, it finds
out which key is to blame.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from nbsr_core.files import NAMES_A_PATH
from nbsr_platform.study.problems import NOTHING, KeyPath, Problems, did_you_mean

# What a conversion returns when it failed; the reason is among the problems then.
FAILED: Any = object()

T = TypeVar("T")

LARGEST_EXACT = 2**53  # a float beyond stands for several whole numbers
SINGULAR = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
PLURAL = {bool: "true or false", int: "whole numbers", float: "numbers", str: "texts", Path: "paths"}


@dataclass(frozen=True)
class Check:
    """A condition on an annotated value, with the words for what is allowed."""

    words: str
    holds: Callable[[Any], bool]


AtLeastOne = Annotated[int, Check("a whole number >= 1", lambda value: value >= 1)]
NotNegative = Annotated[int, Check("a whole number >= 0", lambda value: value >= 0)]


def from_plain(options: type[T], plain: Mapping[str, Any], source: str = "<options>") -> T:
    """A dataclass from plain values; raises a `StudyError` that names every key that is wrong."""
    problems = Problems(source)
    converted = convert(options, plain, (), problems)
    problems.stop_if_any()
    built: T = converted
    return built


def to_plain(value: Any) -> Any:
    """Dataclasses as mappings, tuples as lists, paths as text: what YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


@cache
def option_types(options: type) -> dict[str, Any]:
    """The fields of a dataclass that can be given, with their types."""
    hints = get_type_hints(options, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(options) if field.init}


@cache
def describe(kind: Any) -> str:
    """What is expected, in people's words."""
    for check in _checks(kind):
        return check.words
    kind = _bare(kind)
    arguments = get_args(kind)
    if kind in SINGULAR:
        return SINGULAR[kind]
    if kind is None or kind is type(None):
        return "null"
    if dataclasses.is_dataclass(kind):
        return f"a mapping (keys: {', '.join(option_types(kind)) or 'none'})"  # type: ignore[arg-type]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if _is_union(kind):
        return " or ".join(describe(member) for member in arguments)
    if _is_sequence(kind):
        items = [argument for argument in arguments if argument is not Ellipsis]
        if len(items) > 1:
            return f"a list of {len(items)}: {', '.join(map(describe, items))}"
        plural = [name for item in items if (name := _plural(_bare(item)))]
        return f"a list of {plural[0]}" if plural else "a list"
    return "a mapping" if _is_mapping(kind) else "a value"


def _plural(kind: Any) -> str | None:
    return "mappings" if dataclasses.is_dataclass(kind) else PLURAL.get(kind)


def convert(kind: Any, value: Any, path: KeyPath, problems: Problems, base: Any = NOTHING) -> Any:
    """A plain value as the given type, or FAILED after saying why not; keys that are not given come from `base`."""
    checks, words, kind = _checks(kind), describe(kind), _bare(kind)
    if dataclasses.is_dataclass(kind):
        return _convert_dataclass(kind, value, path, problems, base)  # type: ignore[arg-type]
    if _is_union(kind):
        return _convert_union(get_args(kind), value, path, problems, base)
    if not _shape_fits(kind, value):
        problems.add(path, given=value, allowed=words, hint=_hint(kind, value))
        return FAILED
    if _is_sequence(kind):
        converted = _convert_sequence(kind, value, path, problems, words)
    elif _is_mapping(kind):
        converted = _convert_mapping(kind, value, path, problems)
    else:
        converted = _convert_scalar(kind, value)
    if converted is not FAILED and not all(check.holds(converted) for check in checks):
        problems.add(path, given=value, allowed=words)
        return FAILED
    return converted


def _convert_scalar(kind: Any, value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    if get_origin(kind) is Literal:
        return next((name for name in get_args(kind) if name == value and type(name) is type(value)), FAILED)
    if kind is float and is_number:
        return float(value) if isinstance(value, float) or abs(value) < 10**300 else FAILED
    if kind is int and is_number and (isinstance(value, int) or (value.is_integer() and abs(value) <= LARGEST_EXACT)):
        return int(value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is bool or kind is str:
        return value if isinstance(value, kind) else FAILED
    return value if kind in {Any, object} or (value is None and kind in {None, type(None)}) else FAILED


def _hint(kind: Any, value: Any) -> str:
    if get_origin(kind) is Literal and isinstance(value, str):
        return did_you_mean(value, map(str, get_args(kind)))
    if kind in {int, float} and isinstance(value, str):
        if re.fullmatch(r"[-+]?inf(inity)?", value.lower()):
            return "infinity is written .inf"
        return "drop the quotes" if re.fullmatch(r"\s*[-+]?\.?\d[\d.]*(e[-+]?\d+)?\s*", value.lower()) else ""
    if kind is str and isinstance(value, bool | int | float):
        return "put it in quotes"
    return "YAML's words are true and false" if kind is bool and value in ("yes", "no", "on", "off") else ""


def _convert_sequence(kind: Any, value: Any, path: KeyPath, problems: Problems, words: str) -> Any:
    arguments = get_args(kind) or (Any, Ellipsis)
    fixed = get_origin(kind) is tuple and arguments[-1] is not Ellipsis
    if fixed and len(value) != len(arguments):
        problems.add(path, given=value, allowed=words)
        return FAILED
    types_of_items = arguments if fixed else [arguments[0]] * len(value)
    pairs = enumerate(zip(types_of_items, value, strict=True))
    items = [convert(item_type, item, (*path, index), problems) for index, (item_type, item) in pairs]
    if any(item is FAILED for item in items):
        return FAILED
    return items if get_origin(kind) is list else tuple(items)


def _convert_mapping(kind: Any, value: Any, path: KeyPath, problems: Problems) -> Any:
    key_type, item_type = get_args(kind) or (str, Any)
    pairs = [
        (convert(key_type, key, (*path, str(key)), problems), convert(item_type, item, (*path, str(key)), problems))
        for key, item in value.items()
    ]
    return FAILED if any(FAILED in pair for pair in pairs) else dict(pairs)


def _convert_union(members: Sequence[Any], value: Any, path: KeyPath, problems: Problems, base: Any) -> Any:
    """The member whose shape fits says what is wrong; several that fit are tried in turn."""
    likely = [member for member in members if _shape_fits(member, value)]
    if len(likely) == 1:
        return convert(likely[0], value, path, problems, base)
    for member in likely:
        converted = convert(member, value, path, problems.scratch(), base)
        if converted is not FAILED:
            return converted
    hint = next((hint for member in members if (hint := _hint(_bare(member), value))), "")
    problems.add(path, given=value, allowed=" or ".join(map(describe, members)), hint=hint)
    return FAILED


def _shape_fits(kind: Any, value: Any) -> bool:
    kind = _bare(kind)
    if dataclasses.is_dataclass(kind) or _is_mapping(kind):
        return isinstance(value, Mapping)
    if _is_sequence(kind):
        return isinstance(value, list | tuple)
    return _convert_scalar(kind, value) is not FAILED


def _convert_dataclass(options: type, value: Any, path: KeyPath, problems: Problems, base: Any) -> Any:
    known = option_types(options)
    mapping = problems.expect_mapping(value, path, known)
    if mapping is None:
        return FAILED
    complete = set(mapping) <= set(known)
    start: Any = base if isinstance(base, options) else None
    given: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        name = field.name
        inherited = _default(field) if start is None else getattr(start, name)
        if name in mapping and name in known:
            converted = convert(known[name], mapping[name], (*path, name), problems, inherited)
            if converted is FAILED:
                complete = False
            else:
                given[name] = _placed(field, converted, problems.folder_of((*path, name)))
        elif inherited is NOTHING and field.init:
            problems.add((*path, name), f"is missing: expected {describe(known[name])}")
            complete = False
        elif field.init and (placed := _placed(field, inherited, problems.folder)) != inherited:
            given[name] = placed  # a default is relative to the study file like any other path

    def make(values: dict[str, Any]) -> Any:
        return options(**values) if start is None else dataclasses.replace(start, **values)

    if complete:
        return _build(make, given, path, problems)
    _complain_of_each(make, given, path, problems)
    return FAILED


def _placed(field: dataclasses.Field[Any], value: Any, folder: Path | None) -> Any:
    """A value that is a path, or several, as an absolute one; whatever else it is, as it is."""
    if folder is None:
        return value
    if isinstance(value, tuple):
        return tuple(_placed(field, item, folder) for item in value)
    is_text = isinstance(value, str) and value not in ("", *field.metadata.get(NAMES_A_PATH, (value,)))
    if not (is_text or isinstance(value, Path)) or str(value).startswith("~"):
        return value
    return type(value)(os.path.normpath(folder / value))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return NOTHING if field.default is dataclasses.MISSING else field.default


def _build(make: Callable[[dict[str, Any]], Any], given: dict[str, Any], path: KeyPath, problems: Problems) -> Any:
    """Make the dataclass; where it refuses, blame the keys that it refuses for the same reason when they are alone."""
    remaining, failed = dict(given), False
    while True:
        try:
            built = make(remaining)
        except (ValueError, TypeError) as error:
            failed = True
            reason = str(error)
        else:
            return FAILED if failed else built
        guilty = next((key for key in remaining if _complaint(make, {key: remaining[key]}) == reason), None)
        if guilty is None:
            problems.add(path, reason)
            return FAILED
        problems.add((*path, guilty), _without_name(reason, guilty))
        del remaining[guilty]


def _complain_of_each(
    make: Callable[[dict[str, Any]], Any], given: dict[str, Any], path: KeyPath, problems: Problems
) -> None:
    """With some keys unusable the whole cannot be judged: only what is surely wrong with another one is said."""
    for key, value in given.items():
        reason = _complaint(make, {key: value})
        if f"got {value!r}" in reason:
            problems.add((*path, key), _without_name(reason, key))


def _complaint(make: Callable[[dict[str, Any]], Any], values: dict[str, Any]) -> str:
    try:
        make(values)
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


def _without_name(reason: str, key: str) -> str:
    """The path already names the key: `training.epochs must be ...` becomes `must be ...`."""
    shorter = re.sub(rf"^(?:\w+\.)*{re.escape(key)}(?::\s*|\s+)", "", reason)
    return re.sub(r"\bNone\b", "null", shorter)


def _checks(kind: Any) -> list[Check]:
    return [extra for extra in getattr(kind, "__metadata__", ()) if isinstance(extra, Check)]


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in {Union, types.UnionType}


def _is_sequence(kind: Any) -> bool:
    return kind in {list, tuple} or get_origin(kind) in {list, tuple, Sequence}


def _is_mapping(kind: Any) -> bool:
    return kind is dict or get_origin(kind) in {dict, Mapping}
