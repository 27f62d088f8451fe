"""What a study says about patients whose symptoms cost money; checked without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nbsr_core.domains.acquisition.options import checked_budgets
from nbsr_core.domains.medical.options import MedicalData
from nbsr_core.options.specs import check_choice

CostSetting = Literal["paper", "decoupled"]


@dataclass(frozen=True)
class TriageData(MedicalData):
    """The medical data's options, and what panels cost.

    Attributes:
        costs: "paper" prices the panels at 10, 15, 20, 30 and 50 in the order of the features, where the cheapest
            panel happens to tell most. "decoupled" gives the same five prices by informativeness, the dearest to the
            panel that tells most, so that a policy has to weigh what it buys.
        budgets: what may be spent at most, one figure each (`budget/<B>/accuracy`); rollouts end at the largest. None
            by default: everything is bought in the end.
    """

    costs: CostSetting = "paper"
    budgets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("costs", self.costs, CostSetting)
        object.__setattr__(self, "budgets", checked_budgets(self.budgets))
