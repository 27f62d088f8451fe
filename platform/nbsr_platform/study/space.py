"""A search space: which keys of a model's options and training a search may set, within what bounds, and when.

The exit threshold is never among what is sampled: routing does not depend on it, so `eta: frontier` picks it afterwards
from the frontier of a trained model, at no cost.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nbsr_core.errors import InputError
from nbsr_platform.study.options import convert, to_plain
from nbsr_platform.study.problems import NOTHING, Problems, nearest, show

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial

# The paper's letters for weights of the objective.
ALIASES = {"lambda": "objective.entropy", "gamma": "objective.cost"}
TRAINING = "training"

Scalar = str | int | float | bool | None
Assignment = dict[str, Any]
Options = TypeVar("Options")
Training = TypeVar("Training")


@dataclass(frozen=True)
class Parameter(ABC):
    """One key of a space.

    Attributes:
        key: as the study writes it; Optuna knows the parameter by this name.
        when: values that other keys (of the space, or fixed options) must have for this one to be sampled.
    """

    key: str
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, kw_only=True)

    @property
    def target(self) -> str:
        """The option that is set, with the paper's letters resolved."""
        return ALIASES.get(self.key, self.key)

    @abstractmethod
    def suggest(self, trial: BaseTrial) -> Any:
        """A value from the sampler."""

    @property
    @abstractmethod
    def distribution(self) -> BaseDistribution:
        """Optuna's own description."""

    @property
    @abstractmethod
    def probes(self) -> list[Any]:
        """Values that show whether the option accepts what may be sampled."""

    @abstractmethod
    def can_be(self, value: Any) -> bool:
        """Whether the value can be sampled at all."""

    def stored(self, value: Any) -> Scalar:
        """A value as Optuna knows it."""
        known: Scalar = value
        return known

    @abstractmethod
    def bounds(self) -> dict[str, Any]:
        """As in a study file, but for conditions."""

    def to_plain(self) -> dict[str, Any]:
        conditions = {key: list(values) for key, values in self.when.items()}
        return {**self.bounds(), **({"when": conditions} if conditions else {})}


@dataclass(frozen=True)
class IntRange(Parameter):
    """Whole numbers from low to high, both included."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    def suggest(self, trial: BaseTrial) -> int:
        return trial.suggest_int(self.key, self.low, self.high, step=self.step, log=self.log)

    @property
    def distribution(self) -> BaseDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, step=self.step, log=self.log)

    @property
    def probes(self) -> list[Any]:
        return [self.low, self.high]

    def can_be(self, value: Any) -> bool:
        number = isinstance(value, int) and not isinstance(value, bool)
        return number and self.low <= value <= self.high and (value - self.low) % self.step == 0

    def bounds(self) -> dict[str, Any]:
        return {"int": [self.low, self.high], "step": self.step, "log": self.log}


@dataclass(frozen=True)
class FloatRange(Parameter):
    """Numbers from low to high, both included."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    def suggest(self, trial: BaseTrial) -> float:
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)

    @property
    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, step=self.step, log=self.log)

    @property
    def probes(self) -> list[Any]:
        # One that is no whole number tells an option that takes only those.
        inside = self.low + (self.step if self.step is not None else 0.381966 * (self.high - self.low))
        return [self.low, min(inside, self.high), self.high]

    def can_be(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def bounds(self) -> dict[str, Any]:
        return {"float": [self.low, self.high], "step": self.step, "log": self.log}


@dataclass(frozen=True)
class Choice(Parameter):
    """One of some values. Optuna knows lists and mappings among them by their JSON."""

    values: tuple[Any, ...]

    @property
    def names(self) -> tuple[Scalar, ...]:
        return tuple(value if isinstance(value, Scalar) else json.dumps(value) for value in self.values)

    def suggest(self, trial: BaseTrial) -> Any:
        return self.values[self.names.index(trial.suggest_categorical(self.key, self.names))]

    @property
    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.names)

    @property
    def probes(self) -> list[Any]:
        return list(self.values)

    def can_be(self, value: Any) -> bool:
        return any(same(value, own) for own in self.values)

    def stored(self, value: Any) -> Scalar:
        return next(name for name, own in zip(self.names, self.values, strict=True) if same(value, own))

    def bounds(self) -> dict[str, Any]:
        return {"choice": list(self.values)}


@dataclass(frozen=True)
class Space:
    """All parameters in the order of the file, in which conditions may look back at earlier ones.

    Attributes:
        fixed: values of the model's own options that conditions ask for.
        picks_eta: whether eta is chosen from the frontier.
        folder: what paths among the values are relative to.
    """

    parameters: tuple[Parameter, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    picks_eta: bool = False
    folder: Path | None = field(default=None, compare=False)

    def suggest(self, trial: BaseTrial) -> Assignment:
        """Values for the keys that are active in this trial, by the names of the study file."""
        assignment: Assignment = {}
        for parameter in self.parameters:
            if self.is_active(parameter, assignment):
                assignment[parameter.key] = parameter.suggest(trial)
        return assignment

    def is_active(self, parameter: Parameter, assignment: Assignment) -> bool:
        """Whether all conditions hold; a key that was itself not sampled fulfils none."""
        sampled = {own.target: assignment.get(own.key, NOTHING) for own in self.parameters}
        for key, allowed in parameter.when.items():
            target = ALIASES.get(key, key)
            value = sampled[target] if target in sampled else self.fixed.get(target, NOTHING)
            if not any(same(value, one) for one in allowed):
                return False
        return True

    def apply(self, options: Options, training: Training, assignment: Assignment) -> tuple[Options, Training]:
        """The model's options and training with the sampled values set; raises where they do not go together."""
        problems = Problems("search", folder=self.folder)
        applied = try_apply(options, training, {ALIASES.get(key, key): assignment[key] for key in assignment}, problems)
        problems.stop_if_any()
        return applied

    def point(self, options: Mapping[str, Any], training: Mapping[str, Any]) -> Assignment:
        """Where a model with these options, as plain values, lies in the space; an `InputError` if it lies outside."""
        problems, assignment = Problems("search", folder=self.folder), Assignment()
        tree = {**options, TRAINING: training}
        for parameter in self.parameters:
            if not self.is_active(parameter, assignment):
                continue
            value = find(tree, parameter.target, problems)
            if value is NOTHING or not parameter.can_be(value):
                has = "does not have it" if value is NOTHING else f"has {show(value)}"
                raise InputError(f"the space searches {parameter.key} in {parameter.bounds()}, and the trial {has}")
            assignment[parameter.key] = value
        return assignment

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """What may be sampled, conditional keys included: for plans and estimates of size."""
        return {parameter.key: parameter.distribution for parameter in self.parameters}

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {parameter.key: parameter.to_plain() for parameter in self.parameters}
        return {**plain, **({"eta": "frontier"} if self.picks_eta else {})}


def same(one: Any, other: Any) -> bool:
    """Equality that does not take true for 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def option_tree(options: Any, training: Any) -> dict[str, Any]:
    """All that a space may set, as nested plain values."""
    return {**to_plain(options), TRAINING: to_plain(training)}


def try_apply(options: Any, training: Any, values: Mapping[str, Any], problems: Problems) -> tuple[Any, Any]:
    """Set values by dotted key and build everything anew; what does not fit is among the problems."""
    tree = option_tree(options, training)
    for dotted, value in values.items():
        current = find(tree, dotted, problems)
        if current is not NOTHING:
            folder, _, name = dotted.rpartition(".")
            holder: Any = find(tree, folder, problems) if folder else tree
            both = isinstance(current, dict) and isinstance(value, dict)
            holder[int(name) if isinstance(holder, list) else name] = {**current, **value} if both else value
    plain_training = tree.pop(TRAINING)
    return convert(type(options), tree, (), problems), convert(type(training), plain_training, (TRAINING,), problems)


def find(tree: dict[str, Any], dotted: str, problems: Problems) -> Any:
    """What a dotted key leads to, or NOTHING after saying which keys there are."""
    here: Any = tree
    parts = dotted.split(".")
    for depth, part in enumerate(parts):
        above = ".".join(parts[:depth])
        if isinstance(here, dict):
            inside, allowed = part in here, ", ".join(f"{above}.{key}".strip(".") for key in here)
        elif isinstance(here, list):
            inside = part.isdecimal() and int(part) < len(here)
            allowed = ", ".join(f"{above}.{index}" for index in range(len(here))) or f"none, {above} is empty"
        else:
            inside, allowed = False, f"none below {above}, which is {show(here)} in this model"
        if not inside:
            close = _intended(tree, here, parts, depth)
            hint = f"did you mean {close!r}?" if close else ""
            problems.add((dotted,), "the model has no such option", allowed=allowed, hint=hint)
            return NOTHING
        here = here[int(part)] if isinstance(here, list) else here[part]
    return here


def _intended(tree: dict[str, Any], here: Any, parts: list[str], depth: int) -> str | None:
    """The key that was meant: the same name elsewhere, or a like one here."""
    elsewhere = [key for key in leaves(tree) if key.rpartition(".")[2] == parts[-1]]
    if elsewhere:
        return min(elsewhere, key=lambda key: (-len(set(key.split(".")) & set(parts)), len(key)))
    names = list(here) if isinstance(here, dict) else []
    close = nearest(parts[depth], names if depth else [*names, *ALIASES, "eta"])
    return None if close is None else ".".join([*parts[:depth], close, *parts[depth + 1 :]])


def leaves(tree: Any, prefix: str = "") -> list[str]:
    """All dotted keys of nested plain values."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [name for key, value in items for name in (f"{prefix}{key}", *leaves(value, f"{prefix}{key}."))]
