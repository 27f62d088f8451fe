"""Who buys which panel next: the paper's router, a planner, and the baselines, all as learners of one shape.

The paper trains experts and router end to end. Here a router's gradient has to pass through experts that it has not
chosen often enough to be good. The other learners part the two: experts learn on *random* orders, so that they are
good whatever was bought before, and the router learns, from the same rollouts, what each panel would have been worth.
Training cases are fully observed, so that is known for every panel of every state, not only for the one bought. In
use nobody sees an unbought feature, the oracle excepted, which says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nbsr_core.belief import dirichlet
from nbsr_core.domains.triage.data import TriageSplits
from nbsr_core.errors import InputError
from nbsr_core.learning import EpochRecord, TrainingConfig
from nbsr_core.learning.learners import TRACE_CHUNK, Answers, Execution, Family, TorchLearner, answers_of_walks
from nbsr_core.learning.objectives import nll, weighted_terms
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.acquisition import AcquisitionTrace, Known, Policy, doubt_of
from nbsr_core.model.autoregressive import AutoregressiveNBSR
from nbsr_core.model.network import evaluating
from nbsr_core.options.specs import ObjectiveWeights
from nbsr_core.trace.belief_trace import BeliefTrace

Order = Literal["random", "cheap_first", "greedy", "planner", "oracle"]


class TriageLearner(TorchLearner):
    """A model that buys panels; subclasses say how it is trained and in which order it buys."""

    family: ClassVar[Family] = "nbsr"
    walks = True
    peeks = False
    """Whether its policy looks at what was not bought, so that it needs all features before the first purchase."""

    def __init__(self, model: AutoregressiveNBSR) -> None:
        super().__init__(model)
        self.model = model

    def train(self, splits: Splits, config: TrainingConfig, seed: int, execution: Execution) -> Iterator[EpochRecord]:
        if not isinstance(splits, TriageSplits):
            raise InputError(f"triage needs splits with panels, got {type(splits).__name__}")
        self.model.set_costs(splits.panels.costs)
        yield from super().train(splits, config, seed, execution)

    def policy(self, x: Float[Tensor, "B F"]) -> Policy:
        """How these cases are treated; a policy is given the cases themselves only in order to be caught peeking."""
        return self.model.scores

    @torch.no_grad()
    def calibrate(self, split: Split) -> None:
        """One temperature per purchase."""
        self.use_temperatures(())
        self.model.calibration.fit(torch.stack(self.trace(split.x).beliefs), split.y)
        self.temperatures = self.model.calibration.found

    def use_temperatures(self, temperatures: Sequence[float]) -> None:
        super().use_temperatures(temperatures)
        self.model.calibration.use(temperatures)

    @torch.no_grad()
    def trace(self, x: Float[Tensor, "N F"]) -> AcquisitionTrace:
        """The rollout of a whole split until all is bought."""
        with evaluating(self.model):
            parts = [part.to(self.model.prior.device) for part in x.split(TRACE_CHUNK)]
            whole = BeliefTrace.concat([self.model(part, self.policy(part)).detach() for part in parts])
        assert isinstance(whole, AcquisitionTrace)
        return whole

    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        """With full information: everything bought."""
        return self.trace(x).raw_probabilities().cpu()

    def probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        return self.trace(x).probabilities().cpu()

    def answers(self, split: Split) -> Answers:
        return answers_of_walks(self.trace(split.x), self.labels(split.y))

    @property
    def ignores(self) -> dict[str, str]:
        unread = ("evaluation.max_nll_loss", "evaluation.prune")
        return super().ignores | dict.fromkeys(unread, "triage does not look at it")


class EndToEnd(TriageLearner):
    """The paper's AR-NBSR: NLL + lambda sum H + gamma sum cost through Gumbel straight-through choices."""

    def __init__(self, model: AutoregressiveNBSR, objective: ObjectiveWeights) -> None:
        super().__init__(model)
        self.objective = objective

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        return weighted_terms(self.objective, module(x), y, epoch=epoch)

    @property
    def terms(self) -> tuple[str, ...]:
        return self.objective.terms


class Separate(TriageLearner):
    """Experts on random orders; beside them, for the orders that need one, a router that learns what panels are worth.

    Args:
        model: the network.
        order: who decides. `planner` and `greedy` ask the router, the others need none.
        horizon: (strict, lax): the thresholds for which the planner plans, see `unfinished`.
        policy_after: epochs before the router starts to learn; until then the experts change too much.
    """

    def __init__(
        self,
        model: AutoregressiveNBSR,
        order: Order,
        *,
        horizon: tuple[float, float],
        policy_after: int,
    ) -> None:
        super().__init__(model)
        self.order, self.horizon, self.policy_after = order, horizon, policy_after
        self.peeks = order == "oracle"

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        order = random_orders(x, len(self.model.panels))
        trace = module(x, order=order)
        terms = {"nll": torch.stack([nll(alpha, y) for alpha in trace.beliefs[1:]]).mean()}
        if self.order in ("planner", "greedy") and epoch >= self.policy_after:
            terms["policy"] = self.policy_loss(trace, x, order)
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss", "nll", *(("policy",) if self.order in ("planner", "greedy") else ()))

    def policy_loss(self, trace: AcquisitionTrace, x: Float[Tensor, "B F"], order: Int[Tensor, "B N"]) -> Tensor:
        """Squared error of the router's scores, over all states of the rollouts and all panels still to be had."""
        with torch.no_grad():
            lessons = list(self.lessons(x, order))
        wrong, count = x.new_zeros(()), 0
        for step, (row, panel, target) in zip(trace.steps, lessons, strict=True):
            wrong = wrong + (step.logits[row, panel] - target).square().sum()
            count += len(row)
        return wrong / count

    def lessons(
        self, x: Float[Tensor, "B F"], order: Int[Tensor, "B N"]
    ) -> Iterator[tuple[Int[Tensor, " M"], Int[Tensor, " M"], Float[Tensor, " M"]]]:
        """At each step (case, panel, what the router should have said), for every panel not yet bought.

        For `greedy` that is the entropy which the panel took away. For `planner` it is minus what was still to be
        spent after it: one step of value iteration, in which the router itself says what the best continuation
        costs. With N panels the recursion ends after N steps.
        """
        model, known = self.model, self.model.start(x)
        for t in range(order.shape[1]):
            row, panel = (known.bought == 0).nonzero(as_tuple=True)
            then = model.bought_also(known.rows(row), x[row], panel)
            if self.order == "greedy":
                target = self.uncertainty(known)[row] - self.uncertainty(then)
            elif t + 1 < order.shape[1]:
                target = self.plan(then).masked_fill(then.bought > 0, -math.inf).amax(-1).clamp_max(0.0)
            else:
                target = torch.zeros_like(then.alpha[:, 0])
            yield row, panel, target
            known = then.rows((panel == order[row, t]).nonzero().squeeze(1))  # one a case, in the order of the cases

    def uncertainty(self, known: Known) -> Float[Tensor, " B"]:
        """What is to fall: the entropy by which rollouts stop."""
        return doubt_of(self.model.stop, known.alpha)

    def unfinished(self, known: Known) -> Float[Tensor, " B"]:
        """Share of the thresholds that a case has not yet met, for thresholds spread evenly (in the logarithm of the
        categorical entropy) between a strict and a lax one.

        One rollout serves every threshold, so its order is planned for a whole range of them: a panel that is bought
        while a share w of the thresholds still asks for more adds w times its price to the mean cost.
        """
        strict, lax = map(math.log, self.horizon)
        entropy = dirichlet.categorical_entropy(known.alpha, validate_args=False)
        return ((entropy.clamp_min(1e-12).log() - strict) / (lax - strict)).clamp(0.0, 1.0)

    def plan(self, known: Known) -> Float[Tensor, "B N"]:
        """Minus the expected cost of buying each panel now and going on as well as can be, as a share of all costs."""
        costs = (self.model.costs / self.model.costs.sum()).to(known.alpha)
        return self.model.scores(known) - self.unfinished(known)[:, None] * costs

    def policy(self, x: Float[Tensor, "B F"]) -> Policy:
        model, costs = self.model, self.model.costs.to(x)
        if self.order == "planner":
            return self.plan
        if self.order == "greedy":
            return lambda known: model.scores(known) / costs
        if self.order == "cheap_first":
            return lambda known: -costs.expand(len(known.bought), -1)
        if self.order == "random":
            rank = torch.rand(x.shape[0], len(model.panels), generator=torch.Generator().manual_seed(0)).to(x)
            return lambda known: rank
        return lambda known: self.peek(known, x) / costs

    @property
    def ignores(self) -> dict[str, str]:
        found = super().ignores | {"training.temperature": "experts learn on random orders, without routers"}
        if self.order != "planner":
            found["horizon"] = "only the planner plans"
        if self.order not in ("planner", "greedy"):
            found |= dict.fromkeys(("router", "policy_after"), "this order of buying needs no router")
        return found

    def peek(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        """Entropy that each panel really takes away, seen before it is bought: what no policy in use can know."""
        row, panel = (known.bought == 0).nonzero(as_tuple=True)
        then = self.model.bought_also(known.rows(row), x[row], panel)
        gain = self.uncertainty(known)[row] - self.uncertainty(then)
        return torch.full_like(known.bought, -math.inf).index_put((row, panel), gain)


class Baseline(Separate):
    """The same experts in an order that plans nothing."""

    family = "baseline"


def random_orders(x: Float[Tensor, "B F"], panels: int) -> Int[Tensor, "B panels"]:
    """One order of all panels a case, all orders alike likely."""
    return torch.rand(x.shape[0], panels, device=x.device).argsort(1)
