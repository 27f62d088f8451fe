"""Who decides which panel is bought next, and the buyers that learn nothing by gradient: by lot, by price, by a list.

Every buyer works with every set of experts: what experts learn and who decides the order are two separate choices, so
that a study can tell which of the two a result is owed to.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nbsr_core.domains.acquisition.options import SeparateOptions
from nbsr_core.learning.objectives import nll
from nbsr_core.learning.splits import Splits
from nbsr_core.model.acquisition import Known, doubt_of
from nbsr_core.model.autoregressive import AutoregressiveNBSR

# Rows that go through the experts at once where every panel of every case is tried.
MOST_TRIED = 1 << 17
# Validation rows that a fixed order is found on.
ROWS_FOR_AN_ORDER = 1000


class Buyer:
    """What buying each panel next is worth, the best one highest.

    Args:
        model: the network with its experts.
        options: of the study.
        budgets: that the buyer will be given, rising; empty where there are none.

    Attributes:
        learns: whether it learns by gradient beside the experts, see `loss`.
        peeks: whether it looks at what was not bought, so that it needs all features before the first purchase.
        tours: whether experts may learn on its own way before it is trained, see `tour`.
        follows_budget: whether the order depends on what is left to spend, so that each budget needs its own rollout.
    """

    learns: ClassVar[bool] = False
    peeks: ClassVar[bool] = False
    tours: ClassVar[bool] = True
    follows_budget: ClassVar[bool] = False

    def __init__(self, model: AutoregressiveNBSR, options: SeparateOptions, budgets: tuple[float, ...]) -> None:
        self.model, self.options, self.budgets = model, options, budgets

    def scores(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        """What is thought of each panel; whoever calls rules out what cannot be bought.

        The cases themselves are given only in order that a buyer may be caught peeking.
        """
        raise NotImplementedError

    def tour(self, x: Float[Tensor, "B F"]) -> Int[Tensor, "T B"]:
        """What it buys step by step while experts learn from its rollouts, -1 where one is over."""
        bought: Tensor = self.model(x, lambda known: self.scores(known, x[known.case])).bought
        return bought

    def loss(self, known: Known, x: Float[Tensor, "B F"], y: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """What it learns from a batch: states of its cases, several of some of them, `known.case` says of which.

        The experts learn nothing from it.
        """
        raise NotImplementedError

    def finish(self, splits: Splits) -> None:
        """What is found after the last epoch, on data that the gradient never saw."""

    @property
    def ignores(self) -> dict[str, str]:
        """Options of the study that make no difference to it."""
        if not self.learns:
            return dict.fromkeys(("router", "policy_after"), "this order of buying is not learned by gradient")
        return {}

    def costs(self, like: Tensor) -> Float[Tensor, " N"]:
        return self.model.costs.to(like.dtype)

    def doubt(self, alpha: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
        """What is to fall: the entropy by which rollouts stop."""
        return doubt_of(self.model.stop, alpha)

    def network(self) -> nn.Module:
        """A network of the router's shape: the router itself, unless the experts learn with it."""
        if self.options.expert_training != "end_to_end":
            return self.model.router
        self.model.add_module("policy", self.model.another_router(self.options.router))
        return self.model.get_submodule("policy")


class Random(Buyer):
    """By lot: each case in an order of its own, the same whenever it is asked."""

    def scores(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        generator = torch.Generator().manual_seed(0)
        lot = torch.rand(int(known.case.max()) + 1, len(self.model.panels), generator=generator)
        return lot.to(x)[known.case]


class CheapFirst(Buyer):
    """By price."""

    def scores(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        return -self.costs(x).expand(len(known), -1)


class FixedOrder(Buyer):
    """One order for all cases, found on the validation split: each time what lowers the NLL most for its price."""

    tours = False

    def __init__(self, model: AutoregressiveNBSR, options: SeparateOptions, budgets: tuple[float, ...]) -> None:
        super().__init__(model, options, budgets)
        model.register_buffer("rank", torch.zeros(len(model.panels)))

    def scores(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        return self.model.get_buffer("rank").expand(len(known), -1)

    @torch.no_grad()
    def finish(self, splits: Splits) -> None:
        rank = self.model.get_buffer("rank")
        x, y = (part[:ROWS_FOR_AN_ORDER].to(rank.device) for part in (splits.valid.x, splits.valid.y))
        rank.copy_(one_order(self.model, x, y))


class OraclePeeking(Buyer):
    """Sees results before it pays for them: what no policy in use can know. A bound for greedy ones."""

    peeks = True
    tours = False

    def scores(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        """Entropy that each panel really takes away, for its price."""
        after = after_each(self.model, known, x)
        gain = self.doubt(known.alpha)[:, None] - self.doubt(after.flatten(0, 1)).unflatten(0, known.bought.shape)
        worth: Tensor = gain / self.costs(x)
        return worth


def one_order(model: AutoregressiveNBSR, x: Float[Tensor, "B F"], y: Int[Tensor, " B"]) -> Float[Tensor, " N"]:
    """Ranks of the panels, the first the highest: each time what lowers the NLL of these cases most for its price."""
    # Whatever the budgets do not reach follows by price, below all that was found.
    rank, known = -model.costs.argsort().argsort().to(x) - 1, model.start(x)
    for step in range(model.steps):
        tried = torch.stack([nll(alpha, y) for alpha in after_each(model, known, x).unbind(1)])
        value = (nll(known.alpha, y) - tried) / model.costs.to(tried)
        panel = value.masked_fill(known.bought[0] > 0, -math.inf).argmax()
        rank[panel] = model.steps - step
        known = model.bought_also(known, x, panel.expand(len(x)))
    return rank


def after_each(model: AutoregressiveNBSR, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N K"]:
    """The belief of each case after each panel, had it been bought next."""
    panels = len(model.panels)
    parts = []
    for rows in torch.arange(len(x), device=x.device).split(max(1, MOST_TRIED // panels)):
        row = rows.repeat_interleave(panels)
        panel = torch.arange(panels, device=x.device).repeat(len(rows))
        parts.append(model.bought_also(known.rows(row), x[row], panel).alpha.unflatten(0, (len(rows), panels)))
    return torch.cat(parts)


def some_left(bought: Float[Tensor, "B N"], most: int) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"]]:
    """(case, panel) for at most so many panels of each case that were not bought, drawn by lot where there are more."""
    lot = torch.rand_like(bought).masked_fill(bought > 0, -1.0)
    drawn = lot.topk(min(most, bought.shape[1]), dim=1)
    row, place = (drawn.values >= 0).nonzero(as_tuple=True)
    return row, drawn.indices[row, place]


def random_orders(x: Float[Tensor, "B F"], panels: int) -> Int[Tensor, "B panels"]:
    """One order of all panels a case, all orders alike likely."""
    return torch.rand(x.shape[0], panels, device=x.device).argsort(1)


def completed(bought: Int[Tensor, "T B"], panels: int) -> Int[Tensor, "B panels"]:
    """Orders that begin as rollouts did and go on by lot; -1 stands where a rollout was over."""
    steps = len(bought)
    rank = torch.rand(bought.shape[1], panels + 1, device=bought.device)  # one place more for the -1
    place = torch.arange(steps, device=bought.device).to(rank) - steps
    rank.scatter_(1, bought.T % (panels + 1), place.expand(bought.shape[1], -1))
    return rank[:, :panels].argsort(1)
