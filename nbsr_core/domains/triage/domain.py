"""Active clinical triage as studies see it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from nbsr_core.domains.acquisition.domain import Buying
from nbsr_core.domains.acquisition.models import kinds
from nbsr_core.domains.acquisition.options import EndToEndOptions, SeparateOptions
from nbsr_core.domains.domain import Preview
from nbsr_core.domains.triage.options import TriageData

if TYPE_CHECKING:  # imported where data is loaded: options are checked without torch
    from nbsr_core.domains.triage.data import TriageSplits


class Triage(Buying):
    """12 free features and five panels with prices: which to buy, in which order, and when to stop."""

    name = "triage"
    case = "patient"
    builds_on = ("medical", "acquisition")
    data = TriageData
    models: ClassVar = kinds(SeparateOptions, EndToEndOptions)
    shown: ClassVar = (
        "noise_draws/accuracy",
        "noise_draws/area",
        "noise_draws/cost_at_peak_1",
        "noise_draws/chosen_peak_1/accuracy",
        "noise_draws/chosen_peak_1/mean_cost",
    )

    def load(self, data: Any, seed: int) -> TriageSplits:
        from nbsr_core.domains.triage.data import load

        return load(data, seed)

    def preview(self, data: Any) -> Preview:
        """With one noise draw for many, which take most of the time."""
        return super().preview(replace(data, draws=min(data.draws, 1)))
