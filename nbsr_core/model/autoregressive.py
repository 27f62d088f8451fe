"""AR-NBSR: one router and a flat array of experts in a loop; time takes the place of depth (paper, "NBSR as BOED").

A case has features that are free and others that come in panels, each at a price. The router sees what was bought so
far and nothing else: the features with everything unbought set to zero, the belief, and which panels were bought. It
names the next panel, the panel's expert adds its evidence, `alpha <- alpha + e`, and so on until a stop rule is
content or all is bought. No panel is bought twice.

Unrolled in time the loop is a walk over a layered graph whose node (t, j) is "panel j bought at step t". So its trace
is a `BeliefTrace`: exits, costs, audits and the frontier over all thresholds are read off one rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.belief import dirichlet
from nbsr_core.belief.calibration import DepthCalibration, calibrated
from nbsr_core.errors import InputError
from nbsr_core.kernels import Layout, Routes, StackedLinear, choose, gated
from nbsr_core.model.acquisition import AcquisitionTrace, Known, Panels, Policy, StopRule, doubt_of
from nbsr_core.model.experts import ExpertBank, ExpertSpec
from nbsr_core.model.routers import RouterSpec
from nbsr_core.options.specs import check_choice, check_temperature
from nbsr_core.trace.belief_trace import Step
from nbsr_core.trace.exits import Prediction, Stop, check_eta, conclude

Sight = Literal["panel", "bought"]


class PanelExperts(nn.Module):
    """One expert per panel: Linear -> LayerNorm -> ReLU -> ... -> evidence (paper, appendix on triage)."""

    def __init__(self, panels: int, inputs: int, num_classes: int, spec: ExpertSpec) -> None:
        super().__init__()
        if not spec.hidden:
            raise InputError("experts of panels need at least one hidden layer, got none")
        first, *rest = spec.hidden
        self.first = StackedLinear(panels, inputs, first, bias=spec.bias)
        self.scale = nn.Parameter(torch.ones(panels, first))
        self.shift = nn.Parameter(torch.zeros(panels, first))
        rest_spec = ExpertSpec(tuple(rest), spec.bias, spec.activation, spec.bound)
        self.rest = ExpertBank(panels, first, num_classes, rest_spec)

    def forward(self, x: Float[Tensor, "B inp"], panel: Int[Tensor, " B"]) -> Float[Tensor, "B K"]:
        """Evidence of each row's own panel."""
        layout = Layout.of(panel, self.first.slots, self.first.macs + self.rest.macs)
        panel = panel if layout.order is None else panel.index_select(0, layout.order)
        z = F.layer_norm(self.first(layout.sorted(x), layout), self.scale.shape[1:])
        z = torch.addcmul(self.shift[panel], z, self.scale[panel]).relu()
        return layout.restored(self.rest(z, layout))


class AutoregressiveNBSR(nn.Module):
    """The model: a global router, one expert per panel, and a belief that grows.

    Args:
        panels: what can be bought.
        num_classes: K.
        experts: hidden layers and activation of every expert.
        router: hidden layers of the router (with LayerNorm after the first), and how the belief enters it.
        sight: what an expert sees: its own panel and the free features (the paper: 12 + 24 inputs), or all that was
            bought so far and the list of it, its own panel included.
        stop: see `doubt_of`.
        training_eta: rollouts end below this entropy while training (the paper's -150), or None.
        prior_weight: W, K by default.

    Examples:
        >>> import torch, nbsr_core as nbsr
        >>> panels = nbsr.Panels(("blood", "scan"), costs=(10.0, 50.0), free=2, width=3)
        >>> model = nbsr.AutoregressiveNBSR(panels, num_classes=4).eval()
        >>> trace = model(torch.rand(16, 8))
        >>> trace.cost[-1].unique()
        tensor([60.], dtype=torch.float64)
    """

    def __init__(
        self,
        panels: Panels,
        num_classes: int,
        *,
        experts: ExpertSpec = ExpertSpec(hidden=(128, 128)),  # noqa: B008 (frozen)
        router: RouterSpec = RouterSpec(hidden=(128,)),  # noqa: B008 (frozen)
        sight: Sight = "panel",
        stop: StopRule = "dirichlet",
        training_eta: float | None = None,
        prior_weight: float | None = None,
    ) -> None:
        super().__init__()
        check_choice("sight", sight, Sight)
        check_choice("stop", stop, StopRule)
        self.panels, self.num_classes, self.sight, self.stop = panels, num_classes, sight, stop
        self.training_eta, self.tau = check_eta(training_eta), 1.0
        self.router_spec = router
        self.prior: Tensor
        self.costs: Tensor
        self.register_buffer("prior", dirichlet.prior(num_classes, prior_weight))
        self.register_buffer("costs", torch.tensor(panels.costs, dtype=torch.float64))
        self.columns: Tensor
        starts = panels.free + panels.width * torch.arange(len(panels))
        self.register_buffer("columns", starts[:, None] + torch.arange(panels.width), persistent=False)
        inputs = panels.free + panels.width if sight == "panel" else panels.num_features + len(panels)
        self.experts = PanelExperts(len(panels), inputs, num_classes, experts)
        belief_dim = 0 if router.belief == "none" else num_classes
        self.router = _router(panels.num_features + belief_dim + len(panels), router.hidden, len(panels))
        self.calibration = DepthCalibration(len(panels))

    def set_costs(self, costs: Sequence[float]) -> None:
        """What the panels cost from now on; the costs are saved with the model."""
        self.panels = replace(self.panels, costs=tuple(costs))
        self.costs.copy_(torch.tensor(self.panels.costs, dtype=torch.float64))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.panels = replace(self.panels, costs=tuple(self.costs.tolist()))

    def set_temperature(self, tau: float) -> None:
        """Temperature of the Gumbel-softmax from now on; training anneals it from epoch to epoch."""
        self.tau = check_temperature(tau)

    def start(self, x: Float[Tensor, "B F"]) -> Known:
        """Before the first purchase: the free features and the prior."""
        if x.ndim != 2 or x.shape[1] != self.panels.num_features or len(x) == 0:
            raise InputError(f"cases must be [B >= 1, {self.panels.num_features}], got {list(x.shape)}")
        hidden = torch.zeros_like(x)
        hidden[:, : self.panels.free] = x[:, : self.panels.free]
        return Known(hidden, self.prior.expand(len(x), -1), x.new_zeros(len(x), len(self.panels)))

    def scores(self, known: Known) -> Float[Tensor, "B N"]:
        """The router's logits, from `[features, alpha, history]`: 132 + 41 + 5 = 178 in the paper."""
        belief = [] if self.router_spec.belief == "none" else [self.router_spec.describe(known.alpha)]
        logits: Tensor = self.router(torch.cat([known.features, *belief, known.bought], dim=1))
        return logits

    def buy(self, known: Known, x: Float[Tensor, "B F"], panel: Int[Tensor, " B"]) -> tuple[Known, Tensor]:
        """Unveil a panel of each case: what is known then, without its evidence [B, K], which comes beside it.

        The evidence is added by the caller, who may attach the router's gradient to it first.
        """
        where = self.columns[panel]
        shown = x.gather(1, where)
        features = known.features.scatter(1, where, shown)
        bought = known.bought.scatter(1, panel[:, None], 1.0)
        inputs = [features[:, : self.panels.free], shown] if self.sight == "panel" else [features, bought]
        return Known(features, known.alpha, bought), self.experts(torch.cat(inputs, dim=1), panel)

    def bought_also(self, known: Known, x: Float[Tensor, "B F"], panel: Int[Tensor, " B"]) -> Known:
        """What is known after one more purchase, its evidence included."""
        then, evidence = self.buy(known, x, panel)
        return replace(then, alpha=then.alpha + evidence)

    def forward(
        self, x: Float[Tensor, "B F"], policy: Policy | None = None, order: Int[Tensor, "B N"] | None = None
    ) -> AcquisitionTrace:
        """Buy everything, in the order of the policy (the router by default): the rollout that tells all.

        While training, the router's choices are drawn with Gumbel noise and carry its gradient (straight-through).
        With a given `order`, the logits are what the policy would have said on the way; whoever trains on them trains
        the router alone, since the belief reaches it without a gradient.
        """
        known = self.start(x)
        beliefs, steps = [known.alpha], []
        node, walking = torch.zeros(len(x), dtype=torch.int64, device=x.device), None
        exploring = self.training and policy is None and order is None
        for t in range(len(self.panels)):
            seen = known if order is None else replace(known, alpha=known.alpha.detach())
            scores = (policy or self.scores)(seen).masked_fill(known.bought > 0, -math.inf)
            if order is None:
                routes = choose(scores, "gumbel" if exploring else "argmax", self.tau)
            else:
                routes = Routes(scores, None, order[:, t])
            if self.training and self.training_eta is not None and t > 0:
                on = dirichlet.entropy(known.alpha.detach(), validate_args=False) >= self.training_eta
                walking = on if walking is None else on & walking
            known, evidence = self.buy(known, x, routes.choice)
            if routes.relaxed is not None:
                evidence = gated(evidence, routes.relaxed, routes.choice)
            entered = 1 + t * len(self.panels) + routes.choice
            if walking is not None:
                evidence, entered = evidence * walking[:, None], torch.where(walking, entered, node)
            node = entered
            known = replace(known, alpha=known.alpha + evidence)
            beliefs.append(known.alpha)
            steps.append(Step(node, evidence, scores, routes.choice, routes.relaxed, walking))
        temperature = self.calibration.temperature if bool(self.calibration.fitted) else None
        return AcquisitionTrace(
            self.panels.graph, self.prior, tuple(beliefs), tuple(steps), temperature=temperature, stop=self.stop
        )

    @torch.no_grad()
    def predict(
        self, x: Float[Tensor, "B F"], eta: float | None = None, policy: Policy | None = None
    ) -> tuple[Prediction, Float[Tensor, " B"]]:
        """In use: what is said of each case and what was spent on it.

        A case whose doubt falls below eta leaves the batch: no panel of it is unveiled any more, no expert is asked.
        """
        eta, fitted, panels = check_eta(eta), bool(self.calibration.fitted), len(self.panels)
        known, row = self.start(x), torch.arange(len(x), device=x.device)
        node, spent, stops = torch.zeros_like(row), self.costs.new_zeros(len(x)), []
        for t in range(panels + 1):
            if t > 0 and (t == panels or eta is not None):
                belief = calibrated(known.alpha, self.calibration.temperature[t - 1]) if fitted else known.alpha
                content = torch.ones_like(row, dtype=torch.bool)
                if t < panels and eta is not None:
                    content = doubt_of(self.stop, belief) < eta
                stops.append(Stop(row[content], belief[content], node[content], t))
                onward = (~content).nonzero().squeeze(1)
                known, row, x = known.rows(onward), row[onward], x[onward]
            if len(row) == 0:
                break
            panel = (policy or self.scores)(known).masked_fill(known.bought > 0, -math.inf).argmax(-1)
            node = 1 + t * panels + panel
            spent[row] += self.costs[panel]
            known = self.bought_also(known, x, panel)
        return conclude(stops, float(self.prior.sum()), None), spent


def _router(inputs: int, hidden: tuple[int, ...], panels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, size in enumerate(hidden):
        layers += [nn.Linear(inputs, size), *([nn.LayerNorm(size)] if index == 0 else []), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, panels))
