"""The embedded knowledge table: 41 diseases in four body systems, over 132 symptoms.

It stands in for the Kaggle files where these are not to be had, so that the domain runs from the package alone. The
table itself is `knowledge.toml`, to be read by people; patients drawn from it are synthetic, and every report on
them says so. The body systems, the mid experts of the paper's graph, serve the Kaggle file's diseases too.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.learning.splits import Split


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What each disease looks like.

    Attributes:
        diseases: names, those of one system side by side.
        symptoms: names, in the order of the features.
        system_of: the body system of each disease; systems in the order of the graph's mid experts.
        theme_of: what each symptom is about: "history" (12 symptoms) or one of five themes of 24 each.
        chance: [K, F] probability that a patient with disease k shows symptom f.
    """

    diseases: tuple[str, ...]
    symptoms: tuple[str, ...]
    system_of: dict[str, str]
    theme_of: dict[str, str]
    chance: Float[Tensor, "K F"]

    def sample(self, count: int, generator: torch.Generator, prior: Float[Tensor, " K"] | None = None) -> Split:
        """Patients, without noise: a disease by `prior` (default: each alike), then each symptom on its own."""
        num_diseases = len(self.diseases)
        weights = torch.ones(num_diseases) if prior is None else prior
        if weights.shape != (num_diseases,) or not bool((weights >= 0).all()) or not bool(weights.sum() > 0):
            raise InputError(f"prior must be {num_diseases} weights, none negative and not all 0, got {weights}")
        y = torch.multinomial(weights, count, replacement=True, generator=generator)
        shows = torch.rand(count, len(self.symptoms), generator=generator) < self.chance[y]
        return Split(shows.float(), y)


@cache
def knowledge() -> Knowledge:
    """The table that ships with the package."""
    table = tomllib.loads(files(__package__).joinpath("knowledge.toml").read_text(encoding="utf-8"))
    theme_of = {symptom: theme for theme, names in table["symptoms"].items() for symptom in _names(names)}
    position = {symptom: f for f, symptom in enumerate(theme_of)}
    system_of = {disease: system for system, group in table["diseases"].items() for disease in group}
    chance = torch.full((len(system_of), len(position)), table["chance"]["background"], dtype=torch.float64)
    for row, (disease, system) in zip(chance, system_of.items(), strict=True):
        for frequency, names in table["diseases"][system][disease].items():
            row[[position[symptom] for symptom in _names(names)]] = table["chance"][frequency]
    return Knowledge(tuple(system_of), tuple(position), system_of, theme_of, chance)


def _names(text: str) -> list[str]:
    return [" ".join(name.split()) for name in text.split(",")]


def systems() -> tuple[str, ...]:
    """The four body systems, in the order of the graph's mid experts."""
    return tuple(dict.fromkeys(knowledge().system_of.values()))


def system_of(disease: str) -> str:
    """The body system in which the paper's root would look for this disease."""
    known = knowledge().system_of
    if disease not in known:
        raise InputError(f"no body system is known for the disease {disease!r}; known are {', '.join(known)}")
    return known[disease]
