"""A study: which models to train on what, how often, how, and where. A person writes it; everything else follows.

Checking is strict and complete: whatever is wrong with a file is said at once, each with its place, before anything
runs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nbsr_core.domains.domain import Domain, find_domain
from nbsr_core.learning.config import TrainingConfig
from nbsr_core.options.specs import EvaluationOptions
from nbsr_platform.base.credentials import command_line
from nbsr_platform.study.options import FAILED, convert, to_plain
from nbsr_platform.study.paper import Paper, read_paper
from nbsr_platform.study.problems import Problem, Problems, StudyError
from nbsr_platform.study.search_options import Pruner, Sampler, Search, read_search
from nbsr_platform.study.sections import ModelChoice, Resources, read_domain, read_models, read_name, read_seeds
from nbsr_platform.study.shipped import find_study, shipped_name
from nbsr_platform.study.space import TRAINING
from nbsr_platform.study.variants import WHOLE, has_variants, variants_of
from nbsr_platform.study.yaml_file import Document, Override, dump, forget, holds, locate, read

__all__ = [
    "Collection",
    "ModelChoice",
    "Paper",
    "Problem",
    "Pruner",
    "Resources",
    "Sampler",
    "Search",
    "Study",
    "StudyError",
    "load",
]

KEYS = (
    *("name", "question", "domain", "data", "seeds", "training", "evaluation", "models", "paper", "resources"),
    *("reference", "search", "variants"),
)
COLLECTION_KEYS = ("name", "question", "include")


@dataclass(frozen=True)
class Study:
    """A study, checked and resolved.

    Attributes:
        domain: a shipped name, or `package.module:ClassName`; the module may stand beside the file.
        data: options of the domain's data.
        models: by label, in the order of the file.
        paper: published figures to show beside those of the models.
        reference: label of the model that all others are compared with; None compares NBSR with every baseline.
        path: the file it came from, if any.
        settings: the `key=value` overrides on top of the file.
        source: what was written, as plain values, and where; None for a study that was put together in Python.
    """

    name: str
    domain: str
    data: Any
    models: Mapping[str, ModelChoice]
    seeds: tuple[int, ...] = (0,)
    question: str | None = None
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    resources: Resources = field(default_factory=Resources)
    search: Search | None = None
    paper: Paper | None = None
    reference: str | None = None
    path: Path | None = field(default=None, compare=False)
    settings: tuple[str, ...] = field(default=(), compare=False)
    source: Document | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def load(path: str | Path, overrides: Sequence[str] = ()) -> Study:
        """A study from its file, with `key=value` overrides on top; raises a `StudyError` with all that is wrong."""
        found = load(path, overrides)
        if isinstance(found, Collection):
            what = "holds several studies, not one; open it with nbsr_platform.load"
            raise StudyError([Problem(str(path), what=what)])
        return found

    @staticmethod
    def from_dict(values: Mapping[str, Any], source: str = "<dict>") -> Study:
        """A study from plain values as they would stand in a file; paths are relative to the current folder."""
        return read_study(Document(values, Problems(source, folder=Path.cwd())), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values with every default spelled out; `Study.from_dict` gives the same study back."""
        models = {
            label: {"kind": choice.kind, **to_plain(choice.options), "training": to_plain(choice.training)}
            for label, choice in self.models.items()
        }
        return {
            "name": self.name,
            "question": self.question,
            "domain": self.domain,
            "data": to_plain(self.data),
            "seeds": list(self.seeds),
            "evaluation": to_plain(self.evaluation),
            "models": models,
            "resources": to_plain(self.resources),
            **({"search": self.search.to_plain()} if self.search else {}),
            **({"paper": to_plain(self.paper)} if self.paper else {}),
            **({"reference": self.reference} if self.reference else {}),
        }

    def to_yaml(self) -> str:
        """The resolved study as a file that runs."""
        return dump(self.to_dict())

    @property
    def command(self) -> str:
        """How somebody runs the same: the file with all that was set on top of it."""
        if self.path is None:
            return f"nbsr run {shlex.quote(f'{self.name}.yaml')}  # with the study file below"
        settings = [word for text in self.settings for word in ("--set", text)]
        return command_line(["nbsr", "run", shipped_name(self.path) or str(self.path), *settings])

    @cached_property
    def domain_object(self) -> Domain:
        """The domain itself."""
        return find_domain(self.domain, self.folder)

    @property
    def studies(self) -> tuple[Study, ...]:
        """Itself, so that a study can stand where a collection may stand too."""
        return (self,)

    @property
    def folder(self) -> Path | None:
        """Where the file stands, and with it perhaps the module of its domain."""
        return None if self.path is None else self.path.absolute().parent


@dataclass(frozen=True)
class Collection:
    """Studies that are run together: a file that includes others, or the variants of one."""

    name: str
    question: str | None
    studies: tuple[Study, ...]
    path: Path | None = field(default=None, compare=False)


def load(path: str | Path, overrides: Sequence[str] = (), *, with_modules: bool = True) -> Study | Collection:
    """A study or a collection from its file.

    Args:
        path: the file, or the name of a shipped study (`medical/quickstart`).
        overrides: `key=value` with a dotted key and a value in YAML. On a collection each goes to every study that has
            such a key, and it is an error if none has.
        with_modules: whether the study may name modules that stand around the file; not where that is in a store.
    """
    path = find_study(path)
    document = read(path)
    if _is_collection(document):
        return _CollectionReader(overrides).read(document, path)
    several = has_variants(document)
    studies = read_studies(document, path if with_modules else None, [Override(text) for text in overrides])
    return Collection(document.value["name"], studies[0].question, tuple(studies), path) if several else studies[0]


def read_studies(document: Document, path: Path | None, overrides: Sequence[Override]) -> list[Study]:
    """The study that a document describes, or all its variants; what is wrong with several of these is said once."""
    several = has_variants(document)
    for override in overrides:
        if not several or override.key.split(".")[0] in WHOLE:
            _override(document, override)
    settings = tuple(override.text for override in overrides)
    if not several:
        return [replace(read_study(document, path), settings=settings)]
    studies, found = [], document.problems.found
    for variant in variants_of(document):
        for override in overrides:
            if override.key.split(".")[0] not in WHOLE:
                _override(variant, override)
        try:
            studies.append(replace(read_study(variant, path), settings=settings))
        except StudyError as error:
            found += [problem for problem in error.problems if problem not in found]
    document.problems.stop_if_any()
    return studies


def _override(document: Document, override: Override) -> None:
    """Take over what the command line says. Of `training` it holds for all models: their own values go."""
    document.override(override)
    top, _, key = override.key.partition(".")
    models = document.value.get("models") if isinstance(document.value, dict) else None
    if top == TRAINING and isinstance(models, dict):
        given = override.value if isinstance(override.value, dict) else {}
        for entry in models.values():
            for name in [key] if key else list(given):
                forget(entry, (TRAINING, *name.split(".")))


def read_study(document: Document, path: Path | None) -> Study:
    """Check a whole document and make the study of it."""
    problems = document.problems
    if document.value is None:
        problems.stop_if_any()
    values = problems.expect_mapping(document.value, (), KEYS)
    if values is None:
        raise StudyError(problems.found)
    if "variants" in values:
        problems.add(("variants",), "several studies cannot be read as one; open the file with nbsr_platform.load")
    name = read_name(values, problems)
    question = convert(str | None, values.get("question"), ("question",), problems)
    domain = read_domain(values.get("domain"), problems, None if path is None else path.parent)
    data = FAILED if domain is None else convert(domain.data, values.get("data"), ("data",), problems)
    seeds = read_seeds(values.get("seeds", [0]), problems)
    training = convert(TrainingConfig, values.get("training"), ("training",), problems)
    evaluation = convert(EvaluationOptions, values.get("evaluation"), ("evaluation",), problems)
    resources = convert(Resources, values.get("resources"), ("resources",), problems)
    models = read_models(values.get("models"), domain, training, problems)
    search = None
    if values.get("search") is not None:
        labels = list(values["models"]) if isinstance(values.get("models"), Mapping) else []
        search = read_search(values["search"], models, labels, problems)
        if search is not None and search.space.picks_eta and evaluation is not FAILED and evaluation.eta is not None:
            what = "is picked from the frontier, but evaluation.eta fixes it; drop one"
            problems.add(("search", "space", "eta"), what, given=evaluation.eta)
    paper = read_paper(values.get("paper"), models, values.get("search") is not None, problems)
    reference = convert(str | None, values.get("reference"), ("reference",), problems)
    if models and reference is not None and reference is not FAILED and reference not in models:
        problems.add(("reference",), f"must be a model of the study ({', '.join(models)})", given=reference)
    problems.stop_if_any()
    parts = (data, models, seeds, question, evaluation, resources, search, paper, reference, path)
    return Study(name, values["domain"], *parts, source=document)


def _is_collection(document: Document) -> bool:
    return isinstance(document.value, dict) and "include" in document.value


class _CollectionReader:
    """Reads a tree of files; remembers which overrides found a study, and which files it is in the middle of."""

    def __init__(self, overrides: Sequence[str]) -> None:
        self.overrides = [Override(text) for text in overrides]
        self.used: set[str] = set()
        self.done: dict[Path, list[Study]] = {}

    def read(self, document: Document, path: Path) -> Collection:
        problems = document.problems
        for override in self.overrides:
            if override.key.split(".")[0] in COLLECTION_KEYS:
                document.override(override)
                self.used.add(override.text)
        name, studies = self._members(document, path, (path.resolve(),))
        unused = [override for override in self.overrides if override.text not in self.used]
        if not problems.found:
            problems.found += [
                Problem(override.place, override.key, "no study of this collection has such a key")
                for override in unused
            ]
        problems.stop_if_any()
        return Collection(name, document.value.get("question"), tuple(studies), path)

    def _members(self, document: Document, path: Path, trail: tuple[Path, ...]) -> tuple[Any, list[Study]]:
        problems, values = document.problems, document.value
        for key in values:
            if key in KEYS and key not in COLLECTION_KEYS:
                problems.add(
                    (key,), "a file that includes others says no more than name and question; drop one of them"
                )
            elif key not in COLLECTION_KEYS:
                problems.unknown_key((key,), COLLECTION_KEYS)
        name = read_name(values, problems)
        convert(str | None, values.get("question"), ("question",), problems)
        included = convert(list[str], values["include"], ("include",), problems)
        if included == []:
            problems.add(("include",), given=[], allowed="a list of study files")
        studies: dict[tuple[Path | None, str], Study] = {}
        for index, item in enumerate([] if included is FAILED else included):
            target = Path(os.path.normpath(path.parent / item))
            if target.resolve() in trail:
                problems.add(("include", index), f"includes itself: {path} includes {target}")
                continue
            try:
                members = self._include(target, trail)
            except StudyError as error:
                if not target.is_file():
                    problems.add(("include", index), str(error))
                else:
                    problems.found += error.problems
                continue
            studies |= {(study.path, study.name): study for study in members}
        _check_names(list(studies.values()), problems)
        return name, list(studies.values())

    def _include(self, path: Path, trail: tuple[Path, ...]) -> list[Study]:
        real = path.resolve()
        if real in self.done:
            return self.done[real]
        document = read(path)
        if _is_collection(document):
            _, studies = self._members(document, path, (*trail, real))
            document.problems.stop_if_any()
        else:
            studies = read_studies(document, path, [])
            known = [{**study.to_dict(), "training": to_plain(TrainingConfig())} for study in studies]
            fitting = [
                override
                for override in self.overrides
                if override.key not in COLLECTION_KEYS
                and any(holds(values, locate(values, override.key)) for values in known)
            ]
            if fitting:
                studies = read_studies(read(path), path, fitting)
                self.used |= {override.text for override in fitting}
        self.done[real] = studies
        return studies


def _check_names(studies: list[Study], problems: Problems) -> None:
    """Results are kept by the study's name, so two studies of one collection cannot share it."""
    first: dict[str, Study] = {}
    for study in studies:
        other = first.setdefault(study.name, study)
        if other is not study:
            problems.add(
                ("include",), f"two studies are called {study.name!r}: {other.path} and {study.path}; rename one"
            )
