"""A small domain with all kinds of tabular models, and trials of it that were really trained."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from nbsr_platform.study.paper import Paper
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

from nbsr_core.domains.domain import Domain, ModelKind, Signature
from nbsr_core.domains.tabular import MLP, XGBOOST, NbsrOptions, build_nbsr
from nbsr_core.evaluation.evaluation import EvaluationOptions
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning import TrainingConfig
from nbsr_core.learning.learners import Execution, Learner, NbsrLearner
from nbsr_core.learning.splits import Split, Splits

CLASSES = ("red", "green", "blue", "grey")
TAXONOMY = DecisionGraph.taxonomy({"warm": {"warm-leaf": ["red", "green"]}, "cold": {"cold-leaf": ["blue", "grey"]}})


@dataclass(frozen=True)
class ToyData:
    samples: int = 160
    synthetic: bool = True


def _build(options: NbsrOptions, signature: Signature) -> NbsrLearner:
    return build_nbsr(options, signature, TAXONOMY)


class Toy(Domain):
    """Four clouds in five dimensions."""

    name = "toy"
    data = ToyData
    models: ClassVar[Mapping[str, ModelKind]] = {
        "nbsr": ModelKind("nbsr", NbsrOptions, _build),
        "mlp": MLP,
        "xgboost": XGBOOST,
    }

    def load(self, data: ToyData, seed: int) -> Splits:
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randn(len(CLASSES), 5, generator=torch.Generator().manual_seed(1)) * 1.5

        def split() -> Split:
            y = torch.arange(data.samples) % len(CLASSES)
            return Split(centres[y] + torch.randn(data.samples, 5, generator=generator), y)

        names = [f"f{i}" for i in range(5)]
        return Splits(split(), split(), split(), CLASSES, names, "four clouds", data.synthetic)


@dataclass(frozen=True)
class ToyStudy:
    """As much of a study as tracking looks at."""

    name: str = "toys"
    question: str | None = "Which toy is best?"
    domain: str = "toys:Toy"
    seeds: tuple[int, ...] = (0, 1)
    paper: Paper | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_yaml(self) -> str:
        return f"name: {self.name}\ndomain: {self.domain}\n"


SMALL = {
    "nbsr": {
        "hidden": (16,),
        "graph": {"shape": "taxonomy", "depth": 2, "width": 4},
        "experts": ({"hidden": (), "activation": "sigmoid", "bound": 5.0}, {"hidden": (8,)}),
        "density": {"enabled": True},
        "objective": {"every_depth": 0.5, "concept": 0.1},
    },
    "mlp": {"hidden": (16,)},
    "xgboost": {"n_estimators": 5},
}


def make_trial(kind: str = "nbsr", seed: int = 0, label: str | None = None, **changes: Any) -> Trial:
    parts: dict[str, Any] = {
        "study": "toys",
        "domain": "toys:Toy",
        "data": asdict(ToyData()),
        "data_fingerprint": "0123456789abcdef",
        "label": label or kind,
        "kind": kind,
        "family": Toy.models[kind].family,
        "options": SMALL[kind],
        "training": {**asdict(TrainingConfig(epochs=3, batch_size=64, learning_rate=0.01))},
        "evaluation": asdict(EvaluationOptions(max_vacuity=0.8, audits=3)),
        "seed": seed,
        "code": "abc",
    }
    return Trial(**{**parts, **changes})


def train(trial: Trial) -> tuple[Learner, Splits, TrialResult]:
    """What a worker does, without Ray."""
    from nbsr_platform.study.options import from_plain

    domain = Toy()
    splits = domain.load(from_plain(ToyData, trial.data), trial.seed)
    torch.manual_seed(trial.seed)
    kind = domain.models[trial.kind]
    learner = kind.build(from_plain(kind.options, trial.options), Signature.of(splits))
    records = list(learner.train(splits, from_plain(TrainingConfig, trial.training), trial.seed, Execution()))
    state = deepcopy(learner.state())  # as it was learned; what is fitted after that is in the result
    evaluation = domain.judge(learner, splits, from_plain(EvaluationOptions, trial.evaluation))
    result = TrialResult(
        key=trial.key,
        status="finished",
        seconds=1.5,
        epochs=[{"epoch": float(record.epoch), **record.flat(), "seconds": record.seconds} for record in records],
        metrics=evaluation.metrics,
        tables=evaluation.tables,
        audits=evaluation.audits,
        warnings=evaluation.warnings,
        data={
            "source": splits.source,
            "synthetic": splits.synthetic,
            "fingerprint": trial.data_fingerprint,
            "class_names": list(splits.class_names),
            "feature_names": list(splits.feature_names),
        },
        environment={"python": "3.11", "torch": torch.__version__, "device": "cpu", "commit": "abc"},
        weights=trial.weights_key,
        state=state,
    )
    return learner, splits, result


def flat_trial(seed: int = 0, epochs: int = 3, figures: int = 4, **changes: Any) -> tuple[Trial, TrialResult]:
    """A trial of the MLP with a result that nobody trained for: quick, and with as many figures as wanted."""
    trial = make_trial("mlp", seed, **changes)
    result = TrialResult(
        key=trial.key,
        status="finished",
        seconds=2.0,
        epochs=[
            {"epoch": float(epoch), **{f"train/figure{i}": epoch + i / 8 for i in range(figures)}, "seconds": 0.5}
            for epoch in range(epochs)
        ],
        metrics={
            "test/accuracy": 0.9,
            "test/ece": 0.05 + seed / 100,
            "fast/eta": float("-inf"),
            "test/x": float("nan"),
        },
        data={"source": "four clouds", "synthetic": True, "class_names": list(CLASSES), "feature_names": ["a"]},
        environment={"python": "3.11", "device": "cpu", "hostname": "secret-machine"},
    )
    return trial, result


_migrated: Path | None = None


def store_uri(folder: Path) -> str:
    """A fresh sqlite store. Its tables are made once a session: that takes longer than most tests."""
    global _migrated
    if _migrated is None:
        scratch = Path(tempfile.mkdtemp(prefix="nbsr-test-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        Tracker(f"sqlite:///{scratch / 'mlflow.db'}")
        _migrated = scratch / "mlflow.db"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_migrated, folder / "mlflow.db")
    return f"sqlite:///{folder / 'mlflow.db'}"
