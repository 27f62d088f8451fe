"""What can be bought, what is known, and what a rollout of purchases leaves behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.belief import dirichlet
from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import ROOT, DecisionGraph
from nbsr_core.options.specs import StopRule as StopRule
from nbsr_core.trace.belief_trace import BeliefTrace

# Sums of prices are compared with budgets: 0.1 + 0.2 must be affordable with 0.3.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Panels:
    """What can be bought, and for how much: panels of features that are unveiled together. All others are free.

    Attributes:
        free: how many features are free.
        width: how many features the widest panel has.
        columns: the features of each panel. By default the first `free` features are free, and the panels follow one
            after another, `width` features each, as in the paper's triage.
    """

    names: tuple[str, ...]
    costs: tuple[float, ...]
    free: int
    width: int
    columns: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if len(self.names) < 1 or len(self.costs) != len(self.names):
            raise InputError(f"panels need one cost each, got {len(self.names)} names and {len(self.costs)} costs")
        if len(set(self.names)) < len(self.names):
            raise InputError(f"panels need different names, got {list(self.names)}")
        if not all(math.isfinite(cost) and cost > 0 for cost in self.costs):
            raise InputError(f"costs of panels must be finite and > 0, got {list(self.costs)}")
        if self.free < 0 or self.width < 1:
            raise InputError(f"free must be >= 0 and width >= 1, got {self.free} and {self.width}")
        if not self.columns:
            starts = range(self.free, self.free + self.width * len(self.names), self.width)
            object.__setattr__(self, "columns", tuple(tuple(range(s, s + self.width)) for s in starts))
        widths = [len(columns) for columns in self.columns]
        if len(widths) != len(self.names) or min(widths) < 1 or max(widths) != self.width:
            raise InputError(f"{len(self.names)} panels of 1 to {self.width} features expected, got {widths} features")
        bought = sorted(chain.from_iterable(self.columns))
        if len(set(bought)) < len(bought) or bought[0] < 0 or bought[-1] >= self.num_features:
            raise InputError(
                f"a feature, from 0 to {self.num_features - 1}, belongs to one panel at most, got {bought}"
            )

    @classmethod
    def of(
        cls, names: Sequence[str], costs: Sequence[float], columns: Sequence[Sequence[int]], num_features: int
    ) -> Panels:
        """Panels of any features, in any order; the features that are in none are free."""
        free = num_features - sum(map(len, columns))
        width = max(map(len, columns), default=0)
        return cls(tuple(names), tuple(map(float, costs)), free, width, tuple(map(tuple, columns)))

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Panels:
        """The inverse of `to_json`."""
        return cls.of(said["names"], said["costs"], said["columns"], said["num_features"])

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `Splits.structure`."""
        return {
            "names": list(self.names),
            "costs": list(self.costs),
            "columns": [list(columns) for columns in self.columns],
            "num_features": self.num_features,
        }

    def structure(self, budgets: Sequence[float] = ()) -> dict[str, Any]:
        """What models are built from (`Splits.structure`): the panels, and what may be spent on them at most."""
        return {"panels": self.to_json(), "budgets": list(budgets)}

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def num_features(self) -> int:
        return self.free + sum(map(len, self.columns))

    @cached_property
    def free_columns(self) -> tuple[int, ...]:
        """The features that cost nothing."""
        bought = set(chain.from_iterable(self.columns))
        return tuple(column for column in range(self.num_features) if column not in bought)

    def steps_within(self, budget: float | None) -> int:
        """How many panels this much money can buy at most: the cheapest ones."""
        if budget is None:
            return len(self)
        return sum(spent <= budget + ROUNDING for spent in accumulate(sorted(self.costs)))

    def checked_steps(self, budget: float | None) -> int:
        """The same for a budget that pays one panel at least."""
        steps = self.steps_within(budget)
        if not steps:
            raise InputError(f"a budget of {budget:g} buys nothing: the cheapest panel costs {min(self.costs):g}")
        return steps

    @cached_property
    def graph(self) -> DecisionGraph:
        """One level with a node per panel, which costs what the panel costs: a rollout visits it again and again."""
        root = ROOT
        while root in self.names:  # a column may well be called so
            root = f"{root}_"
        edges = [(root, name) for name in self.names]
        return DecisionGraph.from_edges(edges, costs=dict(zip(self.names, self.costs, strict=True)))


@dataclass(frozen=True, eq=False)
class Known:
    """All that a policy may know of a batch of cases: the state S_t of the paper's autoregressive state machine.

    Attributes:
        features: what is free or bought; zero elsewhere.
        alpha: the raw belief.
        bought: 1 for each panel that was bought.
        left: what may still be spent; infinite where there is no budget.
        case: which case of the batch it is, counted from 0: nothing to learn from, but something to draw lots by.
    """

    features: Float[Tensor, "B F"]
    alpha: Float[Tensor, "B K"]
    bought: Float[Tensor, "B N"]
    left: Float[Tensor, " B"]
    case: Int[Tensor, " B"]

    def __len__(self) -> int:
        return len(self.bought)

    def rows(self, index: Int[Tensor, " b"]) -> Known:
        """Some of the cases."""
        return Known(*(getattr(self, part.name)[index] for part in fields(self)))


# What buying each panel next is worth, the best one highest; what cannot be bought is ruled out by the caller.
Policy = Callable[[Known], Float[Tensor, "B N"]]


@dataclass(frozen=True, eq=False)
class AcquisitionTrace(BeliefTrace):
    """A rollout: a walk that goes round in a loop over the panels, each of them a node of a graph with one level.

    Only two things differ from a walk over a layered graph. Whoever bought something may go to every panel next, and
    by which doubt a rollout stops is the stop rule's to say.
    """

    stop: StopRule = "dirichlet"

    @cached_property
    def doubt(self) -> Float[Tensor, "beliefs B"]:
        """What is compared with eta after each purchase."""
        return torch.stack([doubt_of(self.stop, self.belief(t)) for t in range(self.depth + 1)])

    @cached_property
    def bought(self) -> Int[Tensor, "T B"]:
        """Number of the panel that each case buys at each step; -1 where its rollout was over."""
        return torch.stack([step.choice for step in self.steps]).masked_fill(~self.walking, -1)

    def choices(self, step: int) -> Int[Tensor, "B N"]:
        """All panels, at every step; the logits of those that cannot be bought are -inf."""
        return torch.arange(1, len(self.graph), device=self.prior.device).expand(len(self), -1)

    @property
    def levels(self) -> tuple[range, ...]:
        root, panels = self.graph.levels
        return (root, *[panels] * self.depth)


def doubt_of(rule: StopRule, belief: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
    """What is left to learn: the entropy of the belief (the paper), or that of the expected categorical.

    The belief's own entropy also falls when evidence is merely plentiful; the categorical one asks how sure the answer
    is, and stopped better for every policy that we tried.
    """
    if rule == "dirichlet":
        return dirichlet.entropy(belief, validate_args=False)
    return dirichlet.categorical_entropy(belief, validate_args=False)
