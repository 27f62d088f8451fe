"""Reading a search space and checking it against its model: a search that cannot work fails before it runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any

from nbsr_platform.study.options import FAILED, Check, convert
from nbsr_platform.study.problems import NOTHING, KeyPath, Problems
from nbsr_platform.study.space import (
    ALIASES,
    Assignment,
    Choice,
    FloatRange,
    IntRange,
    Parameter,
    Space,
    find,
    option_tree,
    same,
    try_apply,
)

FORMS = "{int: [low, high]}, {float: [low, high]} or {choice: [...]}"
KEYS_OF = {
    "int": ("int", "step", "log", "when"),
    "float": ("float", "step", "log", "when"),
    "choice": ("choice", "when"),
}
PAIR_OF: dict[str, Any] = {
    "int": Annotated[tuple[int, int], Check("[low, high], two whole numbers", lambda _: True)],
    "float": Annotated[tuple[float, float], Check("[low, high], two numbers", lambda _: True)],
}
ALL_KEYS = ("int", "float", "choice", "step", "log", "when")

Conditions = dict[str, tuple[Any, ...]]


def read_space(raw: Any, options: Any, training: Any, path: KeyPath, problems: Problems) -> Space:
    """The space of a study file. Without options (where the model is itself unusable) only its form is checked."""
    mapping = problems.expect_mapping(raw, path)
    if mapping is not None and set(mapping) <= {"eta"}:
        problems.add(path, "is empty: nothing to search over", hint=f"write keys such as training.epochs: {FORMS}")
    reader = _Reader(mapping or {}, options, training, path, problems)
    return reader.read()


@dataclass
class _Reader:
    raw: dict[str, Any]
    options: Any
    training: Any
    path: KeyPath
    problems: Problems
    accepted: list[Parameter] = field(default_factory=list)
    fixed: dict[str, Any] = field(default_factory=dict)

    def read(self) -> Space:
        known = None if self.options is None else option_tree(self.options, self.training)
        for key, entry in self.raw.items():
            if key == "eta":
                self._check_eta(entry)
                continue
            parameter = _read_parameter(key, entry, (*self.path, key), self.problems)
            if parameter is not None and self._has_target(parameter, known) and self._is_alone(parameter):
                self._check_conditions(parameter, known)
                self.accepted.append(parameter)
        space = Space(tuple(self.accepted), self.fixed, "eta" in self.raw, self.problems.folder)
        if self.options is not None:
            self._check_values(space)
        return space

    def _check_eta(self, entry: Any) -> None:
        if entry != "frontier":
            hint = "it never needs another training, but is picked from the trained model's frontier"
            self.problems.add((*self.path, "eta"), given=entry, allowed="'frontier'", hint=hint)

    def _has_target(self, parameter: Parameter, known: dict[str, Any] | None) -> bool:
        if known is None:
            return True
        trial = self.problems.scratch()
        if find(known, parameter.target, trial) is not NOTHING:
            return True
        (problem,) = trial.found
        at = (*self.path, parameter.key)
        self.problems.add(at, problem.what, hint=problem.hint, allowed=problem.allowed)
        return False

    def _is_alone(self, parameter: Parameter) -> bool:
        mine = f"{parameter.target}."
        for other in self.accepted:
            theirs = f"{other.target}."
            if mine.startswith(theirs) or theirs.startswith(mine):
                what = f"sets the same option as {other.key!r}; drop one of the two"
                self.problems.add((*self.path, parameter.key), what)
                return False
        return True

    def _check_conditions(self, parameter: Parameter, known: dict[str, Any] | None) -> None:
        """Every condition must be on an earlier key or a fixed option, and must be able to come true."""
        earlier = {other.target: other for other in self.accepted}
        in_file = {ALIASES.get(key, key) for key in self.raw}
        for key, values in parameter.when.items():
            here, target = (*self.path, parameter.key, "when", key), ALIASES.get(key, key)
            if target in earlier:
                for value in values:
                    if not earlier[target].can_be(value):
                        bounds = json.dumps(earlier[target].bounds(), default=str)
                        self.problems.add(here, f"is never so: {key} is one of {bounds}", given=value)
            elif target in in_file:
                self.problems.add(here, f"{key} must stand before {parameter.key} in the space")
            elif known is not None:
                self._check_fixed(target, values, known, here)

    def _check_fixed(self, target: str, values: tuple[Any, ...], known: dict[str, Any], here: KeyPath) -> None:
        trial = self.problems.scratch()
        value = find(known, target, trial)
        if value is NOTHING:
            (problem,) = trial.found
            what = "neither the space nor the model has this key"
            self.problems.add(here, what, hint=problem.hint, allowed=problem.allowed)
            return
        self.fixed[target] = value
        for wanted in values:
            for _, message in _about(target, self._complaints({target: wanted})):
                self.problems.add(here, message)

    def _check_values(self, space: Space) -> None:
        """Build the options with every choice and every bound once: first each for itself, then what goes together."""
        before = len(self.problems.found)
        cases = [
            (parameter, json.dumps(value, default=str), self._complaints(_by_target(assignment)))
            for parameter, value, assignment in probing(space)
        ]
        for parameter, value, complaints in cases:
            for _, message in _about(parameter.target, complaints):
                text = message if "got " in message else f"{value}: {message}"
                self.problems.add((*self.path, parameter.key), text)
        if len(self.problems.found) > before:
            return
        said: set[tuple[str, str]] = set()
        for parameter, value, complaints in cases:
            for key, message in complaints:
                if (key, message) not in said:
                    what = f"cannot be {value} with the others' first values: {key}: {message}"
                    self.problems.add((*self.path, parameter.key), what)
                said.add((key, message))

    def _complaints(self, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What the options say to some values: key and message."""
        trial = Problems("")
        try_apply(self.options, self.training, values, trial)
        return [(re.sub(r"\[(\d+)\]", r".\1", problem.key), problem.message) for problem in trial.found]


def _about(target: str, complaints: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(key, message) for key, message in complaints if f"{key}.".startswith(f"{target}.")]


def _by_target(assignment: Assignment) -> dict[str, Any]:
    return {ALIASES.get(key, key): value for key, value in assignment.items()}


def probing(space: Space) -> Iterator[tuple[Parameter, Any, Assignment]]:
    """Every probe of every parameter in an assignment that could be sampled, the others at their first value."""
    for parameter in space.parameters:
        for value in parameter.probes:
            wanted = {**_conditions_met(space, parameter), parameter.key: value}
            assignment: Assignment = {}
            for other in space.parameters:
                if other.key in wanted or space.is_active(other, assignment):
                    assignment[other.key] = wanted.get(other.key, other.probes[0])
            yield parameter, value, assignment


def _conditions_met(space: Space, parameter: Parameter) -> Assignment:
    """Values of earlier keys that make the parameter active."""
    by_target = {other.target: other for other in space.parameters}
    met: Assignment = {}
    for key, values in parameter.when.items():
        other = by_target.get(ALIASES.get(key, key))
        if other is not None and other is not parameter:
            met |= {**_conditions_met(space, other), other.key: values[0]}
    return met


def _read_parameter(key: str, entry: Any, path: KeyPath, problems: Problems) -> Parameter | None:
    before = len(problems.found)
    forms = [form for form in KEYS_OF if isinstance(entry, Mapping) and form in entry]
    if len(forms) != 1:
        if isinstance(entry, Mapping):
            problems.expect_mapping(entry, path, ALL_KEYS)
        if len(problems.found) == before:
            problems.add(path, given=entry, allowed=FORMS)
        return None
    form = forms[0]
    problems.expect_mapping(entry, path, KEYS_OF[form])
    when = _read_when(entry.get("when"), (*path, "when"), problems)
    parameter: Parameter | None
    if form == "choice":
        parameter = _read_choice(key, entry["choice"], when, (*path, "choice"), problems)
    else:
        parameter = _read_range(key, form, entry, when, path, problems)
    return parameter if len(problems.found) == before else None


def _read_when(raw: Any, path: KeyPath, problems: Problems) -> Conditions:
    if raw is not None and (not isinstance(raw, Mapping) or not raw):
        problems.add(
            path, given=raw, allowed="a mapping from another key to the value, or list of values, it must have"
        )
        return {}
    items = (raw or {}).items()
    for key, value in items:
        if value in ([], ()):
            problems.add(
                (*path, str(key)), given=value, allowed="a value, or a list of at least one value, it must have"
            )
    return {str(key): tuple(value) if isinstance(value, list | tuple) else (value,) for key, value in items}


def _read_choice(key: str, values: Any, when: Conditions, path: KeyPath, problems: Problems) -> Choice | None:
    if not isinstance(values, list | tuple) or not values:
        problems.add(path, given=values, allowed="a list of values to choose from")
        return None
    for index, value in enumerate(values):
        if any(same(value, other) for other in values[:index]):
            problems.add((*path, index), "stands twice", given=value)
    return Choice(key, tuple(values), when=when)


def _read_range(
    key: str, form: str, entry: Mapping[str, Any], when: Conditions, path: KeyPath, problems: Problems
) -> Parameter | None:
    pair = convert(PAIR_OF[form], entry[form], (*path, form), problems)
    step = convert(int | None if form == "int" else float | None, entry.get("step"), (*path, "step"), problems)
    log = convert(bool | None, entry.get("log"), (*path, "log"), problems)
    if FAILED in (pair, step, log):
        return None
    low, high = pair
    if not (math.isfinite(low) and math.isfinite(high)):
        problems.add((*path, form), given=entry[form], allowed="two finite numbers")
    elif low > high:
        problems.add((*path, form), "low is above high", given=entry[form], hint=f"write [{high:g}, {low:g}]")
    elif log and low <= 0:
        problems.add((*path, form), "log needs a low above 0", given=entry[form], hint="raise it, or drop log")
    elif step is not None and not (math.isfinite(step) and step > 0):
        problems.add((*path, "step"), given=step, allowed="a number above 0")
    elif log and step not in (None, 1 if form == "int" else None):
        problems.add((*path, "step"), "step and log exclude each other; drop one")
    elif step is not None and (left := _left_over(low, high, step)):
        last = Decimal(str(high)) - left
        problems.add((*path, "step"), f"steps do not end at {high:g}", given=step, hint=f"write [{low:g}, {last:g}]")
    elif form == "int":
        return IntRange(key, low, high, step or 1, bool(log), when=when)
    else:
        return FloatRange(key, low, high, step, bool(log), when=when)
    return None


def _left_over(low: float, high: float, step: float) -> Decimal:
    return (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step))


def never_active(space: Space) -> list[str]:
    """Keys whose conditions on fixed options do not hold: allowed, but they will never be sampled."""

    def fails(key: str, values: tuple[Any, ...]) -> bool:
        target = ALIASES.get(key, key)
        return target in space.fixed and not any(same(space.fixed[target], value) for value in values)

    return [one.key for one in space.parameters if any(fails(key, values) for key, values in one.when.items())]
