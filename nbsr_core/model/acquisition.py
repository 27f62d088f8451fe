"""What can be bought, what is known, and what a rollout of purchases leaves behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.belief import dirichlet
from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import ROOT, DecisionGraph
from nbsr_core.trace.belief_trace import BeliefTrace

StopRule = Literal["dirichlet", "categorical"]


@dataclass(frozen=True)
class Panels:
    """What can be bought: the first `free` features are known to all, then come panels of `width` features each."""

    names: tuple[str, ...]
    costs: tuple[float, ...]
    free: int
    width: int

    def __post_init__(self) -> None:
        if len(self.names) < 1 or len(self.costs) != len(self.names):
            raise InputError(f"panels need one cost each, got {len(self.names)} names and {len(self.costs)} costs")
        if not all(math.isfinite(cost) and cost > 0 for cost in self.costs):
            raise InputError(f"costs of panels must be finite and > 0, got {list(self.costs)}")
        if self.free < 0 or self.width < 1:
            raise InputError(f"free must be >= 0 and width >= 1, got {self.free} and {self.width}")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def num_features(self) -> int:
        return self.free + self.width * len(self)

    @cached_property
    def graph(self) -> DecisionGraph:
        """The loop unrolled: level t holds every panel as the t-th purchase, and costs what the panel costs."""
        levels = [[ROOT], *([f"{name} ({t})" for name in self.names] for t in range(1, len(self) + 1))]
        edges = [(up, down) for ups, downs in pairwise(levels) for up in ups for down in downs]
        costs = {name: cost for level in levels[1:] for name, cost in zip(level, self.costs, strict=True)}
        return DecisionGraph.from_edges(edges, costs=costs)


@dataclass(frozen=True, eq=False)
class Known:
    """All that a policy may know of a batch of cases: the state S_t of the paper's autoregressive state machine.

    Attributes:
        features: what is free or bought; zero elsewhere.
        alpha: the raw belief.
        bought: 1 for each panel that was bought.
    """

    features: Float[Tensor, "B F"]
    alpha: Float[Tensor, "B K"]
    bought: Float[Tensor, "B N"]

    def rows(self, index: Int[Tensor, " b"]) -> Known:
        """Some of the cases."""
        return Known(self.features[index], self.alpha[index], self.bought[index])


# What buying each panel next is worth, the best one highest; what was bought before is ruled out by the caller.
Policy = Callable[[Known], Float[Tensor, "B N"]]


@dataclass(frozen=True, eq=False)
class AcquisitionTrace(BeliefTrace):
    """A rollout. Only stopping differs from a walk over a graph: by which doubt, is the stop rule's to say."""

    stop: StopRule = "dirichlet"

    @cached_property
    def doubt(self) -> Float[Tensor, "beliefs B"]:
        """What is compared with eta after each purchase."""
        return torch.stack([doubt_of(self.stop, self.belief(t)) for t in range(self.depth + 1)])

    @cached_property
    def bought(self) -> Int[Tensor, "T B"]:
        """Number of the panel that each case buys at each step; -1 where its rollout was over."""
        return torch.stack([step.choice for step in self.steps]).masked_fill(~self.walking, -1)


def doubt_of(rule: StopRule, belief: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
    """What is left to learn: the entropy of the belief (the paper), or that of the expected categorical.

    The belief's own entropy also falls when evidence is merely plentiful; the categorical one asks how sure the answer
    is, and stopped better for every policy that we tried.
    """
    if rule == "dirichlet":
        return dirichlet.entropy(belief, validate_args=False)
    return dirichlet.categorical_entropy(belief, validate_args=False)
