"""Paths in a study are relative to its file, whatever folder a command is started in; tables of two classes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from nbsr_platform.execution.caches import settle_folders
from nbsr_platform.study.options import to_plain
from nbsr_platform.study.study import Collection, Study, load
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.trial import grid
from processes import nbsr

from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.domains.tabular import XGBOOST, BoostedTreesOptions
from nbsr_core.learning import TrainingConfig
from nbsr_core.learning.learners import Execution
from nbsr_core.learning.references.boosted_trees import BoostedTrees

MODULE = """
import csv
from dataclasses import dataclass
from pathlib import Path

import torch

from nbsr_core.learning.splits import Split, Splits
from nbsr_core.domains.domain import Domain
from nbsr_core.domains.tabular import MLP, XGBOOST


@dataclass(frozen=True)
class TableData:
    file: Path = Path("table.csv")


class Table(Domain):
    name = "table"
    data = TableData
    models = {"mlp": MLP, "xgboost": XGBOOST}

    def load(self, data, seed):
        with open(data.file) as file:
            rows = [[float(cell) for cell in row] for row in csv.reader(file)]
        x, y = torch.tensor([row[:-1] for row in rows]), torch.tensor([int(row[-1]) for row in rows])
        part = Split(x, y)
        return Splits(part, part, part, ("no", "yes"), ("a", "b"), str(data.file.name), synthetic=True)
"""
STUDY = """\
name: table
domain: MODULE:Table
data: {file: data/two.csv}
training: {epochs: 1}
models: {xgboost: {n_estimators: 4}, mlp: {hidden: [4]}}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study with a table below its folder."""
    file = tmp_path / "mine" / "data" / "two.csv"
    file.parent.mkdir(parents=True)
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    file.write_text("".join(f"{a},{b},{c}\n" for (a, b), c in zip(x.tolist(), y.tolist(), strict=True)))
    name = f"tables_{uuid4().hex}"  # a process can import only one module of a name
    (tmp_path / "mine" / f"{name}.py").write_text(MODULE)
    path = tmp_path / "mine" / "study.yaml"
    path.write_text(STUDY.replace("MODULE", name))
    return path


@pytest.mark.parametrize("start", [".", "mine", "mine/data"])
def test_a_path_is_relative_to_the_file(study: Path, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = study.parents[1]
    monkeypatch.chdir(root / start)
    assert Study.load(os.path.relpath(study)).data.file == study.parent / "data" / "two.csv"


def test_an_override_is_relative_to_where_it_is_typed(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parents[1])
    assert Study.load(study, ["data.file=mine/data/two.csv"]).data.file == study.parent / "data" / "two.csv"
    assert Study.load(study, ["seeds=2"]).data.file == study.parent / "data" / "two.csv"


def test_what_is_absolute_stays_and_so_does_a_home(study: Path) -> None:
    text = study.read_text()
    for given in ("/nowhere/two.csv", "~/two.csv"):
        study.write_text(text.replace("data/two.csv", given))
        assert str(Study.load(study).data.file) == given


def test_a_default_is_relative_to_the_file_too(study: Path) -> None:
    study.write_text(study.read_text().replace("data: {file: data/two.csv}\n", ""))
    assert to_plain(Study.load(study).data) == {"file": str(study.parent / "table.csv")}


def test_a_project_that_was_moved_has_the_same_keys(tmp_path: Path) -> None:
    def keys(path: Path) -> list[str]:
        found = Study.load(path)
        return [study_key(found, "content"), *(trial.key for trial in grid(found, "content"))]

    study = tmp_path / "here" / "a.yaml"
    study.parent.mkdir()
    study.write_text("{name: a, domain: language, data: {source: file, text: book.txt}, models: {standard: {}}}")
    before = keys(study)
    moved = study.parent.rename(tmp_path / "elsewhere") / study.name
    assert keys(moved) == before
    assert keys(moved.parent / ".." / "elsewhere" / study.name) == before
    moved.write_text(moved.read_text().replace("book.txt", "other.txt"))
    assert keys(moved) != before


def test_variants_and_collections_too(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parents[1])
    (study.parent / "variants.yaml").write_text(
        study.read_text() + "variants: {one: {}, other: {data.file: other.csv}}\n"
    )
    (study.parents[1] / "all.yaml").write_text("name: all\ninclude: [mine/variants.yaml]\n")
    for path in ("mine/variants.yaml", "all.yaml"):
        found = load(path)
        assert isinstance(found, Collection)
        files = [member.data.file for member in found.studies]
        assert files == [study.parent / "data" / "two.csv", study.parent / "other.csv"]


SHIPPED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("medical", {"source": "kaggle", "root": "files"}, {"root": "/here/files"}),
    ("language", {"source": "file", "text": "book.txt"}, {"text": "/here/book.txt"}),
    ("vision", {"source": "cifar10", "root": "../all"}, {"source": "cifar10", "root": "/all"}),
    (
        "vision",
        {"source": "tree", "ood": ["patches", "others.zip"], "cache": "kept", "oracle": {"weights": "w.pt"}},
        {"source": "/here/tree", "ood": ["patches", "/here/others.zip"], "cache": "/here/kept"},
    ),
    ("vision", {"oracle": {"weights": "imagenet"}}, {"source": "digits", "ood": ["patches"], "cache": None}),
]


@pytest.mark.parametrize(("domain", "data", "expected"), SHIPPED)
def test_paths_of_shipped_domains(domain: str, data: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    model = "standard" if domain == "language" else "flat" if domain == "vision" else "mlp"
    text = json.dumps({"name": "a", "domain": domain, "data": data, "models": {model: {}}})
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.yaml").write_text(text)
    found = to_plain(Study.load(tmp_path / "here" / "a.yaml").data)
    for key, value in expected.items():
        placed = [value] if not isinstance(value, list) else value
        given = [found[key]] if not isinstance(value, list) else found[key]
        assert given == [str(tmp_path) + item if item and item.startswith("/") else item for item in placed]
    if data.get("oracle", {}).get("weights") == "w.pt":
        assert found["oracle"]["weights"] == str(tmp_path / "here" / "w.pt")


def test_paths_that_a_search_proposes(tmp_path: Path) -> None:
    text = (
        "name: a\ndomain: vision\nmodels: {flat: {backbone: {name: small}}}\nsearch:\n  model: flat\n  trials: 2\n"
        "  objectives: {valid/nll: minimize}\n  space: {backbone.weights: {choice: [none, w.pt]}}\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    study = Study.load(tmp_path / "a.yaml")
    assert study.search is not None
    model = study.models["flat"]
    options, _ = study.search.space.apply(model.options, model.training, {"backbone.weights": "w.pt"})
    assert options.backbone.weights == str(tmp_path / "w.pt")


def test_folders_of_the_environment_mean_the_same_to_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NBSR_DATA", "data")
    monkeypatch.setenv("NBSR_CACHE", "~/kept")
    settle_folders()
    assert (os.environ["NBSR_DATA"], os.environ["NBSR_CACHE"]) == (str(tmp_path / "data"), "~/kept")


def test_boosted_trees_learn_two_classes(study: Path) -> None:
    found = Study.load(study)
    splits = find_domain(found.domain, study.parent).load(found.data, 0)
    learner = XGBOOST.build(BoostedTreesOptions(n_estimators=4), Signature.of(splits))
    assert isinstance(learner, BoostedTrees)
    (record,) = learner.train(splits, TrainingConfig(), 0, Execution())
    probs = learner.probabilities(splits.test.x)
    assert probs.shape == (40, 2)
    assert torch.allclose(probs.sum(1), torch.ones(40, dtype=probs.dtype))
    assert record.validation["accuracy"] > 0.9
    assert learner.importance(2).argmax() == 0, "the label is the sign of the first feature"
    again = BoostedTrees(2)
    again.load_state(learner.state())
    assert torch.equal(again.probabilities(splits.test.x), probs)


@pytest.mark.slow
def test_a_relative_path_works_in_workers_and_two_classes_end_to_end(study: Path) -> None:
    done = nbsr("run", "mine/study.yaml", "--json", cwd=study.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["trials"]["finished"] == 2
    assert {row["model"] for row in found["table"]} == {"xgboost", "mlp"}
