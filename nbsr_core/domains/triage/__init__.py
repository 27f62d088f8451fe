"""The paper's active clinical triage: symptoms cost money, and a policy decides which to pay for."""

from __future__ import annotations

from nbsr_core.domains.triage.data import TriageData, TriageSplits, informativeness, load
from nbsr_core.domains.triage.domain import Triage

__all__ = ["Triage", "TriageData", "TriageSplits", "informativeness", "load"]
