"""Options of a study that make no difference: searched in vain, or set and never read.

What counts when is known to the options themselves (`nbsr_core.options`) and to the models that are built from
them (`Learner.ignores`); here it is compared with what a study says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from nbsr_core.learning.config import TrainingConfig
from nbsr_core.learning.learners import Learner
from nbsr_core.options.conditions import without_effect
from nbsr_platform.study.options import FAILED, convert, to_plain
from nbsr_platform.study.problems import KeyPath, Problems
from nbsr_platform.study.search_options import Pruner
from nbsr_platform.study.sections import ModelChoice
from nbsr_platform.study.space import ALIASES, TRAINING, Assignment, Space, same, try_apply
from nbsr_platform.study.space_file import probing
from nbsr_platform.study.study import Study
from nbsr_platform.study.yaml_file import holds

# Proposals at random, beside one for each bound and choice, among which a parameter is to count once.
GUESSES = 200
HAS_NO_EFFECT = "has no effect"

Idle = dict[str, str]  # dotted key -> why


@dataclass
class ModelInUse:
    """A model as its trials will have it: once, or in many ways where it is searched.

    Attributes:
        ways: of a search, its proposals so to speak; without search, one that assigns nothing.
        learners: one for each kind of way, built; empty if not all could be. Filled before anybody asks what is idle.
    """

    choice: ModelChoice
    ways: Sequence[Way]
    learners: list[Learner] = field(default_factory=list)

    @cached_property
    def ignored(self) -> Idle:
        """What all built models ignore."""
        return _in_all([learner.ignores for learner in self.learners])

    @cached_property
    def idle(self) -> Idle:
        """What counts in no trial."""
        return self.idle_in(self.ways)

    def idle_in(self, ways: Sequence[Way]) -> Idle:
        return _in_all([way.idle | self.ignored for way in ways])


@dataclass(frozen=True)
class Way:
    """Options and training of a model with what a search assigns to them."""

    assignment: Assignment
    options: Any
    training: TrainingConfig

    @cached_property
    def idle(self) -> Idle:
        return {**dict(without_effect(self.options)), **dict(without_effect(self.training, f"{TRAINING}."))}


def in_use(study: Study) -> dict[str, ModelInUse]:
    """The models that a study trains: all of them, or the one that it searches."""
    search = study.search
    if search is None:
        alone = {label: Way({}, choice.options, choice.training) for label, choice in study.models.items()}
        return {label: ModelInUse(study.models[label], [way]) for label, way in alone.items()}
    choice = study.models[search.model]
    return {search.model: ModelInUse(choice, list(_ways(search.space, choice)))}


def _ways(space: Space, choice: ModelChoice) -> Iterator[Way]:
    for assignment in [*(assignment for *_, assignment in probing(space)), *_guesses(space)]:
        values = {ALIASES.get(key, key): value for key, value in assignment.items()}
        options, training = try_apply(choice.options, choice.training, values, Problems("", folder=space.folder))
        if FAILED not in (options, training):
            yield Way(assignment, options, training)


def _guesses(space: Space) -> Iterator[Assignment]:
    chance = random.Random(0)
    for _ in range(GUESSES if len(space.parameters) > 1 else 0):
        assignment: Assignment = {}
        for parameter in space.parameters:
            if space.is_active(parameter, assignment):
                assignment[parameter.key] = chance.choice(parameter.probes)
        yield assignment


def searched_in_vain(study: Study, models: Mapping[str, ModelInUse], problems: Problems) -> None:
    """Every parameter of a search that counts in none of its proposals is a problem."""
    if study.search is None:
        return
    model, space = models[study.search.model], study.search.space
    for parameter in space.parameters:
        sampled = [way for way in model.ways if space.is_active(parameter, way.assignment)]
        why = _covering(model.idle_in(sampled), parameter.target)
        if why:
            what = f"{HAS_NO_EFFECT} in any proposal: {why}"
            problems.add(("search", "space", parameter.key), what, hint="drop it, or change what it depends on")


def set_in_vain(study: Study, models: Mapping[str, ModelInUse]) -> list[str]:
    """A sentence for every option that the study sets, to something else than its default, and nobody reads."""
    written = study.source.value if study.source is not None else study.to_dict()
    found: dict[str, str] = {}

    def look(place: KeyPath, options: Any, idle: Idle) -> None:
        for key, why in idle.items():
            path = (*place, *(int(part) if part.isdecimal() else part for part in key.split(".") if part))
            if holds(written, path) and not _is_default(options, key):
                found[".".join(map(str, path))] = why

    for label, model in models.items():
        own = {key: why for key, why in model.idle.items() if key.split(".")[0] not in (TRAINING, "evaluation")}
        look(("models", label), model.choice.options, own)
        look(("models", label, TRAINING), model.choice.training, _within(TRAINING, model.idle))
    by_all = _in_all([model.idle for model in models.values()])
    look((TRAINING,), next(iter(models.values())).choice.training, _within(TRAINING, by_all))
    for part, options in (("evaluation", study.evaluation), ("data", study.data), ("resources", study.resources)):
        look((part,), options, _within(part, by_all) | dict(without_effect(options)))
    pruner = _written_pruner(written)
    if pruner is not None:
        look(("search", "pruner"), pruner, dict(without_effect(pruner)))
    if study.search is not None and not holds(written, ("search", "model")):
        others = [label for label in study.models if label not in models]
        found |= {f"models.{label}": f"a search trains {study.search.model} alone" for label in others}
    return [f"{key}: {HAS_NO_EFFECT}: {why}" for key, why in found.items()]


def _written_pruner(written: Any) -> Pruner | None:
    raw = (written.get("search") or {}).get("pruner")
    pruner = convert(Pruner, raw, (), Problems("")) if isinstance(raw, Mapping) else None
    return None if pruner is FAILED else pruner


def _within(part: str, idle: Idle) -> Idle:
    """What is idle of a part of a study, by the keys within it; if it is the whole part, by an empty one."""
    return {
        key.removeprefix(part).removeprefix("."): why for key, why in idle.items() if f"{key}.".startswith(f"{part}.")
    }


def _in_all(several: Sequence[Idle]) -> Idle:
    """What is idle in all of them; with nobody to ask, nothing is."""
    named = {key: why for idle in several for key, why in idle.items()}
    return {key: why for key, why in named.items() if all(_covering(idle, key) for idle in several)}


def _covering(idle: Idle, key: str) -> str:
    """Why an option is idle, itself or as a part of one that is; empty if it is not."""
    return next((why for other, why in idle.items() if f"{key}.".startswith(f"{other}.")), "")


def _defaults(options: Any) -> dict[str, Any]:
    """Default values, option by option: all together they may be no options that can be (a table without a file)."""
    found: dict[str, Any] = {item.name: item.default for item in fields(options) if item.default is not MISSING}
    found |= {item.name: item.default_factory() for item in fields(options) if item.default_factory is not MISSING}
    return {name: to_plain(value) for name, value in found.items()}


def _is_default(options: Any, dotted: str) -> bool:
    """Whether an option has its default value, as it does in files that spell out everything."""
    default: Any = _defaults(options)
    value = to_plain(options)
    for part in [part for part in dotted.split(".") if part]:
        if isinstance(value, list) and isinstance(default, list) and int(part) < min(len(value), len(default)):
            value, default = value[int(part)], default[int(part)]
        elif isinstance(value, dict) and isinstance(default, dict) and part in value and part in default:
            value, default = value[part], default[part]
        else:
            return False
    return same(value, default)
