"""Many small linear maps, one batch: every row goes through the map of the node where it stands.

The routers and experts of a level have the same shape, so they are held as one stacked tensor `[slots, out, in]`.
Three ways lead through such a bank, and no one of them wins everywhere:

* gathering a weight matrix for each row and a batched product: slowest by far on a CPU, so it is not here;
* *wide*: one product with all slots side by side, then each row keeps its own part. Wasteful in arithmetic
  (`slots` times too much), unbeatable in calls: right for a few nodes and a small batch;
* *segmented*: rows sorted by slot, one product for each slot that is visited, written in place. Exact in arithmetic,
  one call a visited slot, whatever the number of slots that exist: right for everything else.

A `Layout` holds that choice for one level. The walk reorders its rows once a level if the layout asks for it, and then
every bank of that level runs over neighbouring rows without another copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# One extra call into torch costs about as much as this many multiply-adds (measured by `benchmarks/dispatch.py`).
MACS_PER_CALL = 400_000


@dataclass(frozen=True)
class Layout:
    """How the rows of one level are spread over the slots of its banks.

    Attributes:
        order: the permutation that sorts rows by slot, or None where rows may stay as they are.
        slots: slot of each row, after the permutation; None when all rows share the single slot 0.
        segments: (slot, start, stop) of each visited slot for the segmented way; None for the wide way.
    """

    order: Int[Tensor, " B"] | None
    slots: Int[Tensor, " B"] | None
    segments: tuple[tuple[int, int, int], ...] | None

    @staticmethod
    def single(rows: int) -> Layout:
        """All rows stand at the one node there is."""
        return Layout(order=None, slots=None, segments=((0, 0, rows),))

    @staticmethod
    def of(slots: Int[Tensor, " B"], num_slots: int, macs_per_row: int) -> Layout:
        """Choose the way through a bank of `num_slots` maps of `macs_per_row` multiply-adds each."""
        rows = slots.shape[0]
        if num_slots == 1:
            return Layout.single(rows)
        wasted = (num_slots - 1) * rows * macs_per_row
        if wasted < min(num_slots, rows) * MACS_PER_CALL:
            return Layout(order=None, slots=slots, segments=None)
        return Layout.segmented(slots, num_slots)

    @staticmethod
    def segmented(slots: Int[Tensor, " B"], num_slots: int) -> Layout:
        """Sort rows by slot; the sort is stable, so that equal input gives equal order on every machine."""
        keys = slots.to(torch.int16) if num_slots < 2**15 else slots
        ordered, order = torch.sort(keys, stable=True)
        ordered = ordered.long()
        visited, counts = torch.unique_consecutive(ordered, return_counts=True)
        segments, start = [], 0
        for slot, count in zip(visited.tolist(), counts.tolist(), strict=True):
            segments.append((slot, start, start + count))
            start += count
        return Layout(order=order, slots=ordered, segments=tuple(segments))


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
        bound = 1.0 / math.sqrt(fan_in or in_features)
        self.weight = nn.Parameter(torch.empty(slots, out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(slots, out_features).uniform_(-bound, bound)) if bias else None

    @property
    def macs(self) -> int:
        """Multiply-adds for one row."""
        return self.weight.shape[1] * self.weight.shape[2]

    def forward(self, x: Float[Tensor, "B inp"], layout: Layout) -> Float[Tensor, "B out"]:
        weight, bias = self.weight, self.bias
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        if weight.shape[0] == 1:
            return nn.functional.linear(x, weight[0], None if bias is None else bias[0])
        result: Tensor
        if layout.segments is None:
            result = _WideLinear.apply(x, weight, bias, layout.slots)
        else:
            result = _SegmentedLinear.apply(x, weight, bias, layout.segments)
        return result

    def every_slot(self, x: Float[Tensor, "B inp"]) -> Float[Tensor, "B slots out"]:
        """All maps on all rows, for soft routing, where every node is on the path."""
        slots, out, _ = self.weight.shape
        bias = None if self.bias is None else self.bias.flatten()
        return nn.functional.linear(x, self.weight.flatten(0, 1), bias).unflatten(1, (slots, out))

    def selected(self, slots: Int[Tensor, " kept"]) -> StackedLinear:
        """A smaller bank with copies of some of the maps (pruning)."""
        kept = StackedLinear(len(slots), self.weight.shape[2], self.weight.shape[1], bias=self.bias is not None)
        with torch.no_grad():
            kept.weight.copy_(self.weight[slots])
            if self.bias is not None and kept.bias is not None:
                kept.bias.copy_(self.bias[slots])
        return kept

    def extra_repr(self) -> str:
        slots, out, inp = self.weight.shape
        return f"slots={slots}, in={inp}, out={out}, bias={self.bias is not None}"


class _SegmentedLinear(torch.autograd.Function):
    """One product a visited slot over neighbouring rows; slots that nobody visits get a gradient of exactly zero."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, segments: tuple[tuple[int, int, int], ...]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.segments, ctx.has_bias = segments, bias is not None
        out = x.new_empty(x.shape[0], weight.shape[1])
        for slot, start, stop in segments:
            if bias is None:
                torch.mm(x[start:stop], weight[slot].t(), out=out[start:stop])
            else:
                torch.addmm(bias[slot], x[start:stop], weight[slot].t(), out=out[start:stop])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        need_x, need_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        need_bias = ctx.has_bias and ctx.needs_input_grad[2]
        grad_x = torch.empty_like(x) if need_x else None
        grad_weight = torch.zeros_like(weight) if need_weight else None
        grad_bias = weight.new_zeros(weight.shape[:2]) if need_bias else None
        for slot, start, stop in ctx.segments:
            part = grad[start:stop]
            if grad_x is not None:
                torch.mm(part, weight[slot], out=grad_x[start:stop])
            if grad_weight is not None:
                torch.mm(part.t(), x[start:stop], out=grad_weight[slot])
            if grad_bias is not None:
                torch.sum(part, 0, out=grad_bias[slot])
        return grad_x, grad_weight, grad_bias, None


class _WideLinear(torch.autograd.Function):
    """One product with all slots side by side; each row keeps the part of its own slot."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, slots: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, slots)
        ctx.has_bias = bias is not None
        num_slots, out_features, _ = weight.shape
        flat = weight.flatten(0, 1).t()
        every = torch.mm(x, flat) if bias is None else torch.addmm(bias.flatten(), x, flat)
        index = slots.view(-1, 1, 1).expand(-1, 1, out_features)
        return every.view(-1, num_slots, out_features).gather(1, index).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight, slots = ctx.saved_tensors
        num_slots, out_features, in_features = weight.shape
        spread = grad.new_zeros(grad.shape[0], num_slots, out_features)
        spread.scatter_(1, slots.view(-1, 1, 1).expand(-1, 1, out_features), grad.unsqueeze(1))
        flat = spread.flatten(1)
        grad_x = flat @ weight.flatten(0, 1) if ctx.needs_input_grad[0] else None
        grad_weight = (flat.t() @ x).view_as(weight) if ctx.needs_input_grad[1] else None
        grad_bias = flat.sum(0).view(num_slots, out_features) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None
