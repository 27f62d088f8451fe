"""Many small linear maps, one batch: every row goes through the map of the node where it stands.

The routers and experts of a level have the same shape, so they are held as one stacked tensor `[slots, out, in]`, and
a level is one or a few matrix products (`nbsr_core.products`), whichever way suits its rows (`nbsr_core.layout`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nbsr_core.layout import Layout
from nbsr_core.products import differentiate_networks, run_networks

__all__ = ["Layout", "StackedLinear", "network_parameters", "stacked_network"]


class StackedLinear(nn.Module):
    """`slots` linear maps of one shape as one parameter `[slots, out, in]`.

    Initialised like `nn.Linear`; `fan_in` says what to scale by where this map sees only a part of its layer's input
    (a router's first layer is split into an oracle, a belief and a side-information part, so that nothing is ever
    concatenated and a constant belief is multiplied once, not once a row).
    """

    def __init__(
        self, slots: int, in_features: int, out_features: int, *, bias: bool = True, fan_in: int | None = None
    ) -> None:
        super().__init__()
        self.slots = slots
        self.macs = out_features * in_features  # multiply-adds for one row
        bound = 1.0 / math.sqrt(fan_in or in_features)
        self.weight = nn.Parameter(torch.empty(slots, out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(slots, out_features).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Float[Tensor, "B inp"], layout: Layout) -> Float[Tensor, "B out"]:
        return stacked_network([(x, self)], [], layout)

    def every_slot(self, x: Float[Tensor, "B inp"]) -> Float[Tensor, "B slots out"]:
        """All maps on all rows, for soft routing, where every node is on the path."""
        bias = None if self.bias is None else self.bias.flatten()
        every: Tensor = nn.functional.linear(x, self.weight.flatten(0, 1), bias)
        return every.view(x.shape[0], *self.weight.shape[:2])

    @torch.no_grad()
    def copy_slot(self, to: int, source: StackedLinear, slot: int, outputs: list[int] | None = None) -> None:
        """Take over one map of another bank, or some of its outputs as the first ones of this map (pruning)."""
        kept = slice(None) if outputs is None else torch.tensor(outputs, device=self.weight.device)
        count = slice(None) if outputs is None else slice(len(outputs))
        self.weight[to, count] = source.weight[slot, kept]
        if self.bias is not None and source.bias is not None:
            self.bias[to, count] = source.bias[slot, kept]

    def extra_repr(self) -> str:
        slots, out, inp = self.weight.shape
        return f"slots={slots}, in={inp}, out={out}, bias={self.bias is not None}"


def stacked_network(
    first: Sequence[tuple[Float[Tensor, "#B _"], StackedLinear]], rest: Sequence[StackedLinear], layout: Layout
) -> Float[Tensor, "B out"]:
    """Every row through its own small ReLU network; the first layer sums over several inputs.

    The whole network is one step for autograd: at the size of routers and experts, keeping books over single layers
    costs more than the layers. An input of one row stands for all rows, where all share a slot.
    """
    inputs = [x for x, _ in first]
    weights, biases = network_parameters([stack for _, stack in first], rest)
    device = inputs[0].device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        inputs, weights = [x.to(dtype) for x in inputs], [weight.to(dtype) for weight in weights]
        biases = [None if bias is None else bias.to(dtype) for bias in biases]
    if torch.is_grad_enabled():
        result: Tensor = _StackedNetwork.apply(layout, len(inputs), len(weights), *inputs, *weights, *biases)
        return result
    return run_networks(layout, inputs, weights, biases)[0]


def network_parameters(
    first: Sequence[StackedLinear], rest: Sequence[StackedLinear]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Weights and biases as `run_networks` takes them: the maps of the first layer share one bias."""
    shared = [stack.bias for stack in first if stack.bias is not None]
    return [stack.weight for stack in (*first, *rest)], [shared[0] if shared else None, *(s.bias for s in rest)]


class _StackedNetwork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, num_inputs: int, num_weights: int, *tensors: Any) -> Tensor:
        stop = num_inputs + num_weights
        inputs, weights, biases = tensors[:num_inputs], tensors[num_inputs:stop], tensors[stop:]
        output, ctx.groups = run_networks(layout, list(inputs), list(weights), list(biases))
        ctx.save_for_backward(*tensors)  # the groups hold views of them; saved, a change in between is noticed
        ctx.layout, ctx.num_inputs, ctx.num_weights = layout, num_inputs, num_weights
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        stop = ctx.num_inputs + ctx.num_weights
        tensors = ctx.saved_tensors
        weights, biases = tensors[ctx.num_inputs : stop], tensors[stop:]
        wanted = ctx.needs_input_grad[3 : 3 + ctx.num_inputs]
        parts = differentiate_networks(ctx.layout, ctx.groups, grad, weights, biases, wanted)
        return None, None, None, *(part for kind in parts for part in kind)
