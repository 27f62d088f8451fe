"""The models that triage studies compare, with their options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.domains.triage.data import FREE, PANELS, PAPER_COSTS, WIDTH
from nbsr_core.domains.triage.learners import Baseline, EndToEnd, Order, Separate
from nbsr_core.errors import InputError
from nbsr_core.model.acquisition import Panels, StopRule
from nbsr_core.model.autoregressive import AutoregressiveNBSR, Sight
from nbsr_core.model.experts import ExpertSpec
from nbsr_core.model.routers import RouterSpec
from nbsr_core.options.specs import ObjectiveWeights, check_choice


@dataclass(frozen=True)
class EndToEndOptions:
    """The paper's AR-NBSR, with the hyper-parameters of its appendix as defaults.

    Attributes:
        training_eta: entropy of the belief below which a rollout ends in training; None never ends one early.
        stop: by the entropy of the belief (`dirichlet`) or of the expected diagnosis (`categorical`).
    """

    experts: ExpertSpec = field(default_factory=lambda: ExpertSpec(hidden=(128, 128)))
    router: RouterSpec = field(default_factory=lambda: RouterSpec(hidden=(128,)))
    objective: ObjectiveWeights = field(default_factory=lambda: ObjectiveWeights(entropy=1e-4, cost=0.005))
    training_eta: float | None = -150.0
    stop: StopRule = "dirichlet"

    def __post_init__(self) -> None:
        check_choice("stop", self.stop, StopRule)


@dataclass(frozen=True)
class SeparateOptions:
    """Experts on random orders and, apart from them, an order of buying.

    Attributes:
        sight: what an expert sees, its own panel (the paper's 36 inputs) or all that was bought.
        stop: by the entropy of the expected diagnosis (`categorical`) or of the belief (`dirichlet`).
        horizon: strictest and laxest threshold that the planner plans for, as entropies of the expected diagnosis.
        policy_after: epochs before the router starts to learn.
    """

    experts: ExpertSpec = field(default_factory=lambda: ExpertSpec(hidden=(128, 128), activation="exp"))
    router: RouterSpec = field(default_factory=lambda: RouterSpec(hidden=(128,), belief="log"))
    sight: Sight = "bought"
    stop: StopRule = "categorical"
    horizon: tuple[float, float] = (0.1, 2.0)
    policy_after: int = 10

    def __post_init__(self) -> None:
        check_choice("sight", self.sight, Sight)
        check_choice("stop", self.stop, StopRule)
        if len(self.horizon) != 2 or not 0 < self.horizon[0] < self.horizon[1] < math.inf:
            raise InputError(f"horizon must be two entropies, 0 < strict < lax, got {list(self.horizon)}")
        if self.policy_after < 0:
            raise InputError(f"policy_after must be at least 0, got {self.policy_after!r}")


def panels_for(signature: Signature) -> Panels:
    """The paper's panels at the paper's prices; training sets the prices of its data."""
    panels = Panels(PANELS, PAPER_COSTS, FREE, WIDTH)
    if signature.num_features != panels.num_features:
        raise InputError(f"triage needs {panels.num_features} features, 12 and 5 x 24, got {signature.num_features}")
    return panels


def build_end_to_end(options: EndToEndOptions, signature: Signature) -> EndToEnd:
    """AR-NBSR as the paper trains it."""
    model = AutoregressiveNBSR(
        panels_for(signature),
        signature.num_classes,
        experts=options.experts,
        router=options.router,
        stop=options.stop,
        training_eta=options.training_eta,
    )
    return EndToEnd(model, options.objective)


def _builder(order: Order) -> Callable[[SeparateOptions, Signature], Separate]:
    def build(options: SeparateOptions, signature: Signature) -> Separate:
        model = AutoregressiveNBSR(
            panels_for(signature),
            signature.num_classes,
            experts=options.experts,
            router=options.router,
            sight=options.sight,
            stop=options.stop,
        )
        kind = Separate if order == "planner" else Baseline
        return kind(model, order, horizon=options.horizon, policy_after=options.policy_after)

    return build


MODELS = {
    "ar_nbsr": ModelKind("nbsr", EndToEndOptions, build_end_to_end),
    "planner": ModelKind("nbsr", SeparateOptions, _builder("planner")),
    "greedy": ModelKind("baseline", SeparateOptions, _builder("greedy")),
    "cheap_first": ModelKind("baseline", SeparateOptions, _builder("cheap_first")),
    "random": ModelKind("baseline", SeparateOptions, _builder("random")),
    "oracle_peeking": ModelKind("baseline", SeparateOptions, _builder("oracle")),
}
"""`oracle_peeking` sees results before it pays for them: an upper bound for greedy, and no policy for use."""
