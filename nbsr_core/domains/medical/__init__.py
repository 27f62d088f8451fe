"""The paper's structured medical diagnosis: 132 symptoms, 41 diseases, four body systems."""

from __future__ import annotations

from nbsr_core.domains.medical.data import (
    FreshNoise,
    MedicalData,
    MedicalSplits,
    flip,
    graph,
    load,
)
from nbsr_core.domains.medical.domain import Medical
from nbsr_core.domains.medical.knowledge import Knowledge, knowledge, system_of, systems
from nbsr_core.domains.medical.profiles import SymptomProfiles, bayes_posterior

__all__ = [
    "FreshNoise",
    "Knowledge",
    "Medical",
    "MedicalData",
    "MedicalSplits",
    "SymptomProfiles",
    "bayes_posterior",
    "flip",
    "graph",
    "knowledge",
    "load",
    "system_of",
    "systems",
]
