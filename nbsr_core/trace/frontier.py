"""The frontier: what every exit threshold would give, computed from one walk.

Each sample's outcome at each depth is known from its trace, so a threshold only decides which depth counts. Nothing is
walked again, and the figures are equal to the last bit to those of separate evaluations at each eta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core._checks import number
from nbsr_core.errors import InputError
from nbsr_core.metrics import checked_labels
from nbsr_core.trace.exits import check_eta

if TYPE_CHECKING:
    from nbsr_core.trace.by_depth import ByDepth

# More thresholds than this are thinned to quantiles: a picture does not show more, and work grows with their number.
MOST_THRESHOLDS = 512
# Samples times thresholds that are looked at in one go.
MOST_AT_ONCE = 1 << 20

Spent = Literal["mean_depth", "mean_cost"]


@dataclass(frozen=True, eq=False)
class Frontier:
    """Figures by threshold, one entry an eta, in the order of `eta` (rising: stricter thresholds first).

    Attributes:
        mean_macs: multiply-adds of a walk, backbone, routers and experts together; None where they were not counted.
    """

    eta: Float[Tensor, " E"]
    accuracy: Float[Tensor, " E"]
    nll: Float[Tensor, " E"]
    mean_depth: Float[Tensor, " E"]
    mean_cost: Float[Tensor, " E"]
    exited: Float[Tensor, " E"]
    mean_macs: Float[Tensor, " E"] | None = None

    def __len__(self) -> int:
        return self.eta.shape[0]

    def rows(self) -> list[dict[str, float]]:
        """One plain dictionary a threshold, for tables."""
        names = ("eta", "accuracy", "nll", "mean_depth", "mean_cost", "exited", "mean_macs")
        columns = {name: getattr(self, name).tolist() for name in names if getattr(self, name) is not None}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def cheapest(
        self, max_accuracy_loss: float, spent: Spent = "mean_depth", *, max_nll_loss: float | None = None
    ) -> float:
        """The threshold at which least is spent while accuracy falls by no more than this below the peak.

        With `max_nll_loss` it is the NLL that may rise by no more than so many nats above the best one instead: right
        where the best guess is wrong most of the time anyway, as in language.

        Choose it on a validation split; a threshold chosen on test data says nothing about new data. -inf (never
        exit) where even the strictest exit costs more.
        """
        return float(self.eta[self._cheapest(max_accuracy_loss, spent, max_nll_loss)])

    @property
    def peak(self) -> float:
        """The best accuracy at any threshold.

        Most often that of never stopping, but not always: experts that training seldom reached can spoil the end of a
        walk, and what they cost must not count as a saving.
        """
        return float(self.accuracy.max())

    def cost_within(self, max_accuracy_loss: float) -> float:
        """Least mean cost at which accuracy is no more than this below the peak."""
        return float(self.mean_cost[self._cheapest(max_accuracy_loss, "mean_cost")])

    def area(self, chance: float) -> float:
        """Mean accuracy over all budgets from 0 to the cost of never stopping; 1 is a free and perfect answer.

        Between two thresholds the frontier is a straight line: whoever mixes them gets there. It starts from a
        guess that costs nothing and is right with probability `chance`.
        """
        cost, accuracy = self._by_cost(chance)
        return float(torch.trapezoid(accuracy, cost) / cost[-1])

    def accuracy_for(self, mean_cost: float, chance: float) -> float:
        """The accuracy where so much is spent on average, on the line whose mean height is `area`."""
        cost, accuracy = self._by_cost(chance)
        return float(np.interp(mean_cost, cost.cpu().numpy(), accuracy.cpu().numpy()))

    def _by_cost(self, chance: float) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"]]:
        order = self.mean_cost.argsort(stable=True)
        cost = torch.cat([self.mean_cost.new_zeros(1), self.mean_cost[order]])
        return cost, torch.cat([self.accuracy.new_full((1,), chance), self.accuracy[order]])

    def _cheapest(self, max_accuracy_loss: float, spent: Spent, max_nll_loss: float | None = None) -> int:
        loss = number(max_accuracy_loss)
        if loss is None or loss < 0:
            raise InputError(f"max_accuracy_loss must be a share of at least 0, got {max_accuracy_loss!r}")
        figure = self.mean_depth if spent == "mean_depth" else self.mean_cost
        good = self.accuracy >= self.peak - loss
        if max_nll_loss is not None:
            good = self.nll <= float(self.nll.min()) + max_nll_loss
        allowed = good.nonzero().squeeze(1)
        return int(allowed[figure[allowed].argmin()])

    @staticmethod
    def of(trace: ByDepth, y: Int[Tensor, " B"], etas: Sequence[float] | None) -> Frontier:
        """Evaluate a trace, or any other answers by depth, at the given thresholds or at all that make a difference."""
        beliefs = [trace.belief(t).detach() for t in range(1, trace.depth + 1)]
        y = checked_labels(y, len(trace), beliefs[0].shape[-1])
        doubt = trace.doubt[1:].detach()
        if etas is None:
            thresholds = deciding_thresholds(doubt)
        else:
            if not isinstance(etas, Iterable) or getattr(etas, "ndim", 1) == 0:
                raise InputError(f"etas must be a list of thresholds or None, got {etas!r}")
            known = [check_eta(eta) for eta in etas]
            if not known:
                raise InputError("etas must name at least one threshold, got none")
            thresholds = torch.tensor([-math.inf if eta is None else eta for eta in known], dtype=torch.float64)
        correct = torch.stack([alpha.argmax(-1) == y for alpha in beliefs])
        truth = y.unsqueeze(1)
        surprise = torch.stack([(a.sum(-1).log() - a.gather(1, truth).squeeze(1).log()).double() for a in beliefs])
        cost, length, macs = trace.cost[1:], trace.length, trace.macs
        rows = torch.arange(len(trace), device=length.device)
        parts: list[Tensor] = []
        for depth in exit_depths(doubt, thresholds, length):
            stop = (depth - 1, rows)
            figures = [correct[stop].double(), surprise[stop], depth.double(), cost[stop], (depth < length).double()]
            figures += [] if macs is None else [macs[1:][stop]]
            parts.append(torch.stack([figure.mean(1).double().cpu() for figure in figures]))
        return Frontier(thresholds, *torch.cat(parts, 1))


def exit_depths(
    doubt: Float[Tensor, "T B"], thresholds: Float[Tensor, " E"], length: Int[Tensor, " B"]
) -> Iterator[Int[Tensor, "e B"]]:
    """Depth at which each sample stops at each threshold, as `first_below` gives it, for many thresholds at a time.

    They come in parts, one after another, so that a large split needs no more memory than a small one.
    """
    for some in thresholds.to(doubt).split(max(1, MOST_AT_ONCE // doubt.shape[1])):
        depth = length.new_full((len(some), doubt.shape[1]), doubt.shape[0])
        for level in range(doubt.shape[0] - 1, 0, -1):
            depth = torch.where(doubt[level - 1] < some.unsqueeze(1), level, depth)
        yield torch.minimum(depth, length)


def deciding_thresholds(entropy: Float[Tensor, "T B"]) -> Float[Tensor, " E"]:
    """Thresholds between which nothing changes: above each entropy that an early exit could use, and never.

    They lie halfway to the next entropy: a sample that comes again, here or on another machine, is clear of them.
    """
    early = entropy[:-1].flatten().double() if entropy.shape[0] > 1 else entropy.flatten().double()
    values = early.unique()
    halfway = torch.cat([(values[:-1] + values[1:]) / 2, values[-1:]])
    if len(values) > MOST_THRESHOLDS:
        quantiles = torch.linspace(0, 1, MOST_THRESHOLDS, dtype=torch.float64, device=values.device)
        chosen = (quantiles * (len(values) - 1)).round().long()
        values, halfway = values[chosen], halfway[chosen]
    just_above = torch.nextafter(values.float(), torch.tensor(float("inf")))
    above = torch.maximum(halfway.float(), just_above).double()
    return torch.cat([torch.tensor([float("-inf")], dtype=torch.float64), above.cpu()])
