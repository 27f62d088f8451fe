"""The paper's structured medical diagnosis: 132 symptoms, 41 diseases, four body systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core.domains.medical.data import (
        FreshNoise,
        MedicalData,
        MedicalSplits,
        flip,
        graph,
        load,
    )
    from nbsr_core.domains.medical.domain import Medical
    from nbsr_core.domains.medical.knowledge_table import Knowledge, knowledge, system_of, systems
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

__getattr__ = on_first_use(
    __name__,
    {
        "FreshNoise": "data",
        "Knowledge": "knowledge_table",
        "Medical": "domain",
        "MedicalData": "options",
        "MedicalSplits": "data",
        "SymptomProfiles": "profiles",
        "bayes_posterior": "profiles",
        "flip": "data",
        "graph": "data",
        "knowledge": "knowledge_table",
        "load": "data",
        "system_of": "knowledge_table",
        "systems": "knowledge_table",
    },
)
