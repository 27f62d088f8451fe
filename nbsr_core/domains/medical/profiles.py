"""Bayes-optimal diagnosis where the diseases' profiles and the noise are known: the ceiling for every model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.errors import InputError

_LEAST_CHANCE = 1e-12
"""A symptom is never quite impossible or certain. Without noise, a row that no profile can produce would else leave
0 / 0; so it goes to the profile from which the fewest symptoms differ, which is the limit of vanishing noise."""

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class SymptomProfiles:
    """A mixture of profiles, each of one disease, in which symptoms are independent.

    Attributes:
        chance: [R, F] probability of each symptom; 0 or 1 where a profile is a row of a file.
        disease: [R] whose profile it is.
        weight: [R] share of patients with this profile; all sum to 1.
        num_diseases: K; a disease without a profile is never diagnosed.
    """

    chance: Float[Tensor, "R F"]
    disease: Int[Tensor, " R"]
    weight: Float[Tensor, " R"]
    num_diseases: int

    @classmethod
    def of_diseases(cls, chance: Float[Tensor, "K F"]) -> SymptomProfiles:
        """One profile a disease, all diseases alike frequent."""
        count = len(chance)
        return cls(chance.double(), torch.arange(count), torch.full((count,), 1 / count, dtype=torch.float64), count)

    @classmethod
    def of_rows(cls, x: Float[Tensor, "N F"], y: Int[Tensor, " N"], num_diseases: int) -> SymptomProfiles:
        """The distinct rows of each disease, weighted by how often they occur."""
        rows, counts = torch.cat([y[:, None].double(), x.double()], dim=1).unique(dim=0, return_counts=True)
        return cls(rows[:, 1:], rows[:, 0].long(), counts.double() / len(y), num_diseases)


def bayes_posterior(x: Float[Tensor, "N F"], profiles: SymptomProfiles, noise: float) -> Float[Tensor, "N K"]:
    """P(disease | x) in float64, where each symptom of x (0 or 1) was flipped with probability `noise`.

    A symptom that shows with probability p is seen with p (1 - noise) + (1 - p) noise.
    """
    if x.shape[1] != profiles.chance.shape[1]:
        raise InputError(f"x must have the profiles' {profiles.chance.shape[1]} symptoms, got {x.shape[1]}")
    seen = profiles.chance * (1 - noise) + (1 - profiles.chance) * noise
    present = seen.clamp(_LEAST_CHANCE, 1 - _LEAST_CHANCE).log()
    absent = (1 - seen).clamp(_LEAST_CHANCE, 1 - _LEAST_CHANCE).log()
    of_disease = [profiles.disease == k for k in range(profiles.num_diseases)]
    posteriors = []
    for rows in x.double().split(_ROWS_AT_ONCE):
        score = rows @ present.T + (1 - rows) @ absent.T + profiles.weight.log()
        posteriors.append(torch.stack([score[:, own].logsumexp(1) for own in of_disease], dim=1).softmax(1))
    return torch.cat(posteriors)
