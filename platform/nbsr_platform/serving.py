"""A trained model for others to use: `mlflow.pyfunc.load_model(uri).predict(frame)`, with no pickle in it.

What is stored are options as JSON and weights as tensors. Loading builds the model from the domain's own code and fills
in the weights, so nothing that is stored can run code of its own; our package must be installed where it is used.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.errors import InputError
from nbsr_core.learners import BoostedTrees, Learner, NbsrLearner
from nbsr_platform.options import from_plain
from nbsr_platform.results import TrialResult

if TYPE_CHECKING:
    from nbsr_platform.tracking import Tracker
    from nbsr_platform.trial import Trial

SCRIPT = Path(__file__).with_name("serving_model.py")
CONFIG, WEIGHTS = "config.json", "model.pt"
MOST_NAMED = 5
# Where MLflow keeps its list of installed packages; None until it is made.
PACKAGES = "_MODULES_TO_PACKAGES"
# As good as infinity, and JSON knows it.
LARGEST = sys.float_info.max


@dataclass(frozen=True)
class ModelConfig:
    """All that is needed to build a model before its weights are filled in, and how it is used unless told otherwise.

    Attributes:
        eta: exit threshold; None walks to the end.
        max_vacuity: abstain above it; None never does.
    """

    domain: str
    kind: str
    options: Mapping[str, Any]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    eta: float | None = None
    max_vacuity: float | None = None

    @staticmethod
    def of(trial: Trial, result: TrialResult) -> ModelConfig:
        """As the trial was judged: at its fast operating point, abstaining where its evaluation does."""
        eta = result.metrics.get("fast/eta", trial.evaluation.get("eta"))
        return ModelConfig(
            trial.domain,
            trial.kind,
            trial.options,
            tuple(result.data["class_names"]),
            tuple(result.data["feature_names"]),
            None if eta is None or eta == -math.inf else min(eta, LARGEST),
            trial.evaluation.get("max_vacuity"),
        )

    @property
    def use(self) -> dict[str, float | None]:
        """What may be chosen anew with every call."""
        return {"eta": self.eta, "max_vacuity": self.max_vacuity}

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, default=str)

    @staticmethod
    def from_json(text: str) -> ModelConfig:
        plain = json.loads(text)
        return ModelConfig(**{**plain, **{name: tuple(plain[name]) for name in ("class_names", "feature_names")}})


def load_learner(config: ModelConfig, state: dict[str, Any]) -> Learner:
    """The trained model, ready for use; torch's global generator is left as it was."""
    kinds = find_domain(config.domain).models
    if config.kind not in kinds:
        raise InputError(f"domain {config.domain!r} has no model {config.kind!r}; it has {', '.join(kinds)}")
    kind = kinds[config.kind]
    with torch.random.fork_rng(devices=[]):
        learner = kind.build(
            from_plain(kind.options, config.options), Signature(config.class_names, config.feature_names)
        )
    learner.load_state(state)
    return learner


class ServedModel:
    """A learner that takes and gives data frames."""

    def __init__(self, config: ModelConfig, learner: Learner) -> None:
        self.config, self.learner = config, learner

    @staticmethod
    def load(config: Path, weights: Path) -> ServedModel:
        """From the two files of a stored model."""
        known = ModelConfig.from_json(config.read_text(encoding="utf-8"))
        state = torch.load(weights, map_location="cpu", weights_only=True)
        return ServedModel(known, load_learner(known, state))

    def predict(self, frame: pd.DataFrame, options: Mapping[str, float | None] | None = None) -> pd.DataFrame:
        """One row a row of `frame`: label, confidence, depth, vacuity, abstained, and `p(<class>)` for every class.

        Models that do not walk have neither depth nor vacuity (NaN), and never abstain.

        Args:
            frame: one column a feature, in any order.
            options: `eta` and `max_vacuity` for this call instead of the model's own.
        """
        use = {**self.config.use, **(options or {})}
        x = inputs(frame, self.config.feature_names)
        rows, classes = len(x), self.config.class_names
        probs, depth, vacuity = torch.zeros(rows, len(classes)), np.full(rows, np.nan), np.full(rows, np.nan)
        abstained = np.zeros(rows, dtype=bool)
        if rows and isinstance(self.learner, NbsrLearner):
            said = self.learner.model.predict(x, eta=use["eta"], max_vacuity=use["max_vacuity"])
            probs, abstained = said.probs, said.abstained.numpy()
            depth, vacuity = said.depth.double().numpy(), said.vacuity.double().numpy()
        elif rows:
            probs = self.learner.probabilities(x)
        confidence, label = probs.double().max(1)
        answer = {
            "label": np.array(classes, dtype=object)[label.numpy()],
            "confidence": confidence.numpy(),
            "depth": depth,
            "vacuity": vacuity,
            "abstained": abstained,
        }
        columns = {f"p({name})": column for name, column in zip(classes, probs.double().numpy().T, strict=True)}
        return pd.DataFrame({**answer, **columns}, index=frame.index)


def inputs(frame: pd.DataFrame, feature_names: tuple[str, ...]) -> Tensor:
    """The frame's columns as the model wants them, [N, F]; says which ones are missing, unknown or not numbers."""
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"the input must be a DataFrame with one column a feature, got {type(frame).__name__}")
    wanted, given = set(feature_names), [str(name) for name in frame.columns]
    problems = {
        "has no column": [name for name in feature_names if name not in set(given)],
        "has a column that the model does not know,": sorted(set(given) - wanted),
        "has more than one column": sorted({name for name in given if given.count(name) > 1}),
    }
    said = [f"{what} {_named(names)}" for what, names in problems.items() if names]
    if said:
        raise InputError(f"the input {'; it '.join(said)} (expected are {len(feature_names)} features)")
    ordered = frame.set_axis(given, axis=1)[list(feature_names)]
    text = [name for name in feature_names if not pd.api.types.is_numeric_dtype(ordered[name])]
    if text:
        raise InputError(f"the input must be numbers, but those of {_named(text)} are not")
    values = ordered.to_numpy(dtype=np.float32, na_value=np.nan)
    broken = [name for name, good in zip(feature_names, np.isfinite(values).all(0), strict=True) if not good]
    if broken:
        raise InputError(f"the input must be finite numbers, but {_named(broken)} has missing or infinite ones")
    return torch.tensor(values)


def _named(names: list[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(map(repr, names[:MOST_NAMED])) + (f" and {rest} more" if rest > 0 else "")


def save_model(folder: Path, config: ModelConfig, state: dict[str, Any]) -> None:
    """Write an MLflow model into a new folder.

    Its signature tells what comes out, but leaves what goes in to us: MLflow would refuse whole numbers in place of
    others, and drop columns that the model does not know without a word.
    """
    import logging

    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    learner = load_learner(config, state)  # what cannot be loaded is not saved either
    kinds = {"label": DataType.string, "abstained": DataType.boolean}
    columns = ["label", "confidence", "depth", "vacuity", "abstained", *(f"p({name})" for name in config.class_names)]
    signature = ModelSignature(
        outputs=Schema([ColSpec(kinds.get(name, DataType.double), name) for name in columns]),
        params=ParamSchema([ParamSpec(name, DataType.double, value) for name, value in config.use.items()]),
    )
    example = pd.DataFrame([[0.0] * len(config.feature_names)], columns=list(config.feature_names))
    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="nbsr-") as name:
        parts = {CONFIG: Path(name) / CONFIG, WEIGHTS: Path(name) / WEIGHTS}
        parts[CONFIG].write_text(config.to_json(), encoding="utf-8")
        torch.save(state, parts[WEIGHTS])
        with _requirements_taken_as_met():
            mlflow.pyfunc.save_model(
                str(folder),
                python_model=str(SCRIPT),
                artifacts={key: str(path) for key, path in parts.items()},
                signature=signature,
                input_example=example,
                pip_requirements=requirements(learner),
            )


@contextlib.contextmanager
def _requirements_taken_as_met() -> Iterator[None]:
    """Spare MLflow the comparison of requirements with what is installed: ours are read off what is installed.

    For that it would list the files of all packages once a process, which takes longer than all the rest.
    """
    from mlflow.utils import requirements_utils

    if getattr(requirements_utils, PACKAGES, "listed") is not None:
        yield
        return
    setattr(requirements_utils, PACKAGES, {})
    try:
        yield
    finally:
        setattr(requirements_utils, PACKAGES, None)


def requirements(learner: Learner) -> list[str]:
    """What must be installed to use the model: our own package and, of what it needs, what decides about numbers."""
    packages = ["nbsr", "mlflow", "torch", "numpy", "pandas"]
    if isinstance(learner, BoostedTrees):
        packages.append("xgboost")
    return [f"{package}=={version(package).partition('+')[0]}" for package in packages]


def log_model(tracker: Tracker, run_id: str, config: ModelConfig, state: dict[str, Any]) -> str:
    """Add a model to a trial's run; returns the URI from which `mlflow.pyfunc.load_model` loads it."""
    with tempfile.TemporaryDirectory(prefix="nbsr-") as name:
        save_model(Path(name) / "model", config, state)
        tracker.store.call("log_artifacts", run_id, name)
    return f"runs:/{run_id}/model"
