"""Every key of a study file as Markdown, read off the option types themselves, so that no page can go stale."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import yaml
from nbsr_platform.study.options import describe, option_types, to_plain
from nbsr_platform.study.paper import Paper
from nbsr_platform.study.search_options import Pruner, Sampler, Search
from nbsr_platform.study.sections import Resources
from nbsr_platform.study.space import Space

from nbsr_core.domains.domain import SHIPPED, find_domain
from nbsr_core.learning.config import TrainingConfig
from nbsr_core.options.conditions import METADATA, Condition
from nbsr_core.options.specs import EvaluationOptions

MARK = "<!-- the reference stands here -->"
# The keys at the top of a file, with what each of them holds; a test compares them with those that files may have.
TOP = {
    "name": "name of the study: results, reports and MLflow's runs are kept under it",
    "question": "what the study asks, for lists and reports",
    "reference": "label of the model that all others are compared with; by default NBSR with every baseline",
    "domain": f"one of {', '.join(SHIPPED)}, or `package.module:ClassName`, beside the file or installed",
    "data": "options of the domain's data: see [domains](#domains)",
    "seeds": "how many (`3` stands for 0, 1, 2), or a list of them; `[0]` by default",
    "training": "how all models are trained: see [training](#training)",
    "evaluation": "how trained models are judged: see [evaluation](#evaluation)",
    "models": "models by label; each takes the options of its kind (see [domains](#domains)), `kind` (the label itself "
    "by default) and a `training` of its own for what differs from the study's",
    "paper": "published figures to show beside those of the models: see [paper](#paper)",
    "resources": "where trials run: see [resources](#resources)",
    "search": "a search over the options of one model: see [search](#search)",
    "variants": "by name, the keys that differ: several studies in one file",
    "include": "a list of study files: a collection, which has only `name`, `question` and `include`",
}
SECTIONS: dict[str, type] = {
    "training": TrainingConfig,
    "evaluation": EvaluationOptions,
    "resources": Resources,
    "search": Search,
    "search.sampler": Sampler,
    "search.pruner": Pruner,
    "paper": Paper,
}


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a mapping."""

    name: str
    kind: str
    default: str
    meaning: str
    counts: str


def keys_of(options: type) -> list[Key]:
    """The keys that a dataclass of options has in a file."""
    meanings, types = meanings_of(options), option_types(options)
    for name, kind in types.items():
        meanings.setdefault(name, " ".join(_summary(part) for part in _dataclasses_in(kind)))
    return [
        Key(item.name, _kind(types[item.name]), _default(item), meanings[item.name].rstrip("."), _condition(item))
        for item in dataclasses.fields(options)
        if item.name in types
    ]


def meanings_of(options: type) -> dict[str, str]:
    """What the docstring of a class and those of its bases say under `Attributes:`; its own words win."""
    found: dict[str, str] = {}
    for base in reversed(options.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        _, _, attributes = text.partition("Attributes:\n")
        section = re.split(r"\n\n|\n(?=\S)", attributes)[0]
        for entry in re.split(r"\n(?=    \S)", f"\n{section}"):
            if match := re.match(r"\s*(\w+): (.*)", entry, re.DOTALL):
                found[match[1]] = re.sub(r"\bNone\b", "`null`", " ".join(match[2].split()))
    return found


def parts_of(options: type) -> Iterator[type]:
    """Dataclasses of options inside others, in the order of the keys, each once."""
    seen: dict[type, None] = {}
    for kind in option_types(options).values():
        for part in _dataclasses_in(kind):
            seen |= {part: None} | dict.fromkeys(parts_of(part))
    yield from seen


def options_of_models() -> Iterator[type]:
    """All classes of options that models and data of the shipped domains have, nested ones included."""
    seen: dict[type, None] = {}
    for name in SHIPPED:
        domain = find_domain(name)
        for options in (domain.data, *(kind.options for kind in domain.models.values())):
            seen |= {options: None} | dict.fromkeys(parts_of(options))
    yield from seen


def reference() -> str:
    """The whole page, but for its head."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from ("## The file", "", "| key | meaning |", "| --- | --- |")
    yield from (f"| `{name}` | {meaning} |" for name, meaning in TOP.items())
    shared: dict[type, None] = {}
    for name, options in SECTIONS.items():
        yield from ("", f"## {name} {{ #{_anchor(options)} }}", "", *_table(options))
        shared |= {part: None for part in parts_of(options) if part not in SECTIONS.values()}
    yield from ("", "## Domains")
    for name in SHIPPED:
        domain = find_domain(name)
        yield from ("", f"### {name}", "", f"{_summary(type(domain))} `data`:", "", *_table(domain.data))
        shared |= dict.fromkeys(parts_of(domain.data))
        kinds: dict[type, list[str]] = {}
        for label, kind in domain.models.items():
            kinds.setdefault(kind.options, []).append(f"`{label}`")
        for options, labels in kinds.items():
            yield from ("", f"#### {name}: {', '.join(labels)}", "", _summary(options), "", *_table(options))
            shared |= dict.fromkeys(parts_of(options))
    yield from ("", "## Parts that several share")
    for options in sorted(shared, key=_anchor):
        yield from ("", f"### {_title(options)} {{ #{_anchor(options)} }}", "", _summary(options), "", *_table(options))


def _table(options: type) -> Iterator[str]:
    keys = keys_of(options)
    if not keys:
        yield "It has no options."
        return
    yield from ("| key | value | default | meaning |", "| --- | --- | --- | --- |")
    for key in keys:
        meaning = "; ".join(filter(None, [_cell(key.meaning), key.counts and f"*counts only if {_cell(key.counts)}*"]))
        yield f"| `{key.name}` | {_cell(key.kind)} | {key.default} | {meaning} |"


def _kind(kind: Any) -> str:
    if kind is Space:
        return "keys with the values to try: see [searches](studies.md#searches)"
    parts = list(_dataclasses_in(kind))
    words = describe(kind)
    if not parts:
        return words
    links = " or ".join(f"[{_title(part)}](#{_anchor(part)})" for part in parts)
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    several = "a list of " if get_origin(bare) in (tuple, list) or "a list" in words else ""
    return f"{several}{links}{' or null' if words.endswith('null') else ''}"


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default_factory is not dataclasses.MISSING:
        value = item.default_factory()
    elif item.default is dataclasses.MISSING:
        return "must be given"
    else:
        value = item.default
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        usual, own = to_plain(type(value)()), to_plain(value)
        value = {key: own[key] for key in own if own[key] != usual[key]}
        if not value:
            return "its defaults"
    written = yaml.safe_dump(to_plain(value), default_flow_style=True, sort_keys=False, width=1000)
    return f"`{_cell(written.strip().removesuffix('...').strip())}`"


def _condition(item: dataclasses.Field[Any]) -> str:
    condition: Condition | None = item.metadata.get(METADATA)
    return "" if condition is None else condition.words


def _dataclasses_in(kind: Any) -> Iterator[type]:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind is not Space:
        yield kind
    for argument in get_args(kind):
        yield from _dataclasses_in(argument)


def _summary(options: type) -> str:
    return " ".join(inspect.cleandoc(options.__doc__ or "").split("\n\n")[0].split())


def _title(options: type) -> str:
    return " ".join(re.findall(r"[A-Z][a-z]*", re.sub(r"(Options|Spec)$", "", options.__name__))).lower()


def _anchor(options: type) -> str:
    for name, section in SECTIONS.items():
        if section is options:
            return name.replace(".", "-")
    place = options.__module__.split(".")
    domain = place[2] if place[:2] == ["nbsr_core", "domains"] and len(place) > 3 else ""
    return "-".join(filter(None, [domain, _title(options).replace(" ", "-"), "options"]))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
