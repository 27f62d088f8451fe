"""A trained model for others to use: `mlflow.pyfunc.load_model(uri).predict(frame)`, with no pickle in it.

What is stored are options as JSON, weights as tensors and code as source. Loading builds the model from that code, or
from what is installed where NBSR is, and fills in the weights. `nbsr_platform.serving.saving` writes such models.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nbsr_core.domains.domain import Signature, UnknownModuleError, find_domain
from nbsr_core.domains.service import Column, Questions, Service
from nbsr_core.errors import InputError
from nbsr_core.evaluation.abstention import MAX_DOUBT
from nbsr_core.evaluation.after_training import temperatures_in
from nbsr_core.learning.batches import GLOBAL_GENERATOR
from nbsr_core.learning.learners import Learner
from nbsr_core.metrics import names
from nbsr_platform.study.options import from_plain

if TYPE_CHECKING:
    from nbsr_platform.trials.results import TrialResult
    from nbsr_platform.trials.trial import Trial

TUPLES = ("class_names", "feature_names", "temperatures")
CONFIG, WEIGHTS = "config.json", "model.pt"
BUDGET = "budget"
MOST_NAMED = 5
# As good as infinity, and JSON knows it.
LARGEST = sys.float_info.max


@dataclass(frozen=True)
class ModelConfig:
    """All that is needed to build a model before its weights are filled in, and how it is used by default.

    Attributes:
        eta: exit threshold; None walks to the end.
        max_vacuity: abstain above it; None never does.
        max_doubt: of a model that knows no vacuity, abstain where `1 - confidence` is above it; None never does.
        temperatures: of its calibration, see `Learner.use_temperatures`.
        structure: what else it is built from, see `Splits.structure`.
        left_out: why code of one's own is not stored with the model; empty if it is, or if there is none.
    """

    domain: str
    kind: str
    options: Mapping[str, Any]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    eta: float | None = None
    max_vacuity: float | None = None
    temperatures: tuple[float, ...] = ()
    left_out: str = ""
    structure: Mapping[str, Any] = field(default_factory=dict)
    max_doubt: float | None = None

    @staticmethod
    def of(trial: Trial, result: TrialResult) -> ModelConfig:
        """As the trial was judged: at its fast operating point, abstaining where its evaluation does."""
        eta = result.metrics.get(names.ETA, trial.evaluation.get("eta"))
        max_doubt = result.metrics.get(names.test(MAX_DOUBT))
        return ModelConfig(
            trial.domain,
            trial.kind,
            trial.options,
            tuple(result.data["class_names"]),
            tuple(result.data["feature_names"]),
            None if eta is None or eta == -math.inf else min(eta, LARGEST),
            result.max_vacuity(trial.evaluation) if max_doubt is None else None,
            temperatures_in(result.metrics),
            structure=result.data.get("structure", {}),
            max_doubt=max_doubt,
        )

    @property
    def use(self) -> dict[str, float | None]:
        """What may be chosen anew with every call."""
        by_confidence = {} if self.max_doubt is None else {MAX_DOUBT: self.max_doubt}
        return {"eta": self.eta, "max_vacuity": self.max_vacuity, **by_confidence}

    @property
    def signature(self) -> Signature:
        return Signature(self.class_names, self.feature_names, self.structure)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, default=str)

    @staticmethod
    def from_json(text: str) -> ModelConfig:
        plain = json.loads(text)
        return ModelConfig(**{**plain, **{name: tuple(plain[name]) for name in TUPLES if name in plain}})


def load_learner(config: ModelConfig, state: dict[str, Any]) -> Learner:
    """The trained model, ready for use; torch's global generator is left as it was."""
    try:
        kinds = find_domain(config.domain).models
    except UnknownModuleError as error:
        why = f"; its code was not stored with the model: {config.left_out}" if config.left_out else ""
        raise UnknownModuleError(f"{error}{why}") from None
    if config.kind not in kinds:
        raise InputError(f"domain {config.domain!r} has no model {config.kind!r}; it has {', '.join(kinds)}")
    kind = kinds[config.kind]
    with GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        learner = kind.build(from_plain(kind.options, config.options), config.signature)
    learner.load_state(state)
    learner.use_temperatures(config.temperatures)
    return learner


class ServedModel:
    """A learner that takes and gives data frames."""

    def __init__(self, config: ModelConfig, learner: Learner) -> None:
        self.config, self.learner = config, learner
        self.service: Service = find_domain(config.domain).service(learner, config.signature)

    @staticmethod
    def load(config: Path, weights: Path) -> ServedModel:
        """From the two files of a stored model, with code that is installed."""
        known = ModelConfig.from_json(config.read_text(encoding="utf-8"))
        state = torch.load(weights, map_location="cpu", weights_only=True)
        return ServedModel(known, load_learner(known, state))

    def check(self, options: Mapping[str, float | None] | None) -> None:
        """Refuse a way of use that the model does not know, whatever it is asked."""
        budget = (options or {}).get(BUDGET)
        if budget is None:
            return
        if not self.service.takes_budget:
            raise InputError(
                f"budget: only models that buy panels have one; {self.config.kind!r} of domain {self.config.domain!r} "
                "takes all columns as they are"
            )
        self.service.check_budget(budget)

    def predict(self, frame: pd.DataFrame, options: Mapping[str, float | None] | None = None) -> pd.DataFrame:
        """One row per row of `frame`: label, confidence, depth, vacuity, abstained, path, `p(<class>)` of each class.

        Models that do not walk have neither depth nor vacuity (NaN) nor a path, and abstain where they lack confidence.
        A domain may want and answer with other columns: `service.inputs` and `service.outputs` list them.

        Args:
            frame: one column for each of the service's, in any order.
            options: `eta`, `max_vacuity` and `max_doubt` for this call instead of the model's own, and `budget`, what
                may be spent on a row, of models that buy.
        """
        self.check(options)
        use = {**self.config.use, **(options or {})}
        asked = Questions(
            *inputs(frame, self.service.inputs), use["eta"], use["max_vacuity"], use.get(MAX_DOUBT), use.get(BUDGET)
        )
        return pd.DataFrame(self.service.answer(asked), index=frame.index)


def inputs(
    frame: pd.DataFrame, columns: tuple[Column, ...]
) -> tuple[Tensor, dict[str, list[str]], dict[str, list[Any]]]:
    """The frame's columns as the model wants them: numbers [N, F], texts by name, and values of any kind by name.

    Says which columns are missing, unknown or not what they should be.
    """
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"the input must be a DataFrame with one column per feature, got {type(frame).__name__}")
    given = [str(name) for name in frame.columns]
    problems = {
        "has no column": [column.name for column in columns if column.required and column.name not in set(given)],
        "has a column that the model does not know,": sorted(set(given) - {column.name for column in columns}),
        "has more than one column": sorted({name for name in given if given.count(name) > 1}),
    }
    said = [f"{what} {_named(names)}" for what, names in problems.items() if names]
    if said:
        raise InputError(f"the input {'; it '.join(said)} ({_expected(columns)})")
    ordered = frame.set_axis(given, axis=1)
    return (
        _numbers(ordered, [column for column in columns if column.kind == "number"]),
        {column.name: _texts(ordered[column.name]) for column in columns if column.kind == "text"},
        {
            column.name: ordered[column.name].tolist()
            for column in columns
            if column.kind == "value" and column.name in ordered
        },
    )


def _numbers(frame: pd.DataFrame, columns: list[Column]) -> Tensor:
    ordered = frame.reindex(columns=[column.name for column in columns])
    if len(columns) == 0:
        return torch.zeros(len(frame), 0)
    optional = {column.name for column in columns if not column.required}
    other = [name for name, kind in ordered.dtypes.items() if not pd.api.types.is_numeric_dtype(kind)]
    empty = [name for name in other if len(frame) == 0 or (name in optional and ordered[name].isna().all())]
    text = [name for name in other if name not in empty]
    if text:
        raise InputError(f"the input must be numbers, but those of {_named(text)} are not")
    values = ordered.astype(dict.fromkeys(empty, "float64")).to_numpy(dtype=np.float32, na_value=np.nan)
    good = np.isfinite(values) | (np.isnan(values) & ordered.columns.isin(optional))
    broken = [name for name, fine in zip(ordered.columns, good.all(0), strict=True) if not fine]
    if broken:
        raise InputError(f"the input must be finite numbers, but {_named(broken)} has missing or infinite ones")
    return torch.tensor(values)


def _texts(column: pd.Series) -> list[str]:
    other = [value for value in column if not isinstance(value, str)]
    if other:
        raise InputError(f"the input must be text in {column.name!r}, got {other[0]!r}")
    return list(column)


def _expected(columns: tuple[Column, ...]) -> str:
    if all(column.kind == "number" and column.required for column in columns):
        return f"expected are {len(columns)} features"
    needed, optional = ([column.name for column in columns if column.required is wanted] for wanted in (True, False))
    return f"expected are {_named(needed)}" + (f"; {_named(optional)} may be left out" if optional else "")


def _named(names: list[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(map(repr, names[:MOST_NAMED])) + (f" and {rest} more" if rest > 0 else "")
