"""A small trained model of each shipped domain and of one's own, stored as a study would store it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nbsr_platform.serving.saving import save_model
from nbsr_platform.serving.served_model import ModelConfig
from nbsr_platform.study.options import from_plain, to_plain
from torch import nn

from nbsr_core.domains.domain import Domain, ModelKind, Signature, find_domain
from nbsr_core.domains.iris import FlatOptions, IrisData
from nbsr_core.learning import TrainingConfig
from nbsr_core.learning.learners import Classifier, Execution, Learner
from nbsr_core.learning.splits import Splits

MODELS = (
    "iris nbsr",
    "medical nbsr",
    "medical xgboost",
    "triage ar_nbsr",
    "triage planner",
    "vision nbsr",
    "language nbsr",
    "language standard",
    "navigation nbsr_mem",
    "navigation cnn_gru",
)
PATIENTS = {"train_patients": 500, "valid_patients": 100, "test_patients": 100, "draws": 0}
DATA: dict[str, dict[str, Any]] = {
    "medical": PATIENTS,
    "triage": PATIENTS,
    "vision": {"subset": 60, "size": 8, "ood": []},
    "language": {"train": 300, "test": 20},
    "navigation": {"train": 40, "valid": 10, "test": 10, "noise": 0.1},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "vision nbsr": {"backbone": {"name": "small", "size": 16, "stages": ["5", "11"]}},
    "medical xgboost": {"n_estimators": 2},
    "triage planner": {"policy_after": 1},
    "language nbsr": {"density": {"enabled": True}},
    "navigation nbsr_mem": {"density": {"enabled": True}},
}
OWN = '''"""A domain of one's own: its module, another that it imports, and a file that it reads."""

from importlib.resources import files

import nbsr_core.domains.iris as iris

from own_flowers.names import NAME


class Flowers(iris.Iris):
    name = NAME
    place = files("own_flowers").joinpath("place.txt").read_text().strip()
'''
# Loads models by their folders and asks each its own example; NBSR itself is nowhere but in the models.
ASKING = """
import json, sys
sys.dont_write_bytecode = True
from pathlib import Path
sys.path[:] = [p for p in sys.path if not any((Path(p) / name).exists() for name in ("nbsr_core", "nbsr_platform"))]
import mlflow.pyfunc
said = {}
for folder in sys.argv[1:]:
    model = mlflow.pyfunc.load_model(folder)
    answer = model.predict(model.input_example)
    assert list(answer.columns) == model.metadata.signature.outputs.input_names(), folder
    said[Path(folder).name] = json.loads(answer.to_json(orient="records"))
import nbsr_core
print(json.dumps({"nbsr": nbsr_core.__file__, "said": said}))
"""


def _build_convolution(options: FlatOptions, signature: Signature) -> Classifier:
    return Classifier(nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(4, signature.num_classes)))


class Squares(Domain):
    """Pictures of 2 x 2, which no table of numbers is, and no service of their own."""

    name = "squares"
    data = IrisData
    models: ClassVar = {"cnn": ModelKind("baseline", FlatOptions, _build_convolution)}

    def load(self, data: Any, seed: int) -> Splits:
        raise NotImplementedError


@dataclass(frozen=True)
class Stored:
    """A trained model and the folder that it is stored in."""

    learner: Learner
    splits: Splits
    config: ModelConfig
    folder: Path


def store(name: str, folder: Path, eta: float | None = None, max_vacuity: float | None = None) -> Stored:
    """Train `domain kind` for an epoch or two, and store it below a folder."""
    domain_name, kind_name = name.split()
    domain = find_domain(domain_name)
    splits = domain.load(from_plain(domain.data, DATA.get(domain_name, {})), 0)
    kind = domain.models[kind_name]
    options: Any = from_plain(kind.options, OPTIONS.get(name, {}))
    learner = kind.build(options, Signature.of(splits))
    list(learner.train(splits, TrainingConfig(epochs=2, batch_size=64), 0, Execution()))
    names = tuple(splits.class_names), tuple(splits.feature_names)
    known = (domain_name, kind_name, to_plain(options))
    config = ModelConfig(*known, *names, eta, max_vacuity, structure=splits.structure)
    place = folder / name.replace(" ", "-").replace(":", "-")
    save_model(place, config, learner.state())
    return Stored(learner, splits, config, place)


def own_project(folder: Path) -> Path:
    """A project with a package that has a domain in it, and what else lies around; git tracks the package."""
    package = folder / "project" / "own_flowers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "domain.py").write_text(OWN)
    (package / "names.py").write_text('NAME = "own flowers"\n')
    (package / "place.txt").write_text("meadow\n")
    (folder / "project" / "unrelated.py").write_text("raise RuntimeError\n")
    for command in (["init", "-q"], ["add", "own_flowers"]):
        subprocess.run(["git", *command], cwd=package.parent, check=True, timeout=60)
    (package / "notes.txt").write_text("git does not track me\n")
    return package.parent


def ask(python: Path | str, folders: Sequence[Path], elsewhere: Path) -> subprocess.CompletedProcess[str]:
    """In a new process that sees neither our source nor the current folder."""
    command = [str(python), "-I", "-c", ASKING, *map(str, folders)]
    return subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=300)


PYTHON = sys.executable
