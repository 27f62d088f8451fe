"""The order in which a study names panels or groups changes nothing: what is explained is what was trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from nbsr_platform.study.study import load
from nbsr_platform.trials.trial import data_fingerprint
from tables import animals, write_csv
from trained_tables import nbsr

from nbsr_core.domains.acquisition.domain import Acquisition
from nbsr_core.domains.domain import Signature
from nbsr_core.domains.table.domain import Table
from nbsr_core.learning.learners import NbsrLearner

BOUGHT = """
name: bought
domain: acquisition
data: {file: pets.csv, source: file, target: animal, costs: %s}
seeds: 1
training: {epochs: 1}
models: {cheap_first: {}}
"""
GROUPED = """
name: grouped
domain: table
data: {file: pets.csv, target: animal, taxonomy: %s}
seeds: 1
training: {epochs: 1}
models: {nbsr: {graph: {shape: taxonomy}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_csv(tmp_path / "pets.csv", animals())
    return tmp_path


def write(folder: Path, text: str, named: Mapping[str, object]) -> str:
    path = folder / "study.yaml"
    path.write_text(text % json.dumps(named))
    return str(path)


def test_panels_may_be_named_in_any_order(folder: Path) -> None:
    columns = list(animals())[1:3]
    fingerprints = set()
    for names in (columns, columns[::-1]):
        study = write(folder, BOUGHT, {name: 1 + sorted(columns).index(name) for name in names})
        assert "finished" in nbsr("run", study, "--local", "--home", str(folder / names[0]), "--json")
        fingerprints.add(data_fingerprint(load(study).studies[0]))
    assert len(fingerprints) == 1
    panels = Acquisition().load(load(study).studies[0].data, 0).structure
    assert panels["panels"]["names"] == columns


def test_groups_may_be_named_in_any_order_and_are_explained_by_their_own_names(folder: Path) -> None:
    first, *others = sorted(set(map(str, animals()["animal"])))
    graphs = []
    for taxonomy in ({"Zulu": [first], "Alpha": others}, {"Alpha": others[::-1], "Zulu": [first]}):
        study = write(folder, GROUPED, taxonomy)
        splits = Table().load(load(study).studies[0].data, 0)
        learner = Table.models["nbsr"].build(load(study).studies[0].models["nbsr"].options, Signature.of(splits))
        assert isinstance(learner, NbsrLearner)
        graphs.append([node.name for node in learner.model.graph.nodes])
    assert graphs[0] == graphs[1]
    assert graphs[0].index("Zulu") < graphs[0].index("Alpha"), "by their first class"
