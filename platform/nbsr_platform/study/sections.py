"""The parts of a study, each read on its own, so that an error in one hides none in another."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from nbsr_core.domains.domain import SHIPPED, Domain, find_domain
from nbsr_core.errors import InputError
from nbsr_core.learning.config import TrainingConfig
from nbsr_core.options.specs import Family
from nbsr_platform.study.options import FAILED, AtLeastOne, Check, NotNegative, convert
from nbsr_platform.study.problems import KeyPath, Problems, did_you_mean

MOST_SEEDS = 10_000
LARGEST_SEED = 2**32 - 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")

Name = Annotated[
    str, Check("a name of letters, digits, - and _ (100 at most)", lambda name: NAME.fullmatch(name) is not None)
]
Seed = Annotated[int, Check(f"a whole number from 0 to {LARGEST_SEED}", lambda value: 0 <= value <= LARGEST_SEED)]


@dataclass(frozen=True)
class Resources:
    """Where the trials of a study run; none of it changes what they find.

    Attributes:
        workers: processes that train one model together.
        cpus_per_worker: cores, and threads of torch, of each of them.
        gpus_per_worker: used where there are GPUs; a share of one where a trial has one worker. None takes one each if
            there are enough for all workers of a trial; 0 takes none.
        concurrency: trials at once; None for as many as there is room for.
        retries: new starts of a trial whose worker died.
        same_environment: reuse only results of the same library versions, kernels, threads and workers: they may
            differ from others in their last digits.
    """

    workers: AtLeastOne = 1
    cpus_per_worker: AtLeastOne = 1
    gpus_per_worker: Annotated[float, Check("a number >= 0", lambda value: 0 <= value < 1e6)] | None = None
    concurrency: AtLeastOne | None = None
    retries: NotNegative = 2
    same_environment: bool = False

    def __post_init__(self) -> None:
        gpus = self.gpus_per_worker or 0.0
        if gpus > 1 and not float(gpus).is_integer():
            raise InputError(f"gpus_per_worker must be a whole number where it is above 1, got {gpus!r}")
        if self.workers > 1 and not float(gpus).is_integer():
            raise InputError(f"gpus_per_worker may be a share of a GPU only with workers: 1, got {gpus!r}")


@dataclass(frozen=True)
class ModelChoice:
    """A model of a study: its label there, its kind in the domain, and how it is built and trained."""

    label: str
    kind: str
    family: Family
    options: Any
    training: TrainingConfig


def read_name(values: Mapping[str, Any], problems: Problems) -> Any:
    if values.get("name") is None:
        problems.add(("name",), "is missing: a study needs a name of letters, digits, - and _")
        return FAILED
    return convert(Name, values["name"], ("name",), problems)


def read_domain(name: Any, problems: Problems, beside: Path | None = None) -> Domain | None:
    """The domain that a study names; its module may stand in the folder `beside`."""
    allowed = f"one of {', '.join(SHIPPED)}, or package.module:ClassName"
    if not isinstance(name, str):
        if name is None:
            problems.add(("domain",), f"is missing: expected {allowed}")
        else:
            problems.add(("domain",), given=name, allowed=allowed)
        return None
    if name not in SHIPPED and ":" not in name:
        problems.add(("domain",), given=name, allowed=allowed, hint=did_you_mean(name, SHIPPED))
        return None
    try:
        domain = find_domain(name, beside)
    except InputError as error:
        reason = re.sub(r"^domain '[^']*':? ", "", str(error))
        hint = (
            "is it installed, beside the study file, or at the top of its project?" if "cannot import" in reason else ""
        )
        problems.add(("domain",), reason, given=name, hint=hint)
        return None
    if not dataclasses.is_dataclass(getattr(domain, "data", None)) or not getattr(domain, "models", None):
        problems.add(("domain",), "must have `data`, a dataclass of options, and `models`", given=name)
        return None
    return domain


def read_seeds(raw: Any, problems: Problems) -> tuple[int, ...]:
    if isinstance(raw, int) and not isinstance(raw, bool):
        if 1 <= raw <= MOST_SEEDS:
            return tuple(range(raw))
    elif isinstance(raw, list | tuple) and raw and len(raw) <= MOST_SEEDS:
        seeds: list[int] = [convert(Seed, seed, ("seeds", index), problems) for index, seed in enumerate(raw)]
        for index, seed in enumerate(seeds):
            if seed is not FAILED and seed in seeds[:index]:
                problems.add(("seeds", index), "stands twice; every seed counts once", given=seed)
        return tuple(seeds)
    allowed = f"a number of seeds (1 to {MOST_SEEDS}) or a list of different seeds (0 to {LARGEST_SEED})"
    problems.add(("seeds",), given=raw, allowed=allowed)
    return ()


def read_models(raw: Any, domain: Domain | None, training: Any, problems: Problems) -> dict[str, ModelChoice]:
    if not isinstance(raw, Mapping) or not raw:
        kinds = "" if domain is None else f" of: {', '.join(domain.models)}"
        if raw is None:
            problems.add(("models",), f"is missing: expected at least one model{kinds}")
        else:
            problems.add(("models",), given=raw, allowed=f"a mapping with at least one model{kinds}")
        return {}
    found = {str(label): _read_model(str(label), entry, domain, training, problems) for label, entry in raw.items()}
    return {label: choice for label, choice in found.items() if choice is not None}


def _read_model(label: str, raw: Any, domain: Domain | None, defaults: Any, problems: Problems) -> ModelChoice | None:
    path: KeyPath = ("models", label)
    convert(Name, label, path, problems)
    entry = problems.expect_mapping(raw, path)
    if entry is None:
        return None
    base = TrainingConfig() if defaults is FAILED else defaults
    training = convert(TrainingConfig, entry.pop("training", None), (*path, "training"), problems, base)
    named = entry.pop("kind", None)
    if domain is None:
        return None
    name = label if named is None else named
    kind = domain.models.get(name) if isinstance(name, str) else None
    if kind is None:
        kinds = f"one of {', '.join(domain.models)}"
        hint = did_you_mean(name, domain.models)
        if named is None:
            what = f"no kind of model is called {label!r}; say which it is with kind: {kinds}"
            problems.add(path, what, hint=hint)
        else:
            problems.add((*path, "kind"), given=named, allowed=kinds, hint=hint)
        return None
    options = convert(kind.options, entry, path, problems)
    if options is FAILED or training is FAILED or defaults is FAILED:
        return None
    return ModelChoice(label, name, kind.family, options, training)
