"""Variants: one study file that asks its question several times, each time with a few keys set differently."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from nbsr_platform.study.problems import Problem, Problems
from nbsr_platform.study.sections import NAME
from nbsr_platform.study.yaml_file import Document, assign, locate

KEY = "variants"
# Overrides of these keys concern the file as a whole, all others each of its variants.
WHOLE = ("name", KEY)


def has_variants(document: Document) -> bool:
    return isinstance(document.value, dict) and KEY in document.value


def variants_of(document: Document) -> list[Document]:
    """The documents that a file with `variants:` stands for: each with its own name and its own keys.

    Problems with the variants themselves are among those of the document that was given.
    """
    problems = document.problems
    raw = document.value[KEY]
    if not isinstance(raw, Mapping) or not raw:
        problems.add((KEY,), given=raw, allowed="a mapping from names to the keys that differ, such as data.split")
        return []
    found = []
    for name, values in raw.items():
        if NAME.fullmatch(name) is None:
            problems.add((KEY, name), "a variant needs a name of letters, digits, - and _")
            continue
        mapping = problems.expect_mapping(values, (KEY, name))
        if mapping is not None:
            found.append(_variant(document, name, mapping))
    return found


def _variant(document: Document, name: str, values: Mapping[str, Any]) -> Document:
    told = document.problems
    tree = copy.deepcopy(document.value)
    del tree[KEY]
    problems = Problems(told.file, dict(told.lines), dict(told.overrides), set(told.unreadable), folder=told.folder)
    for key, value in values.items():
        if key in WHOLE:
            told.add((KEY, name, key), "a variant is named by its key and has no variants of its own")
            continue
        path = locate(tree, key)
        obstacle = assign(tree, path, copy.deepcopy(value))
        if obstacle:
            file, line = told.place((KEY, name, key))
            told.found.append(Problem(file, f"{KEY}.{name}.{key}", obstacle, line=line))
        for known in [known for known in problems.lines if known[: len(path)] == path]:
            del problems.lines[known]
        if (KEY, name, key) in told.lines:
            problems.lines[path] = told.lines[KEY, name, key]
    if isinstance(tree.get("name"), str):
        tree["name"] = f"{tree['name']}-{name}"
    return Document(tree, problems)
