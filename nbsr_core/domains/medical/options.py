"""What a study says about its patients; checked without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from nbsr_core.errors import InputError
from nbsr_core.files import path_except
from nbsr_core.options.conditions import counts_when

Source = Literal["embedded", "kaggle"]
NoiseScheme = Literal["fixed", "fresh"]
SplitRule = Literal["paper", "distinct"]

HELD_OUT = 0.2
"""Share of rows (`paper`) or distinct rows (`distinct`) for validation, and in `distinct` again for the test."""

MOST_HELD_OUT = 0.4

VALID_ROWS = 4000
"""Validation rows at least: a model errs on two or three of a hundred, and a temperature needs errors to learn from."""


GENERATED = counts_when("source is embedded", lambda data: data.source == "embedded")


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
    root: str | None = field(default=None, metadata=path_except())
    noise: float = 0.05
    noise_scheme: NoiseScheme = field(
        default="fixed", metadata=counts_when("noise is above 0", lambda data: data.noise > 0)
    )
    split: SplitRule = "paper"
    held_out: float = field(
        default=HELD_OUT, metadata=counts_when("source is kaggle", lambda data: data.source == "kaggle")
    )
    draws: int = 50
    train_patients: int = field(default=4920, metadata=GENERATED)
    valid_patients: int = field(default=VALID_ROWS, metadata=GENERATED)
    test_patients: int = field(default=1000, metadata=GENERATED)

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
