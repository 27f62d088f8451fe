"""The planner: what a panel is worth with the money that is left, learned by value iteration over budgets.

Greedy asks what a panel tells at once. The planner asks what will be known when the money is spent, if this panel is
bought now and everything after it as well as can be: a panel that tells nothing by itself, but what to buy next, is
worth its price. With `U(s)` the expected log score of the answer (minus the entropy of the belief's mean),

    Q(s, a, m) = E[U(s + a) - U(s) + max_a' Q(s + a, a', m - c_a)],

where m is the money left and the maximum is over panels that it still buys (0 where it buys none). Training cases are
fully observed, so every panel of every state can be tried; the expectation is what regression makes of single cases.
With money for one panel alone nothing follows: the recursion starts at what greedy maximises.

How far ahead it pays to look at each budget, validation decides: the further ahead, the less the next purchase matters,
and the more a small error of Q does. Beside plans of several lengths it may choose greedy, a network of its own that
learns from the same tried panels what each took away from the loss at once, and one order for all: where cases are few
and noisy, looking at the case can err more than it gains.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.domains.acquisition.buyers import Buyer, one_order, some_left
from nbsr_core.domains.acquisition.learned import Dime
from nbsr_core.domains.acquisition.options import SeparateOptions
from nbsr_core.learning.objectives import nll
from nbsr_core.learning.splits import Splits
from nbsr_core.model.acquisition import ROUNDING, Known, Policy
from nbsr_core.model.autoregressive import AutoregressiveNBSR, layered

# States that are learned from for each case of a batch, and panels that are tried at each: those that look best, and
# some by lot.
STATES_OF_A_CASE, BEST_TRIED, LOT_TRIED, BLUR = 1, 2, 2, 0.05
# Share of purchases by lot while it learns, and how far one batch moves the slow copy, which targets and choices come
# from: it errs less than the network of any one batch.
EXPLORED, SLOWNESS = 0.15, 0.02
# How the money left is shown to the network; how many amounts are planned for where no budgets are given.
BUMPS, AMOUNTS = 8, 10
# Probabilities below this look alike to the network.
LEAST_MEAN = 3e-4
# Validation rows on which plans of different length are compared.
ROWS_FOR_A_HORIZON = 2000
# The horizon of whoever does not look at the case at all.
ONE_ORDER = -1.0


class Value(nn.Module):
    """Q for all panels, from all that is known and the money left.

    The belief enters as the logarithm of its mean with its entropy; money as bumps along its logarithm, counted in the
    price of the cheapest panel.
    """

    def __init__(self, model: AutoregressiveNBSR, hidden: tuple[int, ...], most: float) -> None:
        super().__init__()
        self.cheapest = min(model.panels.costs)
        self.centres: Tensor
        self.register_buffer("centres", torch.linspace(0.0, 1.0, BUMPS) * math.log1p(most / self.cheapest))
        known = model.panels.num_features + len(model.panels) + model.num_classes + 1
        self.network = layered(known + BUMPS, hidden, 1 + len(model.panels))

    def forward(self, known: Known, left: Float[Tensor, " B"]) -> Float[Tensor, "B N"]:
        """The gain over `U(s)`: what the state is worth, and on top of it what each panel is."""
        mean = known.alpha / known.alpha.sum(-1, keepdim=True)
        entropy = torch.special.entr(mean).sum(-1, keepdim=True)
        place = torch.log1p(left.to(mean) / self.cheapest)[:, None]
        money = torch.exp(-((place - self.centres) / self.centres[1]).square())
        belief = mean.clamp_min(LEAST_MEAN).log() / 4
        said: Tensor = self.network(torch.cat([known.features, known.bought, belief, entropy, money], dim=1))
        return said[:, :1] + said[:, 1:] - said[:, 1:].mean(1, keepdim=True)


class Planner(Buyer):
    """Buys what is worth most at the end of the budget; without a budget, what promises most for its money.

    Without a budget nobody says how much may be spent, and one order must serve every stop: each panel is then judged
    by the best rate of gain per money over amounts that begin with it, `max_m Q(s, a, m) / m`; greedy is `m = c_a`.
    """

    learns = True
    follows_budget = True

    def __init__(self, model: AutoregressiveNBSR, options: SeparateOptions, budgets: tuple[float, ...]) -> None:
        super().__init__(model, options, budgets)
        prices = model.panels.costs
        spread = [min(prices) + (sum(prices) - min(prices)) * step / (AMOUNTS - 1) for step in range(AMOUNTS)]
        self.totals = tuple(min(budget, sum(prices)) for budget in budgets) or tuple(spread)
        self.value = Value(model, options.router.hidden, max(self.totals))
        self.slow = copy.deepcopy(self.value).requires_grad_(False)
        self.at_once = Dime(model, options, budgets)
        model.add_module("plan", self.value)
        model.add_module("plan_slow", self.slow)
        # How far ahead to look at each budget; 0 is greedy, ONE_ORDER the same for all cases.
        model.register_buffer("plan_horizon", torch.full((max(1, len(budgets)),), math.inf, dtype=torch.float64))
        model.register_buffer("plan_order", torch.zeros(len(model.panels)))

    def scores(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        total = known.left + known.bought.to(known.left) @ self.model.costs
        limits = torch.tensor(self.budgets[:-1], dtype=total.dtype, device=total.device)
        return self.planned(known, self.model.get_buffer("plan_horizon")[torch.bucketize(total - ROUNDING, limits)])

    def planned(self, known: Known, horizon: Float[Tensor, " B"]) -> Float[Tensor, "B N"]:
        """What each panel is worth to somebody who looks so far ahead."""
        found = torch.empty_like(known.bought)
        ahead = torch.minimum(known.left, horizon)
        for say, here in (
            (self.in_order, ahead < 0),
            (self.greedy, ahead == 0),
            (self.best_rate, ahead.isinf()),
            (self.slow, (ahead > 0) & ahead.isfinite()),
        ):
            rows = here.nonzero().squeeze(1)
            if len(rows):
                found[rows] = say(known.rows(rows), ahead[rows])
        return found

    def best_rate(self, known: Known, ahead: Float[Tensor, " B"]) -> Float[Tensor, "B N"]:
        """The largest gain per money over all amounts that buy the panel, its own price among them."""
        costs, best = self.costs(known.bought), self.greedy(known, ahead)
        for amount in self.totals:
            rate = self.slow(known, torch.full_like(ahead, amount)) / amount
            best = torch.where(costs <= amount + ROUNDING, torch.maximum(best, rate), best)
        return best

    def greedy(self, known: Known, ahead: Float[Tensor, " B"]) -> Float[Tensor, "B N"]:
        """What each panel takes away at once, for its price."""
        return self.at_once.scores(known, known.features)

    def in_order(self, known: Known, ahead: Float[Tensor, " B"]) -> Float[Tensor, "B N"]:
        """The order that was best for all validation cases."""
        return self.model.get_buffer("plan_order").expand(len(known), -1)

    @torch.no_grad()
    def tour(self, x: Float[Tensor, "B F"]) -> Int[Tensor, "T B"]:
        """Rollouts to learn from, each with a budget by lot and with some purchases by lot."""
        model, row, bought = self.model, torch.arange(len(x), device=x.device), list[Tensor]()
        totals = torch.tensor(self.totals, dtype=torch.float64, device=x.device)
        known = replace(model.start(x), left=totals[torch.randint(len(totals), (len(x),), device=x.device)])
        while len(going := (~model.closed(known).all(1)).nonzero().squeeze(1)):
            known, row = known.rows(going), row[going]
            said = self.value(known, known.left)
            by_lot = torch.rand(len(row), 1, device=x.device) < EXPLORED
            said = torch.where(by_lot, torch.rand_like(said), said).masked_fill(model.closed(known), -math.inf)
            panel = said.argmax(-1)
            bought.append(torch.full((len(x),), -1, device=x.device).index_copy(0, row, panel))
            known = model.bought_also(known, x[row], panel)
        return torch.stack(bought)

    def loss(self, known: Known, x: Float[Tensor, "B F"], y: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Squared error over some of the states, with money by lot, and some panels at each."""
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.value.parameters(), strict=True):
                slow.lerp_(fast, SLOWNESS)
            known = self.with_money(known, len(x))
            row, panel = self.tried(known)
            before = known.rows(row)
            then = self.model.bought_also(before, x[before.case], panel)
            worth, told = self.worth(before, then), self.at_once.told(before, then, y)
        planned, expected = self.value(known, known.left)[row, panel], self.at_once.expected(known)[row, panel]
        return F.mse_loss(planned, worth) + F.mse_loss(expected, told)

    def with_money(self, known: Known, cases: int) -> Known:
        """Some of the states, each with what is left of a total, by lot among the totals that still buy something."""
        costs, device = self.model.costs, known.bought.device
        spent = known.bought.to(costs) @ costs
        totals = torch.tensor(self.totals, dtype=costs.dtype, device=device)
        cheapest = costs.expand(len(known), -1).masked_fill(known.bought > 0, math.inf).amin(1)
        enough = totals - spent[:, None] >= cheapest[:, None] - ROUNDING
        drawn = torch.rand(enough.shape, device=device).masked_fill(~enough, -1.0).max(1)
        left = totals[drawn.indices] - spent
        rows = (drawn.values >= 0).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows), device=device)[: STATES_OF_A_CASE * cases]]
        return replace(known, left=left).rows(rows)

    def tried(self, known: Known) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"]]:
        """(state, panel): the panels that look best, and some by lot."""
        closed = self.model.closed(known)
        said = self.value(known, known.left)
        best = (
            (said + BLUR * torch.randn_like(said)).masked_fill(closed, -math.inf).topk(min(BEST_TRIED, said.shape[1]))
        )
        row, place = (best.values > -math.inf).nonzero(as_tuple=True)
        row_by_lot, by_lot = some_left(closed.to(said), LOT_TRIED)
        return torch.cat([row, row_by_lot]), torch.cat([best.indices[row, place], by_lot])

    def worth(self, before: Known, then: Known) -> Float[Tensor, " M"]:
        """What a panel was worth: what it told at once, and what the money left after it is expected to.

        The network says which panel would follow, its slow copy what that one is worth, lest the largest of many
        errors be taken for a gain.
        """
        closed = self.model.closed(then)
        following = self.value(then, then.left).masked_fill(closed, -math.inf).argmax(-1, keepdim=True)
        later = self.slow(then, then.left).gather(1, following).squeeze(1).clamp_min(0.0)
        worth: Tensor = (
            expected_score(then.alpha) - expected_score(before.alpha) + later.masked_fill(closed.all(1), 0.0)
        )
        return worth

    @torch.no_grad()
    def finish(self, splits: Splits) -> None:
        """For each budget, how far ahead to look: not at all (greedy), to the end, or as far as a smaller budget.

        Or in one order for all. It is found on validation cases too, so that each half of them judges the order that
        was found on the other.
        """
        model, chosen, order = self.model, self.model.get_buffer("plan_horizon"), self.model.get_buffer("plan_order")
        x, y = (part[:ROWS_FOR_A_HORIZON].to(chosen.device) for part in (splits.valid.x, splits.valid.y))
        halves = [(x[start::2], y[start::2]) for start in range(min(2, len(x)))]
        found: list[dict[float, float]] = [{} for _ in chosen]
        for half, others in zip(halves, halves[::-1], strict=True):
            order.copy_(one_order(model, *others))
            for budget, said in zip(self.budgets or (None,), found, strict=True):
                for horizon in (*self.horizons(budget), ONE_ORDER):
                    said[horizon] = said.get(horizon, 0.0) + self.judged(horizon, *half, budget)
        order.copy_(one_order(model, x, y))
        chosen.copy_(chosen.new_tensor([max(said, key=said.__getitem__) for said in found]))

    def judged(self, horizon: float, x: Float[Tensor, "B F"], y: Int[Tensor, " B"], budget: float | None) -> float:
        """How well these cases fare with somebody who looks so far ahead: log score, or area without a budget."""
        trace = self.model(x, self.looking(horizon), budget=budget)
        return -float(nll(trace.beliefs[-1], y)) if budget else trace.frontier(y).area(1 / self.model.num_classes)

    def horizons(self, budget: float | None) -> Iterator[float]:
        yield 0.0
        yield from (total for total in self.totals if budget is not None and total < budget)
        yield math.inf

    def looking(self, horizon: float) -> Policy:
        """The policy that looks so far ahead."""
        return lambda known: self.planned(known, known.left.new_full((len(known),), horizon))


def expected_score(alpha: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
    """The log score that a belief expects of its own answer: minus the entropy of its mean."""
    entropy: Tensor = torch.special.entr(alpha / alpha.sum(-1, keepdim=True)).sum(-1)
    return -entropy
