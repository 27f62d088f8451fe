"""Experts: banks of small networks that extract evidence from the oracle `h` (`nbsr_core.kernels.activations`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nbsr_core.kernels import Bank, Layout, StackedLinear, activate, stacked_network
from nbsr_core.model._modules import ModulesOf
from nbsr_core.options.specs import ExpertSpec as ExpertSpec


class ExpertBank(Bank):
    """Experts with one specification; slot i is the i-th of them."""

    def __init__(self, slots: int, oracle_dim: int, num_classes: int, spec: ExpertSpec) -> None:
        super().__init__()
        self.spec = spec
        sizes = (oracle_dim, *spec.hidden, num_classes)
        self.layers = ModulesOf[StackedLinear](StackedLinear(slots, a, b, bias=spec.bias) for a, b in pairwise(sizes))
        self.slots, self.macs = slots, sum(layer.macs for layer in self.layers)

    def first(self) -> list[StackedLinear]:
        return [self.layers[0]]

    def rest(self) -> list[StackedLinear]:
        return list(self.layers)[1:]

    def forward(self, h: Float[Tensor, "B d"], layout: Layout) -> Float[Tensor, "B K"]:
        """Evidence for rows in the order of the layout."""
        return activate(self.spec, stacked_network([(h, self.layers[0])], self.rest(), layout))

    def at_slots(self, h: Float[Tensor, "b d"], slots: Int[Tensor, " b"]) -> Float[Tensor, "b K"]:
        """Evidence of the expert in each row's own slot."""
        layout = Layout.of(slots, self.slots, self.macs)
        return layout.restored(self(layout.sorted(h), layout))

    def every_slot(self, h: Float[Tensor, "B d"]) -> Float[Tensor, "B slots K"]:
        """Evidence of all experts for all rows (soft routing)."""
        if not self.spec.hidden:
            return activate(self.spec, self.layers[0].every_slot(h))
        alone = [Layout.single(h.shape[0], slot) for slot in range(self.slots)]
        return torch.stack([self(h, layout) for layout in alone], dim=1)


class LevelExperts(nn.Module):
    """The experts of one level: one bank where all share a specification, a few where they do not."""

    def __init__(self, specs: Sequence[ExpertSpec], oracle_dim: int, num_classes: int) -> None:
        super().__init__()
        distinct = list(dict.fromkeys(specs))
        bank_of_node = torch.tensor([distinct.index(spec) for spec in specs])
        slot_of_node = torch.zeros_like(bank_of_node)
        for bank in range(len(distinct)):
            members = bank_of_node == bank
            slot_of_node[members] = torch.arange(int(members.sum()))
        self.bank_of_node: Tensor
        self.slot_of_node: Tensor
        self.register_buffer("bank_of_node", bank_of_node, persistent=False)
        self.register_buffer("slot_of_node", slot_of_node, persistent=False)
        self.banks = ModulesOf[ExpertBank](
            ExpertBank(int((bank_of_node == i).sum()), oracle_dim, num_classes, spec) for i, spec in enumerate(distinct)
        )

    def forward(self, h: Float[Tensor, "B d"], position: Int[Tensor, " B"]) -> Float[Tensor, "B K"]:
        """Evidence of each row's own expert; `position` says where in the level each row stands."""
        if len(self.banks) == 1:
            return self.banks[0].at_slots(h, position)
        bank_of_row, slots = self.bank_of_node[position], self.slot_of_node[position]
        rows_of_banks = [(bank_of_row == index).nonzero().squeeze(1) for index in range(len(self.banks))]
        parts = [bank.at_slots(h[rows], slots[rows]) for rows, bank in zip(rows_of_banks, self.banks, strict=True)]
        evidence = torch.cat(parts)
        return torch.empty_like(evidence).index_copy_(0, torch.cat(rows_of_banks), evidence)

    def every_expert(self, h: Float[Tensor, "B d"]) -> Float[Tensor, "B nodes K"]:
        """Evidence of all experts of the level for all rows (soft routing)."""
        parts = [bank.every_slot(h) for bank in self.banks]
        by_bank = torch.cat(parts, dim=1)
        offset = torch.tensor([0, *(part.shape[1] for part in parts[:-1])], device=h.device).cumsum(0)
        return by_bank[:, offset[self.bank_of_node] + self.slot_of_node]

    def copy_from(self, source: LevelExperts, positions: Sequence[int]) -> None:
        """Take over the experts at the given positions of another level (pruning)."""
        for position, old in enumerate(positions):
            mine, theirs = self.banks[int(self.bank_of_node[position])], source.banks[int(source.bank_of_node[old])]
            for layer, layer_was in zip(mine.layers, theirs.layers, strict=True):
                layer.copy_slot(int(self.slot_of_node[position]), layer_was, int(source.slot_of_node[old]))
