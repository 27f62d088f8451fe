"""The paper's active clinical triage: symptoms cost money, and a policy decides which to pay for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core.domains.triage.data import TriageSplits, informativeness, load
    from nbsr_core.domains.triage.domain import Triage
    from nbsr_core.domains.triage.options import TriageData

__all__ = ["Triage", "TriageData", "TriageSplits", "informativeness", "load"]

__getattr__ = on_first_use(
    __name__,
    {
        "Triage": "domain",
        "TriageData": "options",
        "TriageSplits": "data",
        "informativeness": "data",
        "load": "data",
    },
)
