"""What a study says of models that buy panels; checked without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from nbsr_core.errors import InputError
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import (
    ExpertSpec,
    Growth,
    ObjectiveWeights,
    RouterSpec,
    Sight,
    StopRule,
    check_choice,
)

ExpertTraining = Literal["random", "mixed", "end_to_end"]


def checked_budgets(budgets: tuple[float, ...]) -> tuple[float, ...]:
    """What may be spent at most: different amounts, in rising order."""
    if not all(isinstance(budget, int | float) and 0 < budget < math.inf for budget in budgets):
        raise InputError(f"budgets must be finite and > 0, got {list(budgets)}")
    return tuple(sorted(set(budgets)))


@dataclass(frozen=True)
class SeparateOptions:
    """Experts on random orders and, apart from them, an order of buying.

    Attributes:
        sight: what an expert sees, its own panel (the paper's 36 inputs) or all that was bought; `shared` is one expert
            for all panels, which sees all that was bought.
        growth: what the belief grows by: the expert's evidence as it is (`absolute`, the paper), or as little as makes
            the belief's mean the expert's answer (`consistent`).
        stop: by the entropy of the expected diagnosis (`categorical`) or of the belief (`dirichlet`).
        standardise: centre and scale features by the training data's mean and deviation.
        knots: a shared expert also sees how far each feature is above so many quantiles of the training data.
        expert_training: the orders in which experts see panels while they learn: by lot (`random`), half of the cases
            as the policy would buy (`mixed`, once `policy_after` is over), or as the router does, with which they learn
            `end_to_end` as in the paper.
        objective: of the router, and of experts that learn end to end with it.
        training_eta: entropy of the belief below which a router's rollout ends in training; None never ends one early.
        policy_after: epochs before whoever decides the order starts to learn; the experts change too much until then.
    """

    experts: ExpertSpec = field(default_factory=lambda: ExpertSpec(hidden=(128, 128), activation="exp"))
    router: RouterSpec = field(default_factory=lambda: RouterSpec(hidden=(128,), belief="log"))
    sight: Sight = "bought"
    growth: Growth = "absolute"
    stop: StopRule = "categorical"
    standardise: bool = False
    knots: int = field(default=0, metadata=counts_when("sight is shared", lambda options: options.sight == "shared"))
    expert_training: ExpertTraining = "random"
    objective: ObjectiveWeights = field(default_factory=lambda: ObjectiveWeights(entropy=1e-4, cost=0.005))
    training_eta: float | None = None
    policy_after: int = 10

    def __post_init__(self) -> None:
        check_choice("sight", self.sight, Sight)
        check_choice("growth", self.growth, Growth)
        check_choice("stop", self.stop, StopRule)
        check_choice("expert_training", self.expert_training, ExpertTraining)
        if self.knots < 0:
            raise InputError(f"knots must be at least 0, got {self.knots!r}")
        if self.policy_after < 0:
            raise InputError(f"policy_after must be at least 0, got {self.policy_after!r}")


@dataclass(frozen=True)
class EndToEndOptions(SeparateOptions):
    """The paper's AR-NBSR, with the hyper-parameters of its appendix as defaults."""

    experts: ExpertSpec = field(default_factory=lambda: ExpertSpec(hidden=(128, 128)))
    router: RouterSpec = field(default_factory=lambda: RouterSpec(hidden=(128,)))
    sight: Sight = "panel"
    stop: StopRule = "dirichlet"
    expert_training: ExpertTraining = "end_to_end"
    training_eta: float | None = -150.0
    policy_after: int = 0


@dataclass(frozen=True)
class SharedOptions(SeparateOptions):
    """One expert for all panels, whose belief is its answer to all that was bought: for tables of many panels."""

    router: RouterSpec = field(default_factory=lambda: RouterSpec(hidden=(128, 128), belief="mean"))
    sight: Sight = "shared"
    growth: Growth = "consistent"
    standardise: bool = True
    knots: int = field(default=7, metadata=counts_when("sight is shared", lambda options: options.sight == "shared"))
    expert_training: ExpertTraining = "mixed"
