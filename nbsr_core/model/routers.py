"""Routers: banks of small networks that ask, from oracle and belief, whom to consult next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.kernels import Bank, Layout, StackedLinear, stacked_network
from nbsr_core.model._modules import ModulesOf
from nbsr_core.options.specs import RouterSpec as RouterSpec


class RouterBank(Bank):
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

    def first(self) -> list[StackedLinear]:
        return [stack for stack in (self.from_oracle, self.from_belief, self.from_side) if stack is not None]

    def rest(self) -> list[StackedLinear]:
        return list(self.layers)

    def inputs(
        self, h: Float[Tensor, "B d"], alpha: Float[Tensor, "#B K"], side: Float[Tensor, "B s"] | None
    ) -> list[Tensor]:
        """What each map of the first layer sees."""
        described = None if self.from_belief is None else self.spec.describe(alpha)
        return [x for x in (h, described, None if self.from_side is None else side) if x is not None]

    def stacks(self) -> list[StackedLinear]:
        """All stacked maps, those that give the logits last."""
        return [module for module in self.modules() if isinstance(module, StackedLinear)]

    def forward(self, inputs: Sequence[Float[Tensor, "#B _"]], layout: Layout) -> Float[Tensor, "B children"]:
        """Logits for rows in the order of the layout. A belief of one row stands for all (at the root, the prior)."""
        return stacked_network(list(zip(inputs, self.first(), strict=True)), self.rest(), layout)


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

    def inputs(
        self, h: Float[Tensor, "b d"], belief: Float[Tensor, "#b K"], side: Float[Tensor, "b s"] | None
    ) -> list[Tensor]:
        """What the routers see, in the order of the bank's maps."""
        return [h] if self.bank is None else self.bank.inputs(h, belief, side)

    def forward(self, inputs: Sequence[Tensor], position: Int[Tensor, " b"]) -> Float[Tensor, "b children"]:
        """What each row's own router says of the children; -inf for those that its node does not have."""
        if self.bank is None:
            return inputs[0].new_zeros(len(position), 1)
        slots = self.slots(position)
        layout = Layout.of(slots, self.bank.slots, self.bank.macs)
        z = layout.restored(self.bank([layout.sorted(x) for x in inputs], layout))
        z = z if z.dtype == torch.float64 else z.float()
        return z.masked_fill(self.missing[slots], float("-inf")) if self.uneven else z

    def one_for_all(
        self, h: Float[Tensor, "B d"], alpha: Float[Tensor, "B K"], side: Float[Tensor, "B s"] | None, position: int
    ) -> Float[Tensor, "B children"]:
        """Logits of the router at one position for all rows (soft routing)."""
        if self.bank is None:
            return h.new_zeros(h.shape[0], 1)
        slot = int(self.slot_of_node[position])
        logits: Tensor = self.bank(self.bank.inputs(h, alpha, side), Layout.single(h.shape[0], slot))
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
