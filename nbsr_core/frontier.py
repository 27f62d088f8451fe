"""The frontier: what every exit threshold would give, computed from one walk.

Each sample's outcome at each depth is known from its trace, so a threshold only decides which depth counts. Nothing is
walked again, and the figures are equal to the last bit to those of separate evaluations at each eta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.exits import check_eta, first_below
from nbsr_core.metrics import checked_labels

if TYPE_CHECKING:
    from nbsr_core.trace import BeliefTrace

# More thresholds than this are thinned to quantiles: a picture does not show more, and work grows with their number.
MOST_THRESHOLDS = 512


@dataclass(frozen=True, eq=False)
class Frontier:
    """Figures by threshold, one entry an eta, in the order of `eta` (rising: stricter thresholds first)."""

    eta: Float[Tensor, " E"]
    accuracy: Float[Tensor, " E"]
    mean_depth: Float[Tensor, " E"]
    mean_cost: Float[Tensor, " E"]
    exited: Float[Tensor, " E"]

    def __len__(self) -> int:
        return self.eta.shape[0]

    def rows(self) -> list[dict[str, float]]:
        """One plain dictionary a threshold, for tables."""
        names = ("eta", "accuracy", "mean_depth", "mean_cost", "exited")
        columns = [getattr(self, name).tolist() for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def cheapest(self, max_accuracy_loss: float) -> float:
        """The threshold at which walks are shortest while accuracy falls by no more than this below full depth.

        Choose it on a validation split; a threshold chosen on test data says nothing about new data. -inf (never
        exit) where even the strictest exit costs more.
        """
        full = float(self.accuracy[self.mean_depth.argmax()])
        allowed = (self.accuracy >= full - max_accuracy_loss).nonzero().squeeze(1)
        return float(self.eta[allowed[self.mean_depth[allowed].argmin()]])

    @staticmethod
    def of(trace: BeliefTrace, y: Int[Tensor, " B"], etas: Sequence[float] | None) -> Frontier:
        """Evaluate a trace at the given thresholds, or at all that make a difference."""
        y = checked_labels(y, len(trace), trace.prior.shape[0])
        entropy = trace.entropy[1:].detach()
        if etas is None:
            thresholds = deciding_thresholds(entropy)
        else:
            if len(etas) == 0:
                raise InputError("etas must name at least one threshold, got none")
            known = [check_eta(eta) for eta in etas]
            thresholds = torch.tensor([-math.inf if eta is None else eta for eta in known], dtype=torch.float64)
        correct = torch.stack([trace.belief(t).argmax(-1) == y for t in range(1, trace.depth + 1)])
        cost, length = trace.cost[1:], trace.length
        rows = torch.arange(len(trace), device=length.device)
        figures: list[tuple[float, float, float, float]] = []
        for eta in thresholds.tolist():
            depth = first_below(entropy, eta, length)
            figures.append(
                (
                    float(correct[depth - 1, rows].double().mean()),
                    float(depth.double().mean()),
                    float(cost[depth - 1, rows].mean()),
                    float((depth < length).double().mean()),
                )
            )
        accuracy, mean_depth, mean_cost, exited = torch.tensor(figures, dtype=torch.float64).T
        return Frontier(thresholds, accuracy, mean_depth, mean_cost, exited)


def deciding_thresholds(entropy: Float[Tensor, "T B"]) -> Float[Tensor, " E"]:
    """Thresholds between which nothing changes: just above each entropy that an early exit could use, and never."""
    early = entropy[:-1].flatten().double() if entropy.shape[0] > 1 else entropy.flatten().double()
    values = early.unique()
    if len(values) > MOST_THRESHOLDS:
        quantiles = torch.linspace(0, 1, MOST_THRESHOLDS, dtype=torch.float64, device=values.device)
        values = values[(quantiles * (len(values) - 1)).round().long()]
    above = torch.nextafter(values.float(), torch.tensor(float("inf"))).double()
    return torch.cat([torch.tensor([float("-inf")], dtype=torch.float64), above.cpu()])
