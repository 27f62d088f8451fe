"""AR-NBSR: one router and a flat array of experts in a loop; time takes the place of depth (paper, "NBSR as BOED").

A case has features that are free and others that come in panels, each at a price. The router sees what was bought so
far and nothing else: the features with everything unbought set to zero, the belief, and which panels were bought. It
names the next panel, the panel's expert adds its evidence, `alpha <- alpha + e`, and so on until a stop rule is
content, the budget is spent or all is bought. No panel is bought twice.

The rollout is a walk that comes back to the same nodes, one for each panel. So its trace is a `BeliefTrace`: exits,
costs, audits and the frontier over all thresholds are read off one rollout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.belief import dirichlet
from nbsr_core.belief.calibration import DepthCalibration, calibrated
from nbsr_core.errors import InputError
from nbsr_core.kernels import Layout, StackedLinear, activate, choose, gated
from nbsr_core.model.acquisition import ROUNDING, AcquisitionTrace, Known, Panels, Policy, doubt_of
from nbsr_core.model.experts import ExpertBank, ExpertSpec
from nbsr_core.model.preprocessing import Knots, Standardise
from nbsr_core.model.routers import RouterSpec
from nbsr_core.options.specs import Growth, Sight, StopRule, check_choice, check_temperature
from nbsr_core.trace.belief_trace import Step
from nbsr_core.trace.exits import Prediction, Stop, check_eta, conclude

# Of a consistent belief: the share of every answer that is left to all classes alike, and the least growth. Without the
# first, one class that is ruled out would make the belief grow without bound.
EVEN_SHARE, LEAST_GROWTH, LARGEST_CONCENTRATION = 1e-3, 1e-6, 1e30


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


class SharedExpert(nn.Module):
    """One network that speaks for every panel: where there are many, each alone sees too few cases to learn from."""

    def __init__(self, inputs: int, num_classes: int, spec: ExpertSpec) -> None:
        super().__init__()
        self.spec = spec
        self.network = layered(inputs, spec.hidden, num_classes)

    def forward(self, x: Float[Tensor, "B inp"], panel: Int[Tensor, " B"]) -> Float[Tensor, "B K"]:
        """Evidence, whatever the panel: the list of what was bought is part of the input."""
        return activate(self.spec, self.network(x))


class AutoregressiveNBSR(nn.Module):
    """The model: a global router, one expert per panel, and a belief that grows.

    Args:
        panels: what can be bought.
        num_classes: K.
        experts: hidden layers and activation of every expert.
        router: hidden layers of the router (with LayerNorm after the first), and how the belief enters it.
        sight: what an expert sees: its own panel and the free features (the paper: 12 + 24 inputs), or all that was
            bought so far and the list of it, its own panel included (`bought`). With `shared`, all panels have one
            expert, which sees the same.
        growth: what the belief grows by: the expert's evidence as it is (the paper), or as little as makes the
            belief's mean the expert's answer (`consistent`, see `grown`).
        stop: see `doubt_of`.
        training_eta: rollouts end below this entropy while training (the paper's -150), or None.
        prior_weight: W, K by default.
        budget: what a rollout spends at most; None buys everything.
        standardise: whether features are centred and scaled by the training data's mean and deviation.
        knots: a shared expert also sees how far each feature is above so many quantiles of the training data.

    Examples:
        >>> import torch, nbsr_core as nbsr
        >>> panels = nbsr.Panels(("blood", "scan"), costs=(10.0, 50.0), free=2, width=3)
        >>> model = nbsr.AutoregressiveNBSR(panels, num_classes=4).eval()
        >>> trace = model(torch.rand(16, 8))
        >>> trace.cost[-1].unique()
        tensor([60.], dtype=torch.float64)
        >>> model(torch.rand(16, 8), budget=20.0).cost[-1].unique()
        tensor([10.], dtype=torch.float64)
    """

    def __init__(
        self,
        panels: Panels,
        num_classes: int,
        *,
        experts: ExpertSpec = ExpertSpec(hidden=(128, 128)),  # noqa: B008 (frozen)
        router: RouterSpec = RouterSpec(hidden=(128,)),  # noqa: B008 (frozen)
        sight: Sight = "panel",
        growth: Growth = "absolute",
        stop: StopRule = "dirichlet",
        training_eta: float | None = None,
        prior_weight: float | None = None,
        budget: float | None = None,
        standardise: bool = False,
        knots: int = 0,
    ) -> None:
        super().__init__()
        check_choice("sight", sight, Sight)
        check_choice("growth", growth, Growth)
        check_choice("stop", stop, StopRule)
        self.panels, self.num_classes, self.sight, self.growth, self.stop = panels, num_classes, sight, growth, stop
        self.training_eta, self.tau = check_eta(training_eta), 1.0
        self.router_spec, self.budget = router, budget
        self.prior: Tensor
        self.costs: Tensor
        self.register_buffer("prior", dirichlet.prior(num_classes, prior_weight))
        self.register_buffer("costs", torch.tensor(panels.costs, dtype=torch.float64))
        self._place_features()
        self.standardise = Standardise(panels.num_features) if standardise else None
        self.knots = Knots(panels.num_features, knots) if knots and sight == "shared" else None
        everything = panels.num_features + len(panels)
        self.experts: PanelExperts | SharedExpert
        if sight == "shared":
            bends = 0 if self.knots is None else knots * panels.num_features
            self.experts = SharedExpert(everything + bends, num_classes, experts)
        else:
            inputs = panels.free + panels.width if sight == "panel" else everything
            self.experts = PanelExperts(len(panels), inputs, num_classes, experts)
        self.router = self.another_router(router)
        self.calibration = DepthCalibration(self.steps)

    def _place_features(self) -> None:
        """Which features each panel unveils, as a table of ones and as padded lists of columns."""
        panels = self.panels
        shows = torch.zeros(len(panels), panels.num_features)
        columns = torch.zeros(len(panels), panels.width, dtype=torch.int64)
        for panel, own in enumerate(panels.columns):
            shows[panel, list(own)] = 1.0
            columns[panel, : len(own)] = torch.tensor(own)
        widths = torch.tensor([len(own) for own in panels.columns])
        self.shows: Tensor
        self.columns: Tensor
        self.padding: Tensor
        self.free_columns: Tensor
        self.register_buffer("shows", shows, persistent=False)
        self.register_buffer("columns", columns, persistent=False)
        self.register_buffer("padding", torch.arange(panels.width) >= widths[:, None], persistent=False)
        self.register_buffer("free_columns", torch.tensor(panels.free_columns, dtype=torch.int64), persistent=False)

    @property
    def steps(self) -> int:
        """How many purchases the budget allows at most."""
        return self.panels.checked_steps(self.budget)

    def _allowed(self, budget: float | None) -> float | None:
        if budget is None or self.budget is None:
            return self.budget if budget is None else budget
        if budget > self.budget + ROUNDING:
            raise InputError(f"the model was built for budgets up to {self.budget:g}, got {budget:g}")
        return budget

    def another_router(self, spec: RouterSpec) -> nn.Sequential:
        """A network of the router's shape: from all that is known to one number per panel."""
        belief = 0 if spec.belief == "none" else self.num_classes
        return layered(self.panels.num_features + belief + len(self.panels), spec.hidden, len(self.panels))

    def set_temperature(self, tau: float) -> None:
        """Temperature of the Gumbel-softmax from now on; training anneals it from epoch to epoch."""
        self.tau = check_temperature(tau)

    def start(self, x: Float[Tensor, "B F"], budget: float | None = None) -> Known:
        """Before the first purchase: the free features and the prior."""
        if x.ndim != 2 or x.shape[1] != self.panels.num_features or len(x) == 0:
            raise InputError(f"cases must be [B >= 1, {self.panels.num_features}], got {list(x.shape)}")
        bought = x.new_zeros(len(x), len(self.panels))
        budget = self._allowed(budget)
        left = self.costs.new_full((len(x),), math.inf if budget is None else budget)
        case = torch.arange(len(x), device=x.device)
        return Known(self.unveiled(x, bought), self.prior.expand(len(x), -1), bought, left, case)

    def unveiled(self, x: Float[Tensor, "*#B F"], bought: Float[Tensor, "*B N"]) -> Float[Tensor, "*B F"]:
        """What the networks see of the features: those that are free or bought, zero elsewhere.

        A panel that is bought in part (between 0 and 1, as a relaxed choice has it) is seen in part.
        """
        seen = x if self.standardise is None else self.standardise(x)
        return seen * self._visible(bought)

    def _visible(self, bought: Float[Tensor, "*B N"]) -> Float[Tensor, "*B F"]:
        visible = bought @ self.shows
        visible[..., self.free_columns] = 1.0
        return visible

    def closed(self, known: Known) -> Bool[Tensor, "B N"]:
        """What cannot be bought (any more): it was bought, or it costs more than is left."""
        return (known.bought > 0) | (self.costs > known.left[:, None] + ROUNDING)

    def described(self, known: Known, spec: RouterSpec) -> Float[Tensor, "B inp"]:
        """What a router is shown: `[features, alpha, history]`, 132 + 41 + 5 = 178 in the paper."""
        belief = [] if spec.belief == "none" else [spec.describe(known.alpha)]
        return torch.cat([known.features, *belief, known.bought], dim=1)

    def scores(self, known: Known) -> Float[Tensor, "B N"]:
        """The router's logits."""
        logits: Tensor = self.router(self.described(known, self.router_spec))
        return logits

    def evidence(
        self, features: Float[Tensor, "B F"], bought: Float[Tensor, "B N"], panel: Int[Tensor, " B"]
    ) -> Float[Tensor, "B K"]:
        """What the expert of the panel that was bought last makes of all that is unveiled."""
        if self.sight == "panel":
            own = features.gather(1, self.columns[panel]).masked_fill(self.padding[panel], 0.0)
            inputs = [features[:, self.free_columns], own]
        else:
            inputs = [features, bought]
            if self.knots is not None:
                bends = self.knots(features, self.standardise) * self._visible(bought)[:, None]
                inputs.append(bends.flatten(1))
        said: Tensor = self.experts(torch.cat(inputs, dim=1), panel)
        return said

    def grown(self, alpha: Float[Tensor, "*B K"], evidence: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
        """What an expert adds to the belief that it finds: always more than nothing, so that precision grows.

        Absolute evidence counts as it is. A consistent belief has the mean q that its last expert's evidence has by
        itself: it becomes c q with the least c at which no concentration falls, so that what was believed before
        neither outweighs nor spoils what is known now, and the order of purchases does not matter to an answer.
        """
        if self.growth == "absolute":
            return evidence
        mean = evidence / evidence.sum(-1, keepdim=True)
        mean = (1 - EVEN_SHARE) * mean + EVEN_SHARE / self.num_classes
        least = alpha * LEAST_GROWTH
        with torch.no_grad():
            scale = ((alpha + 2 * least) / mean).amax(-1, keepdim=True).clamp_max(LARGEST_CONCENTRATION)
        return torch.maximum(scale * mean - alpha, least)

    def relaxed(self, known: Known, x: Float[Tensor, "B F"], share: Float[Tensor, "B N"]) -> Float[Tensor, "B K"]:
        """The belief after a purchase of a share of every panel, as a relaxed choice has it; differentiable in it."""
        if isinstance(self.experts, SharedExpert):
            bought = known.bought + share
            said = self.evidence(self.unveiled(x, bought), bought, share.argmax(-1))
        else:
            cases, panels = share.shape
            panel = torch.arange(panels, device=x.device).repeat(cases)
            row = torch.arange(cases, device=x.device).repeat_interleave(panels)
            bought = known.bought[row].scatter(1, panel[:, None], 1.0)
            every = self.evidence(self.unveiled(x[row], bought), bought, panel)
            said = torch.einsum("bn,bnk->bk", share, every.unflatten(0, share.shape))
        return known.alpha + self.grown(known.alpha, said)

    def buy(self, known: Known, x: Float[Tensor, "B F"], panel: Int[Tensor, " B"]) -> tuple[Known, Tensor]:
        """Unveil a panel of each case: what is known then, without its evidence [B, K], which comes beside it.

        The evidence is added by the caller, who may attach the router's gradient to it first.
        """
        bought = known.bought.scatter(1, panel[:, None], 1.0)
        features = self.unveiled(x, bought)
        then = replace(known, features=features, bought=bought, left=known.left - self.costs[panel])
        return then, self.grown(known.alpha, self.evidence(features, bought, panel))

    def bought_also(self, known: Known, x: Float[Tensor, "B F"], panel: Int[Tensor, " B"]) -> Known:
        """What is known after one more purchase, its evidence included."""
        then, evidence = self.buy(known, x, panel)
        return replace(then, alpha=then.alpha + evidence)

    def forward(
        self,
        x: Float[Tensor, "B F"],
        policy: Policy | None = None,
        order: Int[Tensor, "B T"] | None = None,
        budget: float | None = None,
    ) -> AcquisitionTrace:
        """Buy until the budget is spent (the model's own by default; without one, everything): the whole rollout.

        Panels come in the order of the policy (the router by default). While training, the router's choices are drawn
        with Gumbel noise and carry its gradient (straight-through). With a given `order`, whatever it costs, the
        logits are what the policy would have said on the way; whoever trains on them trains the router alone, since
        the belief reaches it without a gradient.
        """
        if order is not None:
            return self._along(x, policy or self.scores, order)
        known = self.start(x, budget)
        beliefs, steps = [known.alpha], list[Step]()
        node, walking = torch.zeros(len(x), dtype=torch.int64, device=x.device), None
        exploring = self.training and policy is None
        for t in range(self.panels.checked_steps(self._allowed(budget))):
            closed = self.closed(known)
            scores = (policy or self.scores)(known).masked_fill(closed, -math.inf)
            over = closed.all(1)
            if self.training and self.training_eta is not None and t > 0:
                over |= dirichlet.entropy(known.alpha.detach(), validate_args=False) < self.training_eta
            if walking is not None or bool(over.any()):
                walking = ~over if walking is None else ~over & walking
                scores = scores.masked_fill(closed.all(1, keepdim=True), 0.0)  # nothing is left to choose from
            routes = choose(scores, "gumbel" if exploring else "argmax", self.tau)
            known, evidence = self.buy(known, x, routes.choice)
            if routes.relaxed is not None:
                evidence = gated(evidence, routes.relaxed, routes.choice)
            entered = 1 + routes.choice
            if walking is not None:
                evidence, entered = evidence * walking[:, None], torch.where(walking, entered, node)
            node = entered
            known = replace(known, alpha=known.alpha + evidence)
            beliefs.append(known.alpha)
            steps.append(Step(node, evidence, scores, routes.choice, routes.relaxed, walking))
        return self._trace(beliefs, steps)

    def states(self, x: Float[Tensor, "B F"], order: Int[Tensor, "B T"]) -> tuple[Tensor, Tensor]:
        """Features [B, T + 1, F] and history [B, T + 1, N] before and after each purchase of a given order."""
        bought = F.one_hot(order, len(self.panels)).to(x.dtype).cumsum(1)
        bought = torch.cat([torch.zeros_like(bought[:, :1]), bought], dim=1)
        return self.unveiled(x[:, None], bought), bought

    def _along(self, x: Float[Tensor, "B F"], policy: Policy, order: Int[Tensor, "B T"]) -> AcquisitionTrace:
        """A rollout in a given order: all experts, and all that the policy says, in one go instead of step by step."""
        features, bought = self.states(x, order)
        after = [part[:, 1:].flatten(0, 1) for part in (features, bought)]
        evidence = self.evidence(after[0], after[1], order.flatten()).unflatten(0, order.shape)
        beliefs, added = [self.prior.expand(len(x), -1)], list[Tensor]()
        for said in evidence.unbind(1):
            added.append(self.grown(beliefs[-1], said))
            beliefs.append(beliefs[-1] + added[-1])
        known = self._before(x, order, features, bought, beliefs)
        scores = policy(known).masked_fill(known.bought > 0, -math.inf).unflatten(0, order.shape)
        moves = zip(order.unbind(1), added, scores.unbind(1), strict=True)
        return self._trace(beliefs, [Step(1 + panel, said, logits, panel) for panel, said, logits in moves])

    def visited(self, x: Float[Tensor, "B F"], order: Int[Tensor, "B T"], trace: AcquisitionTrace) -> Known:
        """What was known before each purchase of a rollout in a given order: state t of case b is row `b * T + t`."""
        return self._before(x, order, *self.states(x, order), trace.beliefs)

    def knowing(self, x: Float[Tensor, "B F"], bought: Float[Tensor, "M N"], case: Int[Tensor, " M"]) -> Known:
        """What is known of cases that have bought these panels, in whatever order: of a consistent belief only.

        The belief is the one of somebody who asked the experts once, at the end. Its mean is that of every order.
        """
        if self.growth != "consistent":
            raise InputError("beliefs that grow by absolute evidence depend on the order of purchases: give the order")
        features = self.unveiled(x[case], bought)
        prior = self.prior.expand(len(case), -1)
        said = self.evidence(features, bought, bought.argmax(1))
        left = self.start(x).left[case] - bought.to(self.costs) @ self.costs
        return Known(features, prior + self.grown(prior, said), bought, left, case)

    def _before(
        self, x: Tensor, order: Int[Tensor, "B T"], features: Tensor, bought: Tensor, beliefs: Sequence[Tensor]
    ) -> Known:
        start, spent = self.start(x), self.costs[order].cumsum(1)
        left = start.left[:, None] - torch.cat([torch.zeros_like(spent[:, :1]), spent], dim=1)
        steps = order.shape[1]
        return Known(
            features[:, :-1].flatten(0, 1),
            torch.stack(list(beliefs[:steps]), 1).detach().flatten(0, 1),
            bought[:, :-1].flatten(0, 1),
            left[:, :-1].flatten(0, 1),
            start.case.repeat_interleave(steps),
        )

    def _trace(self, beliefs: list[Tensor], steps: list[Step]) -> AcquisitionTrace:
        temperature = self.calibration.temperature[: len(steps)] if bool(self.calibration.fitted) else None
        return AcquisitionTrace(
            self.panels.graph, self.prior, tuple(beliefs), tuple(steps), temperature=temperature, stop=self.stop
        )

    @torch.no_grad()
    def predict(
        self,
        x: Float[Tensor, "B F"],
        eta: float | None = None,
        policy: Policy | None = None,
        budget: float | None = None,
    ) -> tuple[Prediction, Float[Tensor, " B"]]:
        """In use: what is said of each case and what was spent on it, never more than the budget.

        A case whose doubt falls below eta leaves the batch: no panel of it is unveiled any more, no expert is asked.
        """
        eta, fitted = check_eta(eta), bool(self.calibration.fitted)
        known, row = self.start(x, budget), torch.arange(len(x), device=x.device)
        node, spent, stops, t = torch.zeros_like(row), self.costs.new_zeros(len(x)), list[Stop](), 0
        while len(row):
            belief = calibrated(known.alpha, self.calibration.temperature[t - 1]) if fitted and t else known.alpha
            closed = self.closed(known)
            content = closed.all(1)
            if t and eta is not None:
                content |= doubt_of(self.stop, belief) < eta
            stops.append(Stop(row[content], belief[content], node[row[content]], t))
            onward = (~content).nonzero().squeeze(1)
            known, row, x, closed = known.rows(onward), row[onward], x[onward], closed[onward]
            if len(row):
                panel = (policy or self.scores)(known).masked_fill(closed, -math.inf).argmax(-1)
                node[row] = 1 + panel
                spent[row] += self.costs[panel]
                known, t = self.bought_also(known, x, panel), t + 1
        return conclude(stops, float(self.prior.sum()), None), spent


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Its parameters learn nothing from what is computed inside."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def layered(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them, and a LayerNorm after the first (paper, appendix on triage)."""
    layers: list[nn.Module] = []
    for index, (size, next_size) in enumerate(pairwise((inputs, *hidden))):
        layers += [nn.Linear(size, next_size), *([nn.LayerNorm(next_size)] if index == 0 else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((inputs, *hidden)[-1], outputs))
