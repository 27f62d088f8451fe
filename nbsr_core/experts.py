"""Experts: banks of small networks that extract evidence from the oracle `h`.

Evidence must be strictly positive (Theorem 1 rests on it alone). Three activations keep that promise, and differ in
the *epistemic capacity* that they give an expert:

* `softplus`: unbounded and linear, the paper's choice for leaves. Against K prior pseudo-counts it is weak for large K;
* `sigmoid`: at most `bound` for each class, a confidence budget for broad intermediate experts;
* `exp`: at most `bound`, exponential, so that `alpha / alpha_0` behaves like a softmax where evidence is plentiful.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core._modules import ModulesOf
from nbsr_core.arranged import Arranged
from nbsr_core.dispatch import Layout, StackedLinear, network_parameters, stacked_network
from nbsr_core.errors import InputError
from nbsr_core.routing import check_choice

Activation = Literal["softplus", "sigmoid", "exp"]

# Smaller evidence would round to zero in float32, and zero is not positive.
SMALLEST_EVIDENCE = 1e-20
DEFAULT_EXP_BOUND = math.exp(15.0)
LARGEST_BOUND = 1e30  # float32 ends at 3e38, and beliefs are sums


def checked_hidden(owner: str, hidden: Sequence[int]) -> tuple[int, ...]:
    """Layer sizes as a tuple (study files give lists), so that specifications can be hashed and compared."""
    if any(not isinstance(size, int) or size < 1 for size in hidden):
        raise InputError(f"{owner} hidden sizes must be integers >= 1, got {hidden!r}")
    return tuple(hidden)


@dataclass(frozen=True)
class ExpertSpec:
    """How an expert turns the oracle into evidence.

    Attributes:
        hidden: sizes of ReLU layers between oracle and evidence; empty for the paper's linear experts.
        bias: whether the layers have biases (without, a zero oracle says nothing about any class).
        activation: see the module's text.
        bound: largest evidence for one class; needed by `sigmoid`, e^15 unless told for `exp`, none for `softplus`.
    """

    hidden: tuple[int, ...] = ()
    bias: bool = True
    activation: Activation = "softplus"
    bound: float | None = None

    def __post_init__(self) -> None:
        check_choice("expert activation", self.activation, Activation)
        object.__setattr__(self, "hidden", checked_hidden("expert", self.hidden))
        if self.activation == "softplus" and self.bound is not None:
            raise InputError(f"softplus evidence is unbounded: drop bound={self.bound!r} or choose sigmoid or exp")
        if self.activation == "sigmoid" and self.bound is None:
            raise InputError("sigmoid evidence needs a bound, its confidence budget for each class")
        smallest = 1.0 if self.activation == "exp" else 0.0
        if self.bound is not None and not smallest < self.bound <= LARGEST_BOUND:
            raise InputError(f"{self.activation} bound must be finite and > {smallest:g}, got {self.bound!r}")

    @property
    def limit(self) -> float | None:
        """The largest evidence for one class; None where there is none."""
        return self.bound or DEFAULT_EXP_BOUND if self.activation == "exp" else self.bound

    @property
    def smallest(self) -> float:
        """The smallest evidence for one class."""
        return SMALLEST_EVIDENCE

    def activate(self, z: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Strictly positive evidence from an expert's raw output, always in float32 or better."""
        z = z if z.dtype == torch.float64 else z.float()
        if self.activation == "exp":
            limit = math.log(self.bound or DEFAULT_EXP_BOUND)
            return z.clamp(-limit, limit).exp()
        positive = F.softplus(z) if self.activation == "softplus" else torch.sigmoid(z) * (self.bound or 1.0)
        with torch.no_grad():  # where this lifts a value, its gradient has long been zero
            positive.clamp_min_(SMALLEST_EVIDENCE)
        return positive

    def slope(
        self, grad: Float[Tensor, "*shape"], z: Float[Tensor, "*shape"], evidence: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*shape"]:
        """The gradient of `z` where that of `evidence = activate(z)` is `grad`."""
        if self.activation == "softplus":
            of_z: Tensor = torch.ops.aten.softplus_backward(grad, z.to(grad.dtype), 1.0, 20.0)
        elif self.activation == "sigmoid":
            of_z = grad * evidence * (1.0 - evidence / (self.bound or 1.0))
        else:
            of_z = grad * evidence * (z.abs() <= math.log(self.bound or DEFAULT_EXP_BOUND))
        return of_z.to(z.dtype)


class ExpertBank(nn.Module):
    """Experts with one specification; slot i is the i-th of them."""

    def __init__(self, slots: int, oracle_dim: int, num_classes: int, spec: ExpertSpec) -> None:
        super().__init__()
        self.spec = spec
        sizes = (oracle_dim, *spec.hidden, num_classes)
        self.layers = ModulesOf[StackedLinear](StackedLinear(slots, a, b, bias=spec.bias) for a, b in pairwise(sizes))
        self.slots, self.macs = slots, sum(layer.macs for layer in self.layers)

    def parameters_by_kind(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Weights and biases, as `nbsr_core.dispatch` takes them."""
        first, *rest = self.layers
        return network_parameters([first], rest)

    def forward(self, h: Float[Tensor, "B d"], layout: Layout) -> Float[Tensor, "B K"]:
        first, *rest = self.layers
        return self.spec.activate(stacked_network([(h, first)], rest, layout))

    def every_slot(self, h: Float[Tensor, "B d"]) -> Float[Tensor, "B slots K"]:
        """Evidence of all experts for all rows (soft routing)."""
        if not self.spec.hidden:
            return self.spec.activate(self.layers[0].every_slot(h))
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

    def arrange(self, h: Float[Tensor, "B d"], position: Int[Tensor, " B"]) -> list[Arranged]:
        """The rows of each bank; `position` says where in the level each row stands."""
        if len(self.banks) == 1:
            return [Arranged.of(h, position, self.banks[0].slots, self.banks[0].macs)]
        bank_of_row, slots = self.bank_of_node[position], self.slot_of_node[position]
        rows_of_banks = [(bank_of_row == index).nonzero().squeeze(1) for index in range(len(self.banks))]
        return [
            Arranged.of(h, slots[rows], bank.slots, bank.macs, rows)
            for rows, bank in zip(rows_of_banks, self.banks, strict=True)
        ]

    def forward(self, h: Float[Tensor, "B d"], position: Int[Tensor, " B"]) -> Float[Tensor, "B K"]:
        """Evidence of each row's own expert."""
        evidence: Tensor | None = None
        for bank, arranged in zip(self.banks, self.arrange(h, position), strict=True):
            evidence = arranged.put(bank(arranged.pick(h), arranged.layout), evidence)
        assert evidence is not None
        return evidence

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
