"""A trial: one model, one seed, one set of options, and keys that say whether it was trained and judged before.

Equal keys, equal results: a study that is run again, or another one that shares trials with it, reuses them; after a
change of an option, of the data, of a file that the options name or of the code a trial runs anew. `keys` says what
counts for which of its two keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbsr_core.errors import NbsrError
from nbsr_platform.study.options import to_plain
from nbsr_platform.study.study import Study
from nbsr_platform.trials.keys import (
    figures_key,
    judging_code,
    lineage_key,
    named_files,
    place_of,
    rounding_of,
    training_code,
    weights_key,
)


class StaleError(NbsrError, RuntimeError):
    """What a trial's key speaks of has changed since the study began: its result would stand under a wrong key."""


@dataclass(frozen=True)
class Trial:
    """All that a worker needs to know, as plain values that any process can rebuild.

    Attributes:
        label: the model's name in the study; two labels may share a kind.
        data_fingerprint: hash of the data itself, so that changed files change the key.
        code: fingerprint of the code that trains it, see `keys.training_code`.
        judging_code: fingerprint of the code that judges it, see `keys.judging_code`.
        files: hashes of the files that its options name, by the options' names.
        rounding: what changes the last digits, where results are to be told apart by it; empty otherwise.
        proposal: number of the search's proposal that this trial is, or None in a grid.
        beside: folder of the study file, in which the domain's module may stand.
        folder: the same as it was when the study ran; paths below it enter the key without it, so that a project that
            was moved, or sent to a cluster, has the same keys.
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
    judging_code: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    rounding: Mapping[str, str] = field(default_factory=dict)
    proposal: int | None = None
    beside: str | None = None
    folder: str | None = None

    @property
    def weights_key(self) -> str:
        """Trials with the same one learn the same, and differ at most in how they are judged."""
        return weights_key(self)

    @property
    def lineage_key(self) -> str:
        """Trials with the same one differ at most in their number of epochs, and in how they are judged."""
        return lineage_key(self)

    @property
    def key(self) -> str:
        """Trials with the same one have the same result."""
        return figures_key(self)

    @property
    def name(self) -> str:
        """As it shows in MLflow: what a person would call it."""
        number = "" if self.proposal is None else f" #{self.proposal}"
        return f"{self.label}{number} seed {self.seed}"


def data_fingerprint(study: Study) -> str:
    """Hash of the study's data as seed 0 sees it: the splits of other seeds follow from the same source."""
    return study.domain_object.fingerprint(study.data)


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
    choice, place = study.models[label], place_of(study)
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
        code=training_code(study.domain, place),
        judging_code=judging_code(study.domain, place),
        files={**named_files(study.data, ("data",)), **named_files(options)},
        rounding=rounding_of(study),
        proposal=proposal,
        beside=place,
        folder=place,
    )
