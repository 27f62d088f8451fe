"""Buyers that learn by gradient beside the experts: the paper's router, greedy ones, and two from the literature.

Training cases are fully observed, so what a panel would have told is known for every panel of every state. The experts
learn nothing from what a buyer learns, and in use no buyer sees an unbought feature.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nbsr_core.domains.acquisition.buyers import Buyer, some_left
from nbsr_core.domains.acquisition.options import SeparateOptions
from nbsr_core.kernels import gumbel_noise
from nbsr_core.learning.objectives import weighted_terms
from nbsr_core.model.acquisition import Known, doubt_of
from nbsr_core.model.autoregressive import AutoregressiveNBSR

# Panels that are tried at each state of a batch; all of them where fewer are left.
MOST_LESSONS = 5


class Router(Buyer):
    """The paper's: `NLL + lambda sum H + gamma sum cost` of its own rollouts, through Gumbel straight-through choices.

    With experts that learn end to end it learns from the same loss as they do; with others they stand still.
    """

    learns = True

    def scores(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        return self.model.scores(known)

    def loss(self, known: Known, x: Float[Tensor, "B F"], y: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        return weighted_terms(self.options.objective, self.model(x), y)["loss"]


class Greedy(Buyer):
    """The largest expected fall of the entropy per cost: conditional mutual information, learned by regression."""

    learns = True

    def __init__(self, model: AutoregressiveNBSR, options: SeparateOptions, budgets: tuple[float, ...]) -> None:
        super().__init__(model, options, budgets)
        self.value = self.network()

    def scores(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        return self.expected(known) / self.costs(x)

    def expected(self, known: Known) -> Float[Tensor, "B N"]:
        """What each panel is expected to take away."""
        said: Tensor = self.value(self.model.described(known, self.options.router))
        return said

    def loss(self, known: Known, x: Float[Tensor, "B F"], y: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Squared error over the states of the rollouts and the panels still to be had."""
        row, panel, gain = self.lessons(known, x, y)
        return F.mse_loss(self.expected(known)[row, panel], gain)

    @torch.no_grad()
    def lessons(
        self, known: Known, x: Float[Tensor, "B F"], y: Int[Tensor, " B"]
    ) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"], Float[Tensor, " M"]]:
        """(state, panel, what the panel took away) for panels that were not bought yet."""
        row, panel = some_left(known.bought, MOST_LESSONS)
        before = known.rows(row)
        return row, panel, self.told(before, self.model.bought_also(before, x[before.case], panel), y)

    def told(self, before: Known, then: Known, y: Int[Tensor, " B"]) -> Float[Tensor, " M"]:
        """What was taken away from one state to the next."""
        return self.surprise(before.alpha, y[before.case]) - self.surprise(then.alpha, y[then.case])

    def surprise(self, alpha: Float[Tensor, "B K"], y: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """What is to fall."""
        return self.doubt(alpha)


class Dime(Greedy):
    """A value network in the manner of Gadgil et al. (2024): conditional mutual information predicted from the state.

    It regresses on the fall of the loss (not of the entropy), and what it predicts is bounded by the entropy that is
    left, since no panel can take away more. The prior information of the original is left out.
    """

    def expected(self, known: Known) -> Float[Tensor, "B N"]:
        return self.doubt(known.alpha)[:, None] * super().expected(known).sigmoid()

    def doubt(self, alpha: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
        return doubt_of("categorical", alpha)

    def surprise(self, alpha: Float[Tensor, "B K"], y: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        return F.cross_entropy(alpha.log(), y, reduction="none")


class Gdfs(Buyer):
    """Greedy dynamic feature selection (Covert et al. 2023): the choice is relaxed, and its loss a step ahead learned.

    From each state a panel is drawn from the concrete distribution of the network's logits, bought as far as its share
    goes, and the NLL after it is minimised; the temperature falls from epoch to epoch (`training.temperature`). The
    original knows no prices: here the probability of a panel is divided by its own.
    """

    learns = True

    def __init__(self, model: AutoregressiveNBSR, options: SeparateOptions, budgets: tuple[float, ...]) -> None:
        super().__init__(model, options, budgets)
        self.selector = self.network()

    def logits(self, known: Known) -> Float[Tensor, "B N"]:
        said: Tensor = self.selector(self.model.described(known, self.options.router))
        return said

    def scores(self, known: Known, x: Float[Tensor, "B F"]) -> Float[Tensor, "B N"]:
        return self.logits(known).log_softmax(-1) - self.costs(x).log()

    def loss(self, known: Known, x: Float[Tensor, "B F"], y: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        logits = self.logits(known).masked_fill(known.bought > 0, -torch.inf)
        share = ((logits + gumbel_noise(logits)) / self.model.tau).softmax(-1)
        after = self.model.relaxed(known, x[known.case], share)
        return F.cross_entropy(after.log(), y[known.case])
