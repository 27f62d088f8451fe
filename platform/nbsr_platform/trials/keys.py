"""Keys: short hashes of all that determines a result, so that equal keys mean equal results.

A trial has two. The *weights key* stands for what is learned: the data, the model and its options, the training, the
seed and the code that trains. The *key* stands for the figures: the weights key, the evaluation options and the code
that judges. So a changed evaluation option finds the weights and judges them again, and nothing is trained twice.

Code counts by its meaning (`nbsr_core.code.meaning`) and by what it does (`nbsr_core.code.roles`). What only changes
the last digits (versions of libraries, threads, workers, the device) is in neither key, unless a study asks for it with
`resources.same_environment`; it is written down with each result, and a report says where results differ in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbsr_core.code.meaning import fingerprint
from nbsr_core.code.roles import library_fingerprints
from nbsr_core.code.sources import checksum, code_behind, naming_files
from nbsr_core.domains.domain import SHIPPED, find_domain
from nbsr_platform.study.sections import ModelChoice
from nbsr_platform.study.study import Study
from nbsr_platform.trials.environment import rounding

if TYPE_CHECKING:
    from nbsr_platform.trials.trial import Trial

# What a study says that makes it no other study, and what of a search may change while it goes on.
NOT_IDENTITY = {"resources", "question", "paper", "reference"}
GROWS = {"trials", "promising"}


def weights_key(trial: Trial) -> str:
    """16 hex digits for what is learned; the study's name and place, the label and who proposed it do not count."""
    return _hash(_decisive(trial))


def lineage_key(trial: Trial) -> str:
    """16 hex digits for a training whatever its length: where it can grow, trials that share it share epochs."""
    decisive = _decisive(trial)
    training = {name: value for name, value in trial.training.items() if name != "epochs"}
    return _hash({**decisive, "training": training})


def _decisive(trial: Trial) -> dict[str, Any]:
    return {
        "domain": trial.domain,
        "data": _within(trial.folder, trial.data),
        "data_fingerprint": trial.data_fingerprint,
        "kind": trial.kind,
        "options": _within(trial.folder, trial.options),
        "training": trial.training,
        "seed": trial.seed,
        "code": trial.code,
        "files": trial.files,
        "rounding": trial.rounding,
    }


def figures_key(trial: Trial) -> str:
    """16 hex digits for the whole result."""
    return _hash(
        {"weights": trial.weights_key, "evaluation": trial.evaluation, "judging_code": trial.judging_code},
    )


def study_key(study: Study, data_fingerprint: str) -> str:
    """12 hex digits for what makes a study the same study: all that is in it but where it runs and what is said about
    it, its data, and the code it runs.

    Of a search, that is what its proposals mean: a search that is asked for more proposals, or for more seeds of those
    that are worth it, is the same search, and grows.
    """
    files = [named_files(part) for part in (study.data, *(choice.options for choice in _models(study).values()))]
    place = place_of(study)
    decisive = {
        "study": _within(place, _identity(study)),
        "data_fingerprint": data_fingerprint,
        "code": [training_code(study.domain, place), judging_code(study.domain, place)],
        "files": files,
        "rounding": rounding_of(study),
    }
    return _hash(decisive)[:12]


def _identity(study: Study) -> dict[str, Any]:
    """What a study says that makes it this study and no other."""
    said = {name: value for name, value in study.to_dict().items() if name not in NOT_IDENTITY}
    if study.search is not None:
        said["models"] = {label: said["models"][label] for label in _models(study)}
        said["search"] = {name: value for name, value in said["search"].items() if name not in GROWS}
        said["seeds"] = said["seeds"][:1]  # that of all proposals
    return said


def _models(study: Study) -> Mapping[str, ModelChoice]:
    """Those that a study trains: a search leaves the others alone."""
    return study.models if study.search is None else {study.search.model: study.models[study.search.model]}


@cache
def training_code(domain: str, beside: str | None = None) -> str:
    """Fingerprint of the code that trains: that of this library, and one's own domain with all that it imports.

    One's own domain counts as a whole here: nobody but its author knows which part of it judges.
    """
    trains, _ = library_fingerprints(_involved(domain, beside))
    if domain in SHIPPED:
        return trains
    own = fingerprint(code_behind(type(find_domain(domain, beside)).__module__))
    return f"{trains}-{own}"


@cache
def judging_code(domain: str, beside: str | None = None) -> str:
    """Fingerprint of the code that judges and does not train."""
    return library_fingerprints(_involved(domain, beside))[1]


def _involved(domain: str, beside: str | None) -> frozenset[str]:
    """The shipped domains whose code a domain runs."""
    return frozenset(SHIPPED.keys() & {domain, *find_domain(domain, beside).builds_on})


def named_files(options: object, path: tuple[str, ...] = ()) -> dict[str, str]:
    """Hashes of the files that options name (weights, code of one's own), by the options' names.

    Code counts by its meaning. A file that is not there has no hash: whoever needs it says so.
    """
    found: dict[str, str] = {}
    for place, part in naming_files(options, path):
        for name, file in part.decisive_files().items():
            if file.is_file():
                one = {name: file}
                found[".".join((*place, name))] = fingerprint(one) if file.suffix == ".py" else checksum(one)
    return found


def rounding_of(study: Study) -> dict[str, str]:
    """What changes the last digits, where a study wants results told apart by it; empty otherwise."""
    return rounding(study.resources) if study.resources.same_environment else {}


def place_of(study: Study) -> str | None:
    """The folder of the study file."""
    return None if study.folder is None else str(study.folder)


def canonical(value: Any) -> str:
    """JSON with sorted keys, so that equal content gives equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def in_order(value: Any) -> str:
    """JSON with keys as they were given: a domain may well see in which order its panels or groups stand."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


def _within(folder: str | None, value: Any) -> Any:
    """Plain values in which a folder, and paths below it, are relative to it."""
    if isinstance(value, Mapping):
        return {key: _within(folder, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_within(folder, item) for item in value]
    if not folder or not isinstance(value, str):
        return value
    top = os.path.normpath(folder)
    return "." if value == top else value.removeprefix(f"{top}/")


def _hash(decisive: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(decisive).encode()).hexdigest()[:16]
