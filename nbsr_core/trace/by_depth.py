"""Answers by depth: what an early exit needs to know of a model, be it a walk with beliefs or a network with heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.belief.calibration import calibrated_probabilities
from nbsr_core.metrics import PROBABILITY_FLOOR
from nbsr_core.trace.exits import check_eta, first_below
from nbsr_core.trace.frontier import Frontier


@runtime_checkable
class Stopped(Protocol):
    """What is said of each sample, and at which depth."""

    @property
    def probs(self) -> Float[Tensor, "B K"]: ...

    @property
    def depth(self) -> Int[Tensor, " B"]: ...


@runtime_checkable
class ByDepth(Protocol):
    """Answers to a batch of B samples at each depth 1..T at which they could stop; a `BeliefTrace` is one of these."""

    def __len__(self) -> int: ...

    @property
    def depth(self) -> int:
        """T."""

    @property
    def length(self) -> Int[Tensor, " B"]:
        """How deep each sample goes where nothing stops it."""

    @property
    def doubt(self) -> Float[Tensor, "beliefs B"]:
        """What an exit compares with eta, from depth 0 on."""

    @property
    def cost(self) -> Float[Tensor, "beliefs B"]:
        """What is spent by each depth, from depth 0 on."""

    @property
    def macs(self) -> Float[Tensor, "beliefs B"] | None:
        """Multiply-adds by each depth, from depth 0 on; None where they were not counted."""

    def belief(self, depth: int) -> Float[Tensor, "B K"]:
        """Calibrated; divided by their sum they are the probabilities."""

    def probabilities(self, depth: int = -1) -> Float[Tensor, "B K"]:
        """What is said at one depth."""

    def raw_probabilities(self, depth: int | Int[Tensor, " B"] = -1) -> Float[Tensor, "B K"]:
        """The same before calibration; at one depth, or at each row's own."""

    def exit(self, eta: float | None) -> Stopped:
        """What is said where doubt is below eta for the first time."""

    def frontier(self, y: Int[Tensor, " B"], etas: Sequence[float] | None = None) -> Frontier:
        """Figures at every threshold."""


@dataclass(frozen=True, eq=False)
class Said:
    """See `Stopped`."""

    probs: Float[Tensor, "B K"]
    depth: Int[Tensor, " B"]


@dataclass(frozen=True, eq=False)
class AnswersByDepth:
    """Plain probabilities at each depth: no beliefs, no nodes; a depth costs 1, and doubt is the answer's own entropy.

    Attributes:
        raw: before calibration.
        temperatures: of the calibration, one per depth; empty for none.
        macs_of_depths: multiply-adds that each depth adds; empty where they were not counted.
    """

    raw: Float[Tensor, "T B K"]
    temperatures: tuple[float, ...] = ()
    macs_of_depths: tuple[float, ...] = ()

    def __len__(self) -> int:
        return self.raw.shape[1]

    @property
    def depth(self) -> int:
        return self.raw.shape[0]

    @cached_property
    def length(self) -> Int[Tensor, " B"]:
        return torch.full((len(self),), self.depth, device=self.raw.device)

    @cached_property
    def used(self) -> Float[Tensor, "T B K"]:
        """Calibrated, where a calibration was fitted."""
        if not self.temperatures:
            return self.raw
        each = zip(self.raw, self.temperatures, strict=True)
        return torch.stack([calibrated_probabilities(probs, temperature) for probs, temperature in each])

    @cached_property
    def doubt(self) -> Float[Tensor, "beliefs B"]:
        """Entropy of the categorical in nats; before the first answer, that of a guess."""
        nothing = torch.full_like(self.used[:1], 1 / self.used.shape[-1])
        entropy: Tensor = torch.special.entr(torch.cat([nothing, self.used])).sum(-1)
        return entropy

    @cached_property
    def cost(self) -> Float[Tensor, "beliefs B"]:
        steps = torch.arange(self.depth + 1, dtype=torch.float64, device=self.raw.device)
        return steps.unsqueeze(1).expand(-1, len(self))

    @cached_property
    def macs(self) -> Float[Tensor, "beliefs B"] | None:
        if not self.macs_of_depths:
            return None
        spent = torch.tensor([0.0, *self.macs_of_depths], dtype=torch.float64, device=self.raw.device).cumsum(0)
        return spent.unsqueeze(1).expand(-1, len(self))

    def belief(self, depth: int) -> Float[Tensor, "B K"]:
        """The probabilities, none smaller than the NLL counts it."""
        return self.used[depth - 1].clamp_min(PROBABILITY_FLOOR)

    def probabilities(self, depth: int = -1) -> Float[Tensor, "B K"]:
        return self.used[depth - 1 if depth > 0 else depth]

    def raw_probabilities(self, depth: int | Int[Tensor, " B"] = -1) -> Float[Tensor, "B K"]:
        if isinstance(depth, int):
            return self.raw[depth - 1 if depth > 0 else depth]
        return self.raw[depth - 1, torch.arange(len(self), device=depth.device)]

    def exit(self, eta: float | None) -> Said:
        known = check_eta(eta)
        depth = self.length if known is None else first_below(self.doubt[1:], known, self.length)
        return Said(self.used[depth - 1, torch.arange(len(self), device=depth.device)], depth)

    def frontier(self, y: Int[Tensor, " B"], etas: Sequence[float] | None = None) -> Frontier:
        return Frontier.of(self, y, etas)
