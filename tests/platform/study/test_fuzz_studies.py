"""Study files that nobody would write: each is either a study or refused with a message, never anything else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzzing import FEW, MANY, MEMORY, changed, damaged, good_or_refused, plain_values
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.study.study import load
from nbsr_platform.study.yaml_file import dump, parse

ROOT = Path(__file__).parents[3] / "studies"
SHIPPED = sorted(ROOT.rglob("*.yaml"))
PARSED = {path: parse(path.read_text(), path.name).value for path in SHIPPED}


def known_keys(tree: Any) -> set[str]:
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    own = set(tree) if isinstance(tree, dict) else set()
    return own.union(*(known_keys(value) for value in inside))


KEYS = st.one_of(st.sampled_from(sorted(known_keys(list(PARSED.values())))), st.text(max_size=8))
FILES = st.sampled_from(SHIPPED)


def read_with(overrides: list[str], content: bytes) -> None:
    """As `nbsr validate` does, in a folder of its own: what a file includes is looked for beside it."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "s.yaml"
        path.write_bytes(content)
        found = good_or_refused(lambda: load(path, overrides))
        if found is not None and hasattr(found, "to_yaml"):
            again = good_or_refused(lambda: parse(found.to_yaml(), "again"))
            assert again is not None
            assert not again.problems.found, "what is written can be read"


def read(content: bytes) -> None:
    read_with([], content)


def read_values(values: Any) -> None:
    read(yaml.safe_dump(values, allow_unicode=True).encode("utf-8", "surrogatepass"))


def overridden(key: str, value: Any) -> None:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).removesuffix("...\n").strip()
    read_with([f"{key}={text}"], b"name: fine\ndomain: iris\nmodels: {mlp: {}, nbsr: {}}\n")


TESTS: dict[str, tuple[Callable[..., None], list[st.SearchStrategy[Any]]]] = {
    "bytes": (read, [st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode))]),
    "damaged": (read, [FILES.flatmap(lambda path: damaged(path.read_bytes()))]),
    "values": (read_values, [st.dictionaries(KEYS, plain_values(KEYS), max_size=8)]),
    "changed": (read_values, [FILES.flatmap(lambda path: changed(PARSED[path], KEYS))]),
    "overrides": (overridden, [st.lists(KEYS, min_size=1, max_size=4).map(".".join), plain_values(KEYS, 5)]),
}


@pytest.mark.parametrize("kind", TESTS)
def test_a_file_is_a_study_or_refused(kind: str) -> None:
    test, strategies = TESTS[kind]
    FEW(given(*strategies)(test))()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", TESTS)
def test_many_files_are_studies_or_refused(kind: str) -> None:
    test, strategies = TESTS[kind]
    MANY(given(*strategies)(test))()


@FEW
@given(st.dictionaries(st.text(min_size=1, max_size=5), plain_values(st.text(max_size=5))))
def test_what_is_dumped_is_what_is_read(values: dict[str, Any]) -> None:
    text = dump(values)
    found = parse(text, "dumped")
    if not found.problems.found:
        assert repr(found.value) == repr(values)
