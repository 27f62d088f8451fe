"""The door through which every domain comes in, the shipped ones and yours: data, models by name, evaluation.

A study names a domain (`iris`, `medical`, or `package.module:ClassName`) and the options of its data and models; all
options are plain dataclasses, so that a study file can be checked against them before anything runs.
"""

from __future__ import annotations

import difflib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nbsr_core.domains.base import Splits
from nbsr_core.errors import InputError
from nbsr_core.evaluation import Evaluation, EvaluationOptions, evaluate_classification
from nbsr_core.learners import Family, Learner

SHIPPED = {
    "iris": "nbsr_core.domains.iris:Iris",
    "medical": "nbsr_core.domains.medical:Medical",
}


@dataclass(frozen=True)
class Signature:
    """What a model must know of the data before it sees any: enough to build it anew when it is loaded."""

    class_names: Sequence[str]
    feature_names: Sequence[str]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_features(self) -> int:
        return len(self.feature_names)


@dataclass(frozen=True)
class ModelKind:
    """A model that a domain offers.

    Attributes:
        family: `nbsr` or `baseline`, for grouping in comparisons.
        options: dataclass of its parameters; every field has a default.
        build: makes an untrained learner; all randomness from torch's global generator, seeded by the caller.
    """

    family: Family
    options: type
    build: Callable[[Any, Signature], Learner]


class Domain(ABC):
    """A kind of problem. It loads, builds and evaluates; it does not train, log, plot or read a command line.

    Attributes:
        name: as it shows in reports.
        data: dataclass of the options under `data:` in a study.
        models: what can be trained, by the names that a study uses.
    """

    name: ClassVar[str]
    data: ClassVar[type]
    models: ClassVar[Mapping[str, ModelKind]]

    @abstractmethod
    def load(self, data: Any, seed: int) -> Splits:
        """Read or generate the data; everything random in it follows from the seed."""

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Judge a trained model; classification unless a domain says otherwise."""
        return evaluate_classification(learner, splits, options)


def find_domain(name: str) -> Domain:
    """A shipped domain by its name, or anybody's by `package.module:ClassName`."""
    target = SHIPPED.get(name, name)
    module_name, colon, class_name = target.partition(":")
    if not colon:
        close = difflib.get_close_matches(name, SHIPPED, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(
            f"domain must be one of {', '.join(SHIPPED)} or 'package.module:ClassName', got {name!r}{hint}"
        )
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except ImportError as error:
        raise InputError(f"domain {name!r}: cannot import {module_name!r} ({error})") from None
    except AttributeError:
        raise InputError(f"domain {name!r}: module {module_name!r} has no {class_name!r}") from None
    if not (isinstance(found, type) and issubclass(found, Domain)):
        raise InputError(f"domain {name!r} must be a subclass of nbsr_core.domains.Domain")
    return found()
