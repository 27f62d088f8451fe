"""A trial: one model, one seed, one set of options, and a key that says whether it was done before.

The key is a hash of all that determines the result. Equal keys, equal results: a study that is run again, or another
one that shares trials with it, reuses them; after a change of an option, of the data, of a file that the options name
or of the code it runs anew. What only changes the last digits (versions of libraries, threads, workers) is written
down with the result, and part of the key for those who ask for that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import nbsr_core
from nbsr_core.domains.domain import SHIPPED, find_domain
from nbsr_core.errors import NbsrError
from nbsr_core.sources import checksum, code_behind, naming_files
from nbsr_platform.environment import rounding
from nbsr_platform.options import to_plain
from nbsr_platform.study import Study

# Parts of the core that show results but do not make them.
NOT_DECISIVE = {"figures.py", "frontier_figure.py"}
SOURCES = {".py", ".c", ".h", ".toml"}


class StaleError(NbsrError, RuntimeError):
    """What a trial's key speaks of has changed since the study began: its result would stand under a wrong key."""


@dataclass(frozen=True)
class Trial:
    """All that a worker needs to know, as plain values that any process can rebuild.

    Attributes:
        label: the model's name in the study; two labels may share a kind.
        data_fingerprint: hash of the data itself, so that changed files change the key.
        code: hash of the source that it runs, see `code_version`.
        files: hashes of the files that its options name, by the options' names.
        rounding: what changes the last digits, where results are to be told apart by it; empty otherwise.
        proposal: number of the search's proposal that this trial is, or None in a grid.
        beside: folder of the study file, in which the domain's module may stand.
    """

    study: str
    domain: str
    data: Mapping[str, Any]
    data_fingerprint: str
    label: str
    kind: str
    family: str
    options: Mapping[str, Any]
    training: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    seed: int
    code: str
    files: Mapping[str, str] = field(default_factory=dict)
    rounding: Mapping[str, str] = field(default_factory=dict)
    proposal: int | None = None
    beside: str | None = None

    @cached_property
    def key(self) -> str:
        """16 hex digits; the study's name and place, the label and who proposed the trial do not count."""
        decisive = {
            "domain": self.domain,
            "data": self.data,
            "data_fingerprint": self.data_fingerprint,
            "kind": self.kind,
            "options": self.options,
            "training": self.training,
            "evaluation": self.evaluation,
            "seed": self.seed,
            "code": self.code,
            "files": self.files,
            "rounding": self.rounding,
        }
        return hashlib.sha256(canonical(decisive).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """As it shows in MLflow: what a person would call it."""
        number = "" if self.proposal is None else f" #{self.proposal}"
        return f"{self.label}{number} seed {self.seed}"


def canonical(value: Any) -> str:
    """JSON with sorted keys, so that equal content gives equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


@cache
def code_version(domain: str, beside: str | None = None) -> str:
    """Hash of the source that a trial runs: the core, and one's own domain with all that it imports."""
    core = Path(nbsr_core.__file__).parent
    sources = (path for path in core.rglob("*") if path.suffix in SOURCES and path.name not in NOT_DECISIVE)
    files = {f"core/{path.relative_to(core)}": path for path in sources}
    shipped = core / "domains"
    found = find_domain(domain, beside)
    involved = {domain, *found.builds_on, "base", "domain", "tabular", "__init__"}
    for name in [name for name in files if name.startswith("core/domains/")]:
        # Of the shipped domains only those involved count: a change in vision does not undo medical's results.
        owner = Path(name).relative_to("core/domains").parts[0].removesuffix(".py")
        if owner not in involved and (shipped / owner).exists():
            del files[name]
    if domain not in SHIPPED:
        files |= {f"domain/{name}": path for name, path in code_behind(type(found).__module__).items()}
    return checksum(files)


def named_files(options: Any, path: tuple[str, ...] = ()) -> dict[str, str]:
    """Hashes of the files that options name (weights, code of one's own), by the options' names.

    A file that is not there has none: whoever needs it says so.
    """
    found: dict[str, str] = {}
    for place, part in naming_files(options, path):
        there = {name: file for name, file in part.decisive_files().items() if file.is_file()}
        found |= {".".join((*place, name)): checksum({name: file}) for name, file in there.items()}
    return found


def data_fingerprint(study: Study) -> str:
    """Hash of the study's data as seed 0 sees it: the splits of other seeds follow from the same source."""
    return study.domain_object.fingerprint(study.data)


def study_key(study: Study, fingerprint: str) -> str:
    """What makes a study the same study: all that is in it but where it runs, its data, and the code it runs."""
    content = {name: value for name, value in study.to_dict().items() if name != "resources"}
    files = [named_files(part) for part in (study.data, *(choice.options for choice in study.models.values()))]
    decisive = {
        "study": content,
        "data_fingerprint": fingerprint,
        "code": code_version(study.domain, _place(study)),
        "files": files,
        "rounding": _rounding(study),
    }
    return hashlib.sha256(canonical(decisive).encode()).hexdigest()[:12]


def grid(study: Study, fingerprint: str) -> list[Trial]:
    """The trials of a study without search: every model with every seed, all models of one seed together."""
    return [make_trial(study, label, seed, fingerprint) for seed in study.seeds for label in study.models]


def make_trial(
    study: Study,
    label: str,
    seed: int,
    fingerprint: str,
    *,
    options: Any = None,
    training: Any = None,
    proposal: int | None = None,
) -> Trial:
    """A trial of one of the study's models, with its own options unless others are given."""
    choice = study.models[label]
    options = choice.options if options is None else options
    return Trial(
        study=study.name,
        domain=study.domain,
        data=to_plain(study.data),
        data_fingerprint=fingerprint,
        label=label,
        kind=choice.kind,
        family=choice.family,
        options=to_plain(options),
        training=to_plain(choice.training if training is None else training),
        evaluation=to_plain(study.evaluation),
        seed=seed,
        code=code_version(study.domain, _place(study)),
        files={**named_files(study.data, ("data",)), **named_files(options)},
        rounding=_rounding(study),
        proposal=proposal,
        beside=_place(study),
    )


def _rounding(study: Study) -> dict[str, str]:
    return rounding(study.resources) if study.resources.same_environment else {}


def _place(study: Study) -> str | None:
    return None if study.folder is None else str(study.folder)
