"""A trial: one model, one seed, one set of options, and a key that says whether it was done before.

The key is a hash of all that determines the result. Equal keys, equal results: a study that is run again, or another
one that shares trials with it, reuses them; after a change of an option, of the data or of the code it runs anew.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import nbsr_core
from nbsr_core.domains.domain import find_domain
from nbsr_platform.options import to_plain
from nbsr_platform.study import Study

# Parts of the core that show results but do not make them.
NOT_DECISIVE = {"figures.py", "frontier_figure.py"}
SOURCES = {".py", ".c", ".h"}


@dataclass(frozen=True)
class Trial:
    """All that a worker needs to know, as plain values that any process can rebuild.

    Attributes:
        label: the model's name in the study; two labels may share a kind.
        data_fingerprint: hash of the data itself, so that changed files change the key.
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
            "code": code_version(self.domain, self.beside),
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
    """Hash of the source that a trial runs: the core, and the domain's own package where that is somebody else's."""
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
    source = Path(inspect.getfile(type(found)))
    files.setdefault(f"domain/{source.name}", source)
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name].read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def data_fingerprint(study: Study) -> str:
    """Hash of the study's data as seed 0 sees it: the splits of other seeds follow from the same source."""
    return study.domain_object.fingerprint(study.data)


def study_key(study: Study, fingerprint: str) -> str:
    """What makes a study the same study: all that is in it but where it runs, its data, and the code it runs."""
    content = {name: value for name, value in study.to_dict().items() if name != "resources"}
    decisive = {"study": content, "data_fingerprint": fingerprint, "code": code_version(study.domain, _place(study))}
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
    return Trial(
        study=study.name,
        domain=study.domain,
        data=to_plain(study.data),
        data_fingerprint=fingerprint,
        label=label,
        kind=choice.kind,
        family=choice.family,
        options=to_plain(choice.options if options is None else options),
        training=to_plain(choice.training if training is None else training),
        evaluation=to_plain(study.evaluation),
        seed=seed,
        proposal=proposal,
        beside=_place(study),
    )


def _place(study: Study) -> str | None:
    return None if study.folder is None else str(study.folder)
