"""Routers: banks of small networks that ask, from oracle and belief, whom to consult next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nbsr_core._modules import ModulesOf
from nbsr_core.dispatch import Layout, StackedLinear, network_parameters, stacked_network
from nbsr_core.experts import checked_hidden
from nbsr_core.graph import DecisionGraph
from nbsr_core.routing import check_choice

BeliefInput = Literal["alpha", "log", "mean", "none"]


@dataclass(frozen=True)
class RouterSpec:
    """How a router scores its children from `[h, alpha, eps]` (paper, Eq. router).

    Attributes:
        hidden: sizes of ReLU layers; empty for a linear router.
        bias: whether the layers have biases.
        belief: how the belief enters: as it is (the paper), its logarithm (steadier where evidence is exponential),
            its mean, or not at all.
    """

    hidden: tuple[int, ...] = (64,)
    bias: bool = True
    belief: BeliefInput = "alpha"

    def __post_init__(self) -> None:
        check_choice("router belief", self.belief, BeliefInput)
        object.__setattr__(self, "hidden", checked_hidden("router", self.hidden))

    def describe(self, alpha: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
        """The belief as the router sees it."""
        if self.belief == "log":
            return alpha.log()
        if self.belief == "mean":
            return alpha / alpha.sum(-1, keepdim=True)
        return alpha


class RouterBank(nn.Module):
    """The routers of one level. Each input has its own first matrix, which saves concatenating them."""

    def __init__(
        self, slots: int, oracle_dim: int, num_classes: int, side_dim: int, children: int, spec: RouterSpec
    ) -> None:
        super().__init__()
        self.spec = spec
        belief_dim = 0 if spec.belief == "none" else num_classes
        fan_in = oracle_dim + belief_dim + side_dim
        first, *rest = (*spec.hidden, children)
        self.from_oracle = StackedLinear(slots, oracle_dim, first, bias=spec.bias, fan_in=fan_in)
        self.from_belief = StackedLinear(slots, belief_dim, first, bias=False, fan_in=fan_in) if belief_dim else None
        self.from_side = StackedLinear(slots, side_dim, first, bias=False, fan_in=fan_in) if side_dim else None
        sizes = (first, *rest)
        self.layers = ModulesOf[StackedLinear](StackedLinear(slots, a, b, bias=spec.bias) for a, b in pairwise(sizes))
        self.slots, self.macs = slots, sum(stack.macs for stack in self.stacks())

    def parameters_by_kind(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Weights and biases, as `nbsr_core.dispatch` takes them."""
        return network_parameters(self.first(), list(self.layers))

    def first(self) -> list[StackedLinear]:
        """The maps of the first layer: one an input."""
        return [stack for stack in (self.from_oracle, self.from_belief, self.from_side) if stack is not None]

    def stacks(self) -> list[StackedLinear]:
        """All stacked maps, those that give the logits last."""
        return [module for module in self.modules() if isinstance(module, StackedLinear)]

    def forward(
        self,
        h: Float[Tensor, "B d"],
        alpha: Float[Tensor, "#B K"],
        side: Float[Tensor, "B s"] | None,
        layout: Layout,
    ) -> Float[Tensor, "B children"]:
        """Logits for the children. `alpha` of one row stands for all rows (at the root it is the prior)."""
        first = [(h, self.from_oracle)]
        if self.from_belief is not None:
            first.append((self.spec.describe(alpha), self.from_belief))
        if self.from_side is not None and side is not None:
            first.append((side, self.from_side))
        return stacked_network(first, list(self.layers), layout)


class LevelRouters(nn.Module):
    """The routers of one level, and which children they choose from.

    A node with one child needs no router; a level of such nodes has none.
    """

    def __init__(
        self,
        graph: DecisionGraph,
        level: int,
        oracle_dim: int,
        num_classes: int,
        side_dim: int,
        spec: RouterSpec,
    ) -> None:
        super().__init__()
        nodes = graph.levels[level]
        inner = [node for node in nodes if graph.nodes[node].children]
        counts = torch.tensor([len(graph.nodes[node].children) for node in nodes])
        self.num_children = int(counts.max())
        self.size = len(nodes)
        slot_of_node = torch.zeros(len(nodes), dtype=torch.int64)
        slot_of_node[counts > 0] = torch.arange(len(inner))
        self.all_inner = len(inner) == len(nodes)
        self.uneven = bool((counts[counts > 0] < self.num_children).any())
        self.slot_of_node: Tensor
        self.missing: Tensor
        self.inner: Tensor
        self.register_buffer("slot_of_node", slot_of_node, persistent=False)
        self.register_buffer(
            "missing", torch.arange(self.num_children) >= counts[counts > 0].unsqueeze(1), persistent=False
        )
        self.register_buffer("inner", counts > 0, persistent=False)
        below = graph.levels[level + 1].start
        child_position = torch.tensor(graph.child_table[nodes.start : nodes.stop, : self.num_children]) - below
        self.child_position: Tensor
        self.register_buffer("child_position", child_position.flatten(), persistent=False)
        self.bank = (
            RouterBank(len(inner), oracle_dim, num_classes, side_dim, self.num_children, spec)
            if self.num_children > 1
            else None
        )

    def slots(self, position: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Which router of the bank is asked at each position."""
        return position if self.all_inner else self.slot_of_node.index_select(0, position)

    def one_for_all(
        self, h: Float[Tensor, "B d"], alpha: Float[Tensor, "B K"], side: Float[Tensor, "B s"] | None, position: int
    ) -> Float[Tensor, "B children"]:
        """Logits of the router at one position for all rows (soft routing)."""
        if self.bank is None:
            return h.new_zeros(h.shape[0], 1)
        slot = int(self.slot_of_node[position])
        logits = self.bank.forward(h, alpha, side, Layout.single(h.shape[0], slot))
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return logits.masked_fill(self.missing[slot], float("-inf")) if self.uneven else logits

    def chosen(self, position: Int[Tensor, " b"], choice: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Where the chosen children stand in the level below."""
        if self.size > 1:
            choice = position * self.num_children + choice
        return self.child_position.index_select(0, choice)

    def copy_from(self, source: LevelRouters, positions: Sequence[int], columns: Sequence[list[int]]) -> None:
        """Take over routers of another level, each with only the named children left (pruning)."""
        if self.bank is None or source.bank is None:
            return
        for position, (old, kept) in enumerate(zip(positions, columns, strict=True)):
            if not kept:
                continue
            slot, slot_was = int(self.slot_of_node[position]), int(source.slot_of_node[old])
            mine, theirs = self.bank.stacks(), source.bank.stacks()
            for index, (stack, stack_was) in enumerate(zip(mine, theirs, strict=True)):
                gives_logits = index == len(mine) - 1 or not self.bank.layers
                stack.copy_slot(slot, stack_was, slot_was, kept if gives_logits else None)
