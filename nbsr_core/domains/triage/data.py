"""Patients whose symptoms come in panels with prices: the medical data, cut as the paper cuts it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.domains import medical
from nbsr_core.domains.medical import MedicalSplits, SymptomProfiles
from nbsr_core.domains.triage.options import TriageData
from nbsr_core.model.acquisition import Panels

FREE, WIDTH = 12, 24
PANELS = ("Basic Metabolic Panel", "Hepatic Panel", "Respiratory Swab", "Neurological Exam", "MRI Scan")
PAPER_COSTS = (10.0, 15.0, 20.0, 30.0, 50.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class TriageSplits(MedicalSplits):
    """Patients with all their features, and the panels in which these can be bought. Models hide what is not."""

    @property
    def panels(self) -> Panels:
        return Panels.from_json(self.structure["panels"])


def load(options: TriageData, seed: int) -> TriageSplits:
    """The medical splits with panels."""
    splits = medical.load(options, seed)
    costs: tuple[float, ...] = PAPER_COSTS
    if options.costs == "decoupled":
        rank = informativeness(splits.profiles, splits.noise).argsort().argsort().tolist()
        costs = tuple(PAPER_COSTS[place] for place in rank)
    known = {field.name: getattr(splits, field.name) for field in fields(splits)}
    source = f"{splits.source}; panels cost {', '.join(f'{cost:g}' for cost in costs)} ({options.costs})"
    panels = Panels(PANELS, costs, FREE, WIDTH)
    structure = {**splits.structure, **panels.structure(options.budgets)}
    return TriageSplits(**{**known, "source": source, "structure": structure})


def informativeness(profiles: SymptomProfiles, noise: float) -> Float[Tensor, " panels"]:
    """Mutual information of disease and symptom, summed over the symptoms of each panel, in nats.

    Symptoms of a disease depend on each other, so the sum is no exact figure for the panel, but it ranks panels
    without training anything, and it is the same for every seed.
    """
    weight = torch.zeros(profiles.num_diseases, dtype=torch.float64).index_add(0, profiles.disease, profiles.weight)
    shown = torch.zeros(profiles.num_diseases, profiles.chance.shape[1], dtype=torch.float64)
    shown.index_add_(0, profiles.disease, profiles.chance * profiles.weight[:, None])
    chance = shown / weight[:, None].clamp_min(1e-12)
    seen = chance * (1 - noise) + (1 - chance) * noise
    gain = _binary_entropy((weight[:, None] * seen).sum(0)) - (weight[:, None] * _binary_entropy(seen)).sum(0)
    return gain[FREE:].view(len(PANELS), WIDTH).sum(1)


def _binary_entropy(p: Tensor) -> Tensor:
    both: Tensor = torch.special.entr(p) + torch.special.entr(1 - p)
    return both
