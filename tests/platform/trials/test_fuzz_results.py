"""Results that were damaged, or made up with the right checksums: each is read, told and drawn, or refused."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from fuzzing import FEW, MANY, MEMORY, changed, damaged, good_or_refused, plain_values
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.explain.explain import explain, picture
from nbsr_platform.explain.explanation import Explanation
from nbsr_platform.report import write_report
from nbsr_platform.report.find import find
from nbsr_platform.study.study import Study, load
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.sealed import MANIFEST, seal
from nbsr_platform.trials.store import RESULT, ResultStore
from nbsr_platform.trials.stored_trial import trial_of
from nbsr_platform.trials.trial import data_fingerprint, grid

from benchmarks.reliability.hostile.case import trained
from nbsr_core.errors import InputError

STUDY = """
name: fuzzed
domain: iris
seeds: 2
training: {epochs: 1}
evaluation: {audits: 6}
models: {nbsr: {}, mlp: {}}
"""


@cache
def kept() -> tuple[Path, str]:
    """A home with the trials of a small study, really trained, and the key of an NBSR one among them."""
    folder = Path(tempfile.mkdtemp(prefix="nbsr-test-", dir=MEMORY))
    (folder / "study.yaml").write_text(STUDY)
    study = load(folder / "study.yaml")
    assert isinstance(study, Study)
    trials = grid(study, data_fingerprint(study))
    for trial in trials:
        result = list(run_trial(trial, "cpu"))[-1]
        assert isinstance(result, TrialResult)
        ResultStore(Home(folder).trials).save(result)
    return folder, next(trial.key for trial in trials if trial.label == "nbsr")


def plain() -> dict[str, Any]:
    folder, key = kept()
    found: dict[str, Any] = json.loads((ResultStore(Home(folder).trials).folder(key) / RESULT).read_bytes())
    return found


NAMES = ["key", "status", "metrics", "tables", "trial", "options", "domain"]
KEYS = st.one_of(st.sampled_from(NAMES), st.text(max_size=5))
DEEP = [b"[" * 9_000, b'{"key":' * 9_000]


def asked(name: str, content: bytes, sealed: bool) -> None:
    """Everything that reads a result, on one with other content, with the right checksums or without."""
    folder, key = kept()
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        home = Home(Path(place) / "home")
        shutil.copytree(folder, home.root)
        store = ResultStore(home.trials)
        (store.folder(key) / name).write_bytes(content)
        if sealed:
            seal(store.folder(key), key)
        found = good_or_refused(lambda: store.load(key))
        assert store.has(key) == (found is not None) or not sealed
        if found is not None:
            good_or_refused(lambda: trial_of(found))
        good_or_refused(lambda: told(home, key))
        for what in (key, str(home.root / "study.yaml")):
            good_or_refused(partial(reported, home, what, Path(place) / "r.html"))


def reported(home: Home, what: str, file: Path) -> None:
    write_report(file, find(home, what), "report")


def told(home: Home, key: str) -> None:
    """All that `nbsr explain` can make of a trial."""
    explained = explain(home, key, 0)
    assert isinstance(explained, Explanation)
    assert explained.text()
    json.dumps(explained.to_json(), allow_nan=False)
    picture(explained, "svg")


def damaged_result(content: bytes) -> None:
    asked(RESULT, content, sealed=False)


def damaged_manifest(content: bytes) -> None:
    asked(MANIFEST, content, sealed=False)


def sealed_bytes(content: bytes) -> None:
    asked(RESULT, content, sealed=True)


def sealed_values(values: Any) -> None:
    asked(RESULT, json.dumps(values).encode(), sealed=True)


def ways() -> dict[str, tuple[Callable[[Any], None], st.SearchStrategy[Any]]]:
    folder, key = kept()
    place = ResultStore(Home(folder).trials).folder(key)
    result, manifest = (place / RESULT).read_bytes(), (place / MANIFEST).read_bytes()
    return {
        "damaged": (damaged_result, damaged(result)),
        "manifest": (
            damaged_manifest,
            st.one_of(damaged(manifest), plain_values(KEYS).map(json.dumps).map(str.encode)),
        ),
        "sealed bytes": (sealed_bytes, st.one_of(st.binary(max_size=50), damaged(result), st.sampled_from(DEEP))),
        "sealed values": (sealed_values, changed(plain(), KEYS)),
    }


KINDS = ("damaged", "manifest", "sealed bytes", "sealed values")


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_read_or_refused(kind: str) -> None:
    test, strategy = ways()[kind]
    FEW(given(strategy)(test))()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_many_results_are_read_or_refused(kind: str) -> None:
    test, strategy = ways()[kind]
    MANY(given(strategy)(test))()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metrics", None),
        ("metrics", {"test/accuracy": "high"}),
        ("tables", {"frontier": [1]}),
        ("environment", {"threads": 1}),
        ("status", "perfect"),
        ("seconds", None),
        ("seconds", True),
        ("epochs", {}),
        ("surprise", 1),
    ],
)
def test_a_result_with_a_field_of_another_kind_is_refused(field: str, value: object, tmp_path: Path) -> None:
    store, key = ResultStore(tmp_path / "trials"), trained().key
    store.save(trained())
    (store.folder(key) / RESULT).write_text(json.dumps({**plain(), field: value}))
    seal(store.folder(key), key)
    with pytest.raises(InputError, match=rf"result.json: not a readable trial result \(.*{field}"):
        store.load(key)
    assert not store.has(key), "and made again by the next run"


def test_a_figure_that_is_a_whole_number_in_json_is_a_float_like_all_others(tmp_path: Path) -> None:
    store, key = ResultStore(tmp_path / "trials"), trained().key
    store.save(trained())
    values = {**plain(), "key": key, "seconds": 2, "metrics": {"test/nll": 2}, "epochs": [{"loss": 1, "gap": None}]}
    (store.folder(key) / RESULT).write_text(json.dumps(values))
    seal(store.folder(key), key)
    found = store.load(key)
    figures = [found.seconds, found.metrics["test/nll"], found.epochs[0]["loss"]]
    assert [(figure, type(figure)) for figure in figures] == [(2.0, float), (2.0, float), (1.0, float)]
    assert found.epochs[0]["gap"] is None
