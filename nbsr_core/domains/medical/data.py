"""Patients for the medical domain: the Kaggle files, or synthetic ones from the embedded knowledge table.

The paper's figure is one noise draw of 42 rows, 41 of which are also in the training file, and that file has only
304 distinct rows among its 4,920. Hence two additions: many noise draws of the test rows (`extra["noise_draws"]`),
and a split in which no distinct row is shared (`split: distinct`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.domains.medical import kaggle
from nbsr_core.domains.medical.knowledge_table import knowledge, system_of, systems
from nbsr_core.domains.medical.options import VALID_ROWS
from nbsr_core.domains.medical.options import MedicalData as MedicalData
from nbsr_core.domains.medical.partition import balanced, distinct, stratified, unseen
from nbsr_core.domains.medical.profiles import SymptomProfiles
from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning.splits import Split, Splits


@dataclass(frozen=True, eq=False, kw_only=True)
class MedicalSplits(Splits):
    """Splits that also carry what the Bayes-optimal reference has to know.

    Attributes:
        profiles: where the clean test rows come from, for `bayes_posterior`: the knowledge table; Training.csv, row by
            row ("paper"); or all distinct rows of both files ("distinct"; it then knows the test rows, which no model
            can: measured, half a point better than knowing the training rows alone).
        noise: the probability with which the symptoms were flipped.
    """

    profiles: SymptomProfiles
    noise: float


def load(options: MedicalData, seed: int) -> MedicalSplits:
    """All splits. The seed decides on patients, cuts and noise, each on its own: more draws change nothing else."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a whole number, 0 or more, got {seed!r}")
    clean = _embedded(options, seed) if options.source == "embedded" else _kaggle(options, seed)
    valid_repeats = ceil(VALID_ROWS / len(clean.valid)) if options.noise > 0 else 1
    test_noise = _generator(seed, "test noise")
    test = _noisy(clean.test, 1, options.noise, test_noise)
    train = _noisy(clean.train, 1, options.noise, _generator(seed, "training noise"))
    fresh = options.noise_scheme == "fresh"
    return replace(
        clean,
        train=clean.train if fresh else train,
        augment=FreshNoise(options.noise) if fresh else None,
        valid=_noisy(clean.valid, valid_repeats, options.noise, _generator(seed, "validation noise")),
        test=test,
        extra={"noise_draws": _noisy(clean.test, options.draws, options.noise, test_noise)} if options.draws else {},
        source=f"{clean.source}, {options.noise:.1%} of the symptoms flipped",
    )


def flip(x: Float[Tensor, "*batch F"], rate: float, generator: torch.Generator) -> Float[Tensor, "*batch F"]:
    """The paper's clinical noise: each symptom (0 or 1) is inverted with probability `rate`."""
    hit = torch.rand(x.shape, generator=generator, device=generator.device).to(x.device) < rate
    return torch.where(hit, 1 - x, x)


@dataclass(frozen=True)
class FreshNoise:
    """`flip` with its rate; a class, so that it can be sent to a worker."""

    rate: float

    def __call__(self, x: Float[Tensor, "*batch F"], generator: torch.Generator) -> Float[Tensor, "*batch F"]:
        return flip(x, self.rate, generator)


@runtime_checkable
class NamesClasses(Protocol):
    """Anything that knows its diseases by name: splits, or a model's description of its data."""

    @property
    def class_names(self) -> Sequence[str]: ...


def graph(data: NamesClasses) -> DecisionGraph:
    """The paper's graph: the root, an expert for each of the four body systems, and below each of these one leaf."""
    owned: dict[str, list[str]] = {system: [] for system in systems()}
    for disease in data.class_names:
        owned[system_of(disease)].append(disease)
    return DecisionGraph.taxonomy({system: {f"{system}-Leaf": diseases} for system, diseases in owned.items()})


def _embedded(options: MedicalData, seed: int) -> MedicalSplits:
    table = knowledge()

    def patients(count: int, part: str) -> Split:
        return table.sample(count, _generator(seed, f"{part} patients"))

    train, valid = patients(options.train_patients, "training"), patients(options.valid_patients, "validation")
    test, how = patients(options.test_patients, "test"), ""
    if options.split == "distinct":
        valid, test = unseen(valid, [train]), unseen(test, [train, valid])
        how = " (none with the symptoms of one in another split)"
    return MedicalSplits(
        train=train,
        valid=valid,
        test=test,
        class_names=table.diseases,
        feature_names=table.symptoms,
        source=f"synthetic patients from the embedded knowledge table{how}",
        synthetic=True,
        profiles=SymptomProfiles.of_diseases(table.chance),
        noise=options.noise,
    )


def _kaggle(options: MedicalData, seed: int) -> MedicalSplits:
    files = kaggle.read(options.root)
    cut = _generator(seed, f"{options.split} split")
    if options.split == "paper":
        rows, test = files.training, files.testing
        train = valid = rows
        if options.held_out:
            kept, held_out = stratified(rows.y, [options.held_out], cut, files.diseases)
            train, valid = _rows(rows, kept), _rows(rows, held_out)
        how = f"trained on Training.csv, tested on the {len(test)} rows of Testing.csv"
    else:
        both = Split(torch.cat([files.training.x, files.testing.x]), torch.cat([files.training.y, files.testing.y]))
        rows = distinct(both, files.diseases)
        kept, held_out, tested = stratified(rows.y, [options.held_out] * 2, cut, files.diseases)
        train = balanced(_rows(rows, kept), ceil(len(files.training) / len(files.diseases)))
        valid, test = _rows(rows, held_out), _rows(rows, tested)
        how = f"{len(rows)} distinct rows, none of them in two splits"
    return MedicalSplits(
        train=train,
        valid=valid,
        test=test,
        class_names=files.diseases,
        feature_names=files.symptoms,
        source=f"Kaggle {kaggle.DATASET} ({how})",
        synthetic=False,
        profiles=SymptomProfiles.of_rows(rows.x, rows.y, len(files.diseases)),
        noise=options.noise,
    )


def _rows(split: Split, index: Tensor) -> Split:
    return Split(split.x[index], split.y[index])


def _noisy(split: Split, draws: int, noise: float, generator: torch.Generator) -> Split:
    return Split(flip(split.x.repeat(draws, 1), noise, generator), split.y.repeat(draws))


def _generator(seed: int, purpose: str) -> torch.Generator:
    digest = hashlib.sha256(f"medical, {purpose}, {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
