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
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.domains.base import Split, Splits
from nbsr_core.domains.medical import kaggle
from nbsr_core.domains.medical.knowledge import knowledge, system_of, systems
from nbsr_core.domains.medical.partition import balanced, distinct, stratified, unseen
from nbsr_core.domains.medical.profiles import SymptomProfiles
from nbsr_core.errors import InputError
from nbsr_core.graph import DecisionGraph

Source = Literal["embedded", "kaggle"]
NoiseScheme = Literal["fixed", "fresh"]
SplitRule = Literal["paper", "distinct"]

HELD_OUT = 0.2
"""Share of rows (`paper`) or distinct rows (`distinct`) for validation, and in `distinct` again for the test."""

MOST_HELD_OUT = 0.4

VALID_ROWS = 4000
"""Validation rows at least: a model errs on two or three of a hundred, and a temperature needs errors to learn from."""


@dataclass(frozen=True)
class MedicalData:
    """Which patients, with how much noise, split how.

    Attributes:
        source: "embedded" draws synthetic patients; "kaggle" reads the files. Neither ever stands in for the other.
        root: folder that holds `medical/Training.csv` and `medical/Testing.csv`; for "kaggle" only, which without it
            looks in the folder that the environment variable NBSR_DATA names.
        noise: probability that a symptom is flipped, in every split.
        noise_scheme: training rows are flipped once ("fixed", the paper's) or anew in each epoch ("fresh": training
            rows are then clean, and the splits' `augment` flips them). Validation and test rows are always flipped
            once, from the seed.
        split: "paper" tests on Testing.csv and validates on rows of Training.csv, which share distinct rows with
            training (as the test rows do), but not the noise. "distinct" cuts the distinct rows of both files, of each
            disease about 3/5, 1/5, 1/5: no row is in two splits; test rows count once, training rows are repeated
            until all diseases are as frequent as in Training.csv. Embedded patients are drawn one by one; "distinct"
            leaves out those for validation and test whose symptoms were drawn before.
        held_out: share of the rows of Training.csv ("paper") or of all distinct rows ("distinct", and as many again
            for the test) that validation takes from training; for "kaggle" only. 0 trains on every row of
            Training.csv, as the paper does, and validates on other noise in the same rows.
        draws: noise draws of all test rows in `extra["noise_draws"]`, one draw after the other; 0 for none.
        train_patients: how many to generate ("embedded").
        valid_patients: likewise.
        test_patients: likewise.
    """

    source: Source = "embedded"
    root: str | None = None
    noise: float = 0.05
    noise_scheme: NoiseScheme = "fixed"
    split: SplitRule = "paper"
    held_out: float = HELD_OUT
    draws: int = 50
    train_patients: int = 4920
    valid_patients: int = VALID_ROWS
    test_patients: int = 1000

    def __post_init__(self) -> None:
        for key, kind in (("source", Source), ("noise_scheme", NoiseScheme), ("split", SplitRule)):
            if getattr(self, key) not in get_args(kind):
                raise InputError(f"{key} must be one of {', '.join(get_args(kind))}, got {getattr(self, key)!r}")
        if isinstance(self.noise, bool) or not isinstance(self.noise, int | float) or not 0 <= self.noise <= 0.5:
            raise InputError(f"noise must be a probability between 0 and 0.5, got {self.noise!r}")
        object.__setattr__(self, "noise", float(self.noise))
        share = self.held_out
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= MOST_HELD_OUT:
            raise InputError(f"held_out must be a share between 0 and {MOST_HELD_OUT}, got {share!r}")
        object.__setattr__(self, "held_out", float(share))
        if self.split == "distinct" and not share:
            raise InputError("held_out must be above 0 with `split: distinct`, which shares no row; got 0")
        for key, least in (("draws", 0), ("train_patients", 1), ("valid_patients", 1), ("test_patients", 1)):
            count = getattr(self, key)
            if isinstance(count, bool) or not isinstance(count, int) or count < least:
                raise InputError(f"{key} must be a whole number, {least} or more, got {count!r}")
        if self.root is not None and (not isinstance(self.root, str) or not self.root):
            raise InputError(f"root must be the path of a folder, got {self.root!r}")
        if self.source == "embedded" and self.root is not None:
            raise InputError(f"root is read for `source: kaggle` only, got {self.root!r} with `source: embedded`")


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
