"""A domain and study files that tests of study files share: nothing of it loads or builds anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from nbsr_platform.study.problems import StudyError
from nbsr_platform.study.study import load

from nbsr_core.domains import tabular
from nbsr_core.domains.domain import Domain, ModelKind, Signature
from nbsr_core.errors import InputError
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning.learners import Learner
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.experts import ExpertSpec

TAXONOMY = DecisionGraph.taxonomy({"left": {"left leaf": ["a", "b"]}, "right": {"right leaf": ["c"]}})


@dataclass(frozen=True)
class ToyData:
    rows: int = 90
    noise: float = 0.1
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.noise < 1:
            raise InputError(f"noise must lie in [0, 1), got {self.noise!r}")


@dataclass(frozen=True)
class Wide:
    """Options of somebody's own model: a required key, a pair that must be in order, a default that is not plain."""

    size: int
    low: float = 0.0
    high: float = 1.0
    expert: ExpertSpec = ExpertSpec(activation="exp", bound=50.0)  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


def no_build(options: Any, signature: Any) -> Any:
    raise AssertionError("reading a study builds nothing")


class Toy(Domain):
    name = "toy"
    data = ToyData
    models: ClassVar[Mapping[str, ModelKind]] = {
        "nbsr": ModelKind("nbsr", tabular.NbsrOptions, no_build),
        "mlp": ModelKind("baseline", tabular.MlpOptions, no_build),
        "wide": ModelKind("baseline", Wide, no_build),
    }

    def load(self, data: Any, seed: int) -> Splits:
        raise AssertionError("reading a study loads no data")


class Loaded(Toy):
    """With data, of three classes."""

    def load(self, data: ToyData, seed: int) -> Splits:
        if data.folder is not None:
            raise InputError(f"no data in {data.folder}")
        part = Split(torch.zeros(3, 2), torch.arange(3))
        return Splits(part, part, part, ("a", "b", "c"), ("x", "y"), "nowhere", synthetic=True)


def built(options: Any, signature: Signature) -> Any:
    return tabular.build_nbsr(options, signature, TAXONOMY)


class Buildable(Loaded):
    """With models that can be built, and no taxonomy but for `nbsr`."""

    models: ClassVar[Mapping[str, ModelKind]] = {
        "nbsr": ModelKind("nbsr", tabular.NbsrOptions, built),
        "bare": ModelKind("nbsr", tabular.NbsrOptions, lambda options, data: tabular.build_nbsr(options, data, None)),
        "mlp": tabular.MLP,
        "xgboost": tabular.XGBOOST,
    }


class Silent(Buildable):
    """Judges in its own way, and does not say before what it will find."""

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        return Evaluation({"valid/charm": 1.0})


class Reading(Buildable):
    """Opens files as anybody would."""

    def load(self, data: ToyData, seed: int) -> Splits:
        assert data.folder is not None
        (data.folder / "x.csv").read_text()
        return super().load(data, seed)


class Bare(Domain):
    """Forgot to say what its data and models are."""

    name = "bare"

    def load(self, data: Any, seed: int) -> Splits:
        raise AssertionError("reading a study loads no data")


def write(text: str, name: str = "study.yaml") -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def complaints(text: str, *overrides: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        load(write(text), overrides)
    return str(caught.value).splitlines()


HEAD = "name: toy\ndomain: study_toys:Toy\n"
ONE = HEAD + "models:\n  nbsr:\n"
SEARCH = ONE + "search: {trials: 4, objectives: {valid/accuracy: maximize}, space: "
TOP_KEYS = (
    "name, question, domain, data, seeds, training, evaluation, models, paper, resources, reference, search, variants"
)

FULL = """\
name: toy-search
question: "Does routing cost accuracy: yes or no?"
domain: study_toys:Toy
data: {noise: 0.2, folder: some/where}
seeds: 3
training: {epochs: 7, learning_rate: 1e-3, temperature: {start: 2, floor: 0.5}}
evaluation: {etas: [-1, .5, 2], max_vacuity: 0.5}
models:
  nbsr:
    training: {epochs: 60, temperature: {decay: 0.8}}
    graph: {shape: uniform, depth: 3}
    experts: [{activation: sigmoid, bound: 5}, {hidden: [8, 8]}]
  flat: {kind: mlp, hidden: [16]}
  mlp:
resources: {gpus_per_worker: 0.25, concurrency: 4}
search:
  trials: 60
  objectives: {valid/accuracy: maximize, valid/ece: minimize}
  sampler: {name: nsga2, seed: 7}
  pruner: {name: median, metric: valid/nll, direction: minimize, warmup_epochs: 5}
  space:
    graph.depth: {int: [1, 4]}
    graph.width: {int: [2, 8], step: 2}
    lambda: {float: [1e-5, 1e-2], log: true}
    eta: frontier
    hidden: {choice: [[64], [64, 64]]}
    density.enabled: {choice: [true, false]}
    density.quantile: {float: [0.9, 0.999], when: {density.enabled: true}}
"""
