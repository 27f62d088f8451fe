"""What a study says about its search: over which space, towards what, how proposed and how cut short."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from nbsr_core.metrics import names
from nbsr_core.options.conditions import counts_when
from nbsr_platform.study.options import FAILED, AtLeastOne, Check, NotNegative, convert, to_plain
from nbsr_platform.study.problems import KeyPath, Problems, did_you_mean
from nbsr_platform.study.sections import ModelChoice, Seed
from nbsr_platform.study.space import Parameter, Space
from nbsr_platform.study.space_file import read_space

Direction = Literal["maximize", "minimize"]

METRIC = re.compile(r"[A-Za-z0-9_.@-]+(/[A-Za-z0-9_.@-]+)+")

Metric = Annotated[
    str, Check("a metric as it is logged, such as valid/accuracy", lambda name: METRIC.fullmatch(name) is not None)
]
EpochMetric = Annotated[
    str,
    Check(
        "a metric that every epoch reports, such as valid/nll or train/loss",
        lambda name: METRIC.fullmatch(name) is not None and names.is_of_epochs(name),
    ),
]

BOUND = re.compile(r"(<=|>=)\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)")
Bound = Annotated[str, Check("a bound in quotes, such as '<= 40' or '>= 0.9'", lambda text: _bound(text) is not None)]


def _bound(text: str) -> tuple[str, float] | None:
    found = BOUND.fullmatch(text.strip())
    try:
        return None if found is None else (found[1], float(found[2]))
    except ValueError:  # 1.2.3
        return None


def excess(bound: str, figure: float) -> float:
    """How far a figure lies beyond a bound such as `<= 40`; 0 or less where it keeps it."""
    relation, limit = _bound(bound) or ("<=", math.nan)
    return figure - limit if relation == "<=" else limit - figure


@dataclass(frozen=True)
class Sampler:
    """Who proposes trials; named and seeded, so that a search can be repeated.

    Attributes:
        name: one of Optuna's samplers: `tpe` (tree-structured Parzen estimator), `gp` (Gaussian process), `nsga2` and
            `nsga3` (genetic), `qmc` (quasi-random) or `random`.
        seed: of its random numbers.
    """

    name: Literal["tpe", "gp", "nsga2", "nsga3", "qmc", "random"] = "tpe"
    seed: Seed = 0


PRUNES = counts_when("name is median or halving", lambda pruner: pruner.name != "none")


@dataclass(frozen=True)
class Pruner:
    """Who ends poor trials early, by one metric that every epoch reports, whatever the objectives are.

    Attributes:
        name: `median` ends what is worse than half of the others were; `halving` keeps the best of each rung.
        metric: what it looks at; the only objective by default, where every epoch reports that.
        direction: of the metric; that of the objective of this name by default.
        warmup_epochs: epochs in which no trial is ended.
    """

    name: Literal["median", "halving", "none"] = "median"
    metric: EpochMetric | None = field(default=None, metadata=PRUNES)
    direction: Direction | None = field(default=None, metadata=PRUNES)
    warmup_epochs: NotNegative = field(default=5, metadata=PRUNES)


@dataclass(frozen=True)
class Search:
    """A search over the options and training of one model.

    Attributes:
        model: label of the model.
        trials: proposals in all.
        objectives: metric -> direction; with several, the result is a Pareto set.
        space: what is searched, by keys of the model and of its training.
        constraints: metric -> bound, such as `valid/ece: "<= 0.02"`. The sampler learns from proposals beyond a bound
            where to look, and the Pareto set holds none of them.
        try_first: points with which the search begins, each a mapping from keys of the space to values; keys that one
            leaves out are proposed.
        warm_start: names of earlier searches in the same home, or keys of trials, whose best points are tried next.
        promising: of the Pareto set, how many are trained again with the study's further seeds.
        pruner: None where no trial is cut short; otherwise its metric and direction are always set.
    """

    model: str
    trials: AtLeastOne
    objectives: Mapping[Metric, Direction]
    space: Space
    sampler: Sampler = Sampler()
    pruner: Pruner | None = None
    promising: AtLeastOne = 6
    constraints: Mapping[Metric, Bound] = field(default_factory=dict)
    try_first: tuple[Mapping[str, Any], ...] = ()
    warm_start: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """What is not used is left out, so that a search keeps its key when something new can be said of searches."""
        plain = {item.name: to_plain(getattr(self, item.name)) for item in fields(self)}
        unused = [name for name in ("constraints", "try_first", "warm_start") if not plain[name]]
        return {name: value for name, value in plain.items() if name not in unused} | {"space": self.space.to_plain()}


def read_search(raw: Any, models: Mapping[str, ModelChoice], labels: list[str], problems: Problems) -> Search | None:
    """The `search:` of a study; `labels` also has the models that turned out unusable."""
    path: KeyPath = ("search",)
    mapping = problems.expect_mapping(raw, path, [item.name for item in fields(Search)])
    if mapping is None:
        return None
    for name in ("trials", "objectives", "space"):
        if mapping.get(name) is None:
            problems.add((*path, name), f"is missing: {MISSING[name]}")
    trials = _given("trials", AtLeastOne, mapping, problems)
    objectives = _given("objectives", dict[Metric, Direction], mapping, problems)
    if objectives == {}:
        problems.add((*path, "objectives"), given={}, allowed="at least one metric, such as valid/accuracy: maximize")
    sampler = convert(Sampler, _named(mapping.get("sampler")), (*path, "sampler"), problems)
    pruner = _read_pruner(mapping.get("pruner"), objectives, problems)
    model = _read_model(mapping.get("model"), models, labels, problems)
    choice = models.get(model)
    space = Space()
    if mapping.get("space") is not None:
        options, training = (choice.options, choice.training) if choice else (None, None)
        space = read_space(mapping["space"], options, training, (*path, "space"), problems)
    promising = convert(AtLeastOne, mapping.get("promising", Search.promising), (*path, "promising"), problems)
    constraints = convert(dict[Metric, Bound], mapping.get("constraints") or {}, (*path, "constraints"), problems)
    first = convert(list[dict[str, Any]], mapping.get("try_first") or [], (*path, "try_first"), problems)
    earlier = convert(list[str], mapping.get("warm_start") or [], (*path, "warm_start"), problems)
    for place, point in enumerate([] if first is FAILED else first):
        _check_point(point, space, (*path, "try_first", place), problems)
    if problems.found:
        return None
    return Search(
        model, trials, objectives, space, sampler, pruner, promising, constraints, tuple(first), tuple(earlier)
    )


def _check_point(point: Mapping[str, Any], space: Space, path: KeyPath, problems: Problems) -> None:
    """A point to begin with must lie in the space, and say nothing of keys that do not count there."""
    parameters = {parameter.key: parameter for parameter in space.parameters}
    for key, value in point.items():
        if key not in parameters:
            hint = did_you_mean(key, list(parameters))
            problems.add((*path, key), "is no key of the space", allowed=", ".join(parameters), hint=hint)
        elif not parameters[key].can_be(value):
            problems.add((*path, key), given=value, allowed=f"a value of its space: {parameters[key].bounds()}")
        elif not _may_count(parameters[key], point, space):
            problems.add((*path, key), f"does not count at this point: it is sampled when {dict(parameters[key].when)}")


def _may_count(parameter: Parameter, point: Mapping[str, Any], space: Space) -> bool:
    """Whether a key is sampled at a point; what the point leaves open may still turn out right for it."""
    open_keys = {own.key for own in space.parameters} - point.keys()
    settled = {key: values for key, values in parameter.when.items() if key not in open_keys}
    return space.is_active(replace(parameter, when=settled), dict(point))


MISSING = {
    "trials": "expected a whole number >= 1",
    "objectives": "expected metrics and directions, such as {valid/accuracy: maximize}",
    "space": "expected keys and ranges, such as {training.learning_rate: {float: [1e-4, 1e-2], log: true}}",
}


def _given(name: str, kind: Any, mapping: Mapping[str, Any], problems: Problems) -> Any:
    return FAILED if mapping.get(name) is None else convert(kind, mapping[name], ("search", name), problems)


def _named(raw: Any) -> Any:
    """`sampler: tpe` is short for `sampler: {name: tpe}`."""
    return {"name": raw} if isinstance(raw, str) else raw


def _read_pruner(raw: Any, objectives: Any, problems: Problems) -> Pruner | None:
    """A pruner without a metric takes the only objective; one without a direction takes that of its metric."""
    if raw is None:
        return None
    path: KeyPath = ("search", "pruner")
    converted = convert(Pruner, _named(raw), path, problems)
    if converted is FAILED:
        return None
    pruner: Pruner = converted
    if pruner.name == "none" or objectives is FAILED:
        return None
    metric = pruner.metric
    if metric is None:
        candidates = [name for name in objectives if names.is_of_epochs(name)]
        if len(objectives) != 1 or not candidates:
            problems.add(
                (*path, "metric"), "is missing: a pruner looks at one metric of every epoch, such as valid/nll"
            )
            return None
        metric = candidates[0]
    direction = pruner.direction or objectives.get(metric)
    if direction is None:
        problems.add((*path, "direction"), f"is missing: shall {metric} be maximized or minimized?")
        return None
    return replace(pruner, metric=metric, direction=direction)


def _read_model(raw: Any, models: Mapping[str, ModelChoice], labels: list[str], problems: Problems) -> str:
    path: KeyPath = ("search", "model")
    if raw is not None:
        if raw not in labels:
            known = ", ".join(labels) or "none"
            problems.add(path, given=raw, allowed=f"one of the study's models: {known}", hint=did_you_mean(raw, labels))
        return str(raw)
    candidates = [label for label, choice in models.items() if choice.family == "nbsr"]
    if len(candidates) == 1:
        return candidates[0]
    if len(models) == len(labels) and labels:  # else the culprit may be a model that is itself a problem
        why = f"several are NBSR: {', '.join(candidates)}" if candidates else "none of the models is NBSR"
        problems.add(path, f"is missing: {why}; name one of {', '.join(labels)}")
    return ""
