"""Models that buy panels, as learners: how experts are trained is one thing, who decides the order another.

The paper trains experts and router end to end. There a router's gradient has to pass through experts that it has not
chosen often enough to be good. The other learners part the two: experts learn on *random* orders, so that they are
good whatever was bought before, or half on random ones and half as the buyer would have it, so that they are best where
it goes; and the buyer learns beside them, from the same rollouts, what each panel would have been worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.domains.acquisition.buyers import Buyer, Random, completed, random_orders
from nbsr_core.domains.acquisition.learned import Gdfs, Router
from nbsr_core.domains.acquisition.options import SeparateOptions
from nbsr_core.learning.learners import TRACE_CHUNK, Answers, Family, TorchLearner, answers_of_walks
from nbsr_core.learning.objectives import nll, weighted_terms
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.acquisition import AcquisitionTrace, Known, Policy
from nbsr_core.model.autoregressive import AutoregressiveNBSR, frozen
from nbsr_core.model.network import evaluating
from nbsr_core.trace.belief_trace import BeliefTrace

# While experts of a consistent belief learn: share of the cases that go the buyer's own way, and how many states on it
# are learned from, for each of them.
TOURED, STATES_OF_A_TOUR = 1 / 2, 6


class AcquisitionLearner(TorchLearner):
    """A model that buys panels.

    Args:
        model: the network.
        buyer: who decides what is bought next.
        options: of the study.
        budgets: at which it is judged, rising; empty where there are none.
    """

    family: ClassVar[Family] = "nbsr"
    walks = True

    def __init__(
        self, model: AutoregressiveNBSR, buyer: Buyer, options: SeparateOptions, budgets: tuple[float, ...] = ()
    ) -> None:
        super().__init__(model)
        self.model, self.buyer, self.options, self.budgets = model, buyer, options, budgets
        self._remembered: dict[tuple[int, float | None], tuple[Tensor, AcquisitionTrace]] | None = None

    @property
    def peeks(self) -> bool:
        """Whether it needs all features before the first purchase."""
        return self.buyer.peeks

    def policy(self, x: Float[Tensor, "B F"]) -> Policy:
        """How these cases are treated; the buyer is given the cases themselves only in order to be caught peeking."""
        return lambda known: self.buyer.scores(known, x[known.case])

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        end_to_end, due = self.options.expert_training == "end_to_end", epoch >= self.options.policy_after
        if end_to_end and isinstance(self.buyer, Router):
            return weighted_terms(self.options.objective, module(x), y, epoch=epoch)
        if self.model.growth == "consistent" and not end_to_end:
            known = self.model.knowing(x, *self._states(x, due))
            terms = _of_experts(nll(known.alpha, y[known.case]))
            drawn = torch.randperm(len(known), device=x.device)[: len(x)]  # as many as cases are enough for a buyer
            known = replace(known, alpha=known.alpha.detach()).rows(drawn)
        else:
            order = self._orders(x, due)
            trace = module(x, _nothing, order)
            known = self.model.visited(x, order, trace)
            if end_to_end:
                terms = weighted_terms(self.options.objective, module(x), y, epoch=epoch)
            else:
                terms = _of_experts(torch.stack([nll(alpha, y) for alpha in trace.beliefs[1:]]).mean())
        if self.buyer.learns and due:
            going = (~self.model.closed(known).all(1)).nonzero().squeeze(1)  # where something can still be bought
            with frozen(self.model.experts):
                learned = self.buyer.loss(known.rows(going), x, y) if len(going) else torch.zeros_like(terms["loss"])
            terms = {**terms, "loss": terms["loss"] + learned, "policy": learned}
        return terms

    @torch.no_grad()
    def _states(self, x: Float[Tensor, "B F"], due: bool) -> tuple[Float[Tensor, "M N"], Int[Tensor, " M"]]:
        """What was bought and by which case, in states that are learned from; where a belief does not depend on the
        order of purchases, states of many cases teach more than all states of a few.

        Any number of panels by lot, whatever they cost: from cases of which much is known experts learn soonest what
        is about what. And of some cases, states on the buyer's own way.
        """
        panels, some = len(self.model.panels), 0
        if due and self.options.expert_training == "mixed" and self.buyer.tours:
            some = max(1, round(TOURED * len(x)))
        case = torch.arange(some, len(x), device=x.device)
        count = torch.randint(panels + 1, (len(case), 1), device=x.device)
        bought = (random_orders(x[some:], panels).argsort(1) < count).to(x)
        if not some:
            return bought, case
        with evaluating(self.model):
            tour = self.buyer.tour(x[:some])
        walking = torch.cat([torch.ones_like(tour[:1], dtype=torch.bool), tour >= 0])
        step, toured = walking.nonzero(as_tuple=True)
        drawn = torch.randperm(len(step), device=x.device)[: STATES_OF_A_TOUR * some]
        step, toured = step[drawn], toured[drawn]
        gained = F.one_hot(tour % (panels + 1), panels + 1)[..., :panels].cumsum(0).to(x)
        history = torch.cat([torch.zeros_like(gained[:1]), gained])[step, toured]
        return torch.cat([bought, history]), torch.cat([case, toured])

    @torch.no_grad()
    def _orders(self, x: Float[Tensor, "B F"], due: bool) -> Int[Tensor, "B T"]:
        """In which experts see the panels of each case: by lot, or for half of them as the buyer would buy."""
        panels = len(self.model.panels)
        orders = random_orders(x, panels)
        if self.options.expert_training == "mixed" and due and len(x) > 1 and self.buyer.tours:
            some = x[: len(x) // 2]
            with evaluating(self.model):
                orders[: len(some)] = completed(self.buyer.tour(some), panels)
        return orders[:, : self.model.steps]

    @property
    def terms(self) -> tuple[str, ...]:
        if self.options.expert_training != "end_to_end":
            return ("loss", "nll", *(("policy",) if self.buyer.learns else ()))
        return (*self.options.objective.terms, *(() if isinstance(self.buyer, Router) else ("policy",)))

    def finish(self, splits: Splits) -> None:
        with evaluating(self.model):
            self.buyer.finish(splits)

    def _figures(self, split: Split) -> dict[str, float]:
        """After each epoch; by lot where the order is not learned yet, which an oracle would take long to find."""
        if self.buyer.learns:
            return super()._figures(split)
        buyer, self.buyer = self.buyer, Random(self.model, self.options, self.budgets)
        try:
            return super()._figures(split)
        finally:
            self.buyer = buyer

    @torch.no_grad()
    def calibrate(self, split: Split) -> None:
        """One temperature per purchase."""
        self.use_temperatures(())
        trace = self.trace(split.x)
        self.model.calibration.fit(torch.stack(trace.beliefs), split.y, trace.walking)
        self.temperatures = self.model.calibration.found

    def use_temperatures(self, temperatures: Sequence[float]) -> None:
        super().use_temperatures(temperatures)
        self.model.calibration.use(temperatures)

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """While a trained model is judged: a split that is rolled out once need not be again."""
        self._remembered = {}
        try:
            yield
        finally:
            self._remembered = None

    def trace(self, x: Float[Tensor, "N F"], budget: float | None = None) -> AcquisitionTrace:
        """The rollout of a whole split until the budget is spent, the largest by default; all is bought without one."""
        if self._remembered is None:
            return self._rolled_out(x, budget)
        key = (id(x), budget)  # kept beside the trace, x is not replaced by another of the same id
        if key not in self._remembered:
            self._remembered[key] = x, self._rolled_out(x, budget)
        return self._remembered[key][1]

    @torch.no_grad()
    def _rolled_out(self, x: Float[Tensor, "N F"], budget: float | None) -> AcquisitionTrace:
        with evaluating(self.model):
            parts = [part.to(self.model.prior.device) for part in x.split(TRACE_CHUNK)]
            rollouts = [self.model(part, self.policy(part), budget=budget).detach() for part in parts]
            whole = BeliefTrace.concat(rollouts)
        assert isinstance(whole, AcquisitionTrace)
        return whole

    @property
    def one_rollout_for_all(self) -> bool:
        """Whether a smaller budget ends the same rollout earlier: where prices differ, it may buy something else."""
        return not self.buyer.follows_budget and len(set(self.model.panels.costs)) == 1

    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        """With all that the largest budget buys: everything, where there is no budget."""
        return self.trace(x).raw_probabilities().cpu()

    def probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        return self.trace(x).probabilities().cpu()

    def answers(self, split: Split) -> Answers:
        return answers_of_walks(self.trace(split.x), self.labels(split.y))

    @property
    def ignores(self) -> dict[str, str]:
        unread = ("evaluation.max_nll_loss", "evaluation.prune")
        found = super().ignores | dict.fromkeys(unread, "models that buy panels do not look at it") | self.buyer.ignores
        trains_router = self.options.expert_training == "end_to_end" or isinstance(self.buyer, Router)
        if not trains_router:
            found |= dict.fromkeys(("objective", "training_eta"), "no router learns from its own rollouts")
            if not isinstance(self.buyer, Gdfs):
                found["training.temperature"] = "no choice is relaxed while it learns"
        return found


class Baseline(AcquisitionLearner):
    """The same experts in an order that plans nothing."""

    family = "baseline"


def _of_experts(loss: Tensor) -> dict[str, Tensor]:
    return {"loss": loss, "nll": loss}


def _nothing(known: Known) -> Float[Tensor, "B N"]:
    """Where a rollout's order is given and nobody asks what a policy would have said."""
    return torch.zeros_like(known.bought)
