"""Many small linear maps, one batch: every row goes through the map of the node where it stands.

The routers and experts of a level have the same shape, so they are held as one stacked tensor `[slots, out, in]`.
Several ways lead through such a bank, and no one of them wins everywhere on a CPU:

* gathering a weight matrix for each *row* and a batched product: slowest by far, so it is not here;
* *padded*: rows are placed into one table a visited slot, filled up with zeros to the size of the fullest, and one
  batched product does the rest. Few calls, some wasted arithmetic: right for small batches;
* *segmented*: rows sorted by slot, one product for each visited slot, written in place. Exact in arithmetic, one call a
  visited slot, whatever the number of slots that exist: right for everything else.

A `Layout` holds that choice for one level. The walk reorders its rows once a level if the layout asks for it, and then
every bank of that level runs over neighbouring rows without another copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

# What one more product costs beyond its arithmetic, in multiply-adds (measured by `benchmarks/dispatch.py`).
MACS_PER_CALL = 500_000


@dataclass(frozen=True)
class Layout:
    """How the rows of one level are spread over the slots of its banks.

    Attributes:
        order: the permutation that sorts rows by slot, or None where rows may stay as they are.
        visited: the slots that have rows, rising.
        starts: segmented: where the rows of each visited slot start, and at last where they all end.
        place: padded: where each row goes in the tables `[visited * capacity]`.
        capacity: padded: rows of a table.
    """

    order: Int[Tensor, " B"] | None
    visited: tuple[int, ...]
    starts: tuple[int, ...]
    place: Int[Tensor, " B"] | None = None
    capacity: int = 0

    @staticmethod
    def single(rows: int) -> Layout:
        """All rows stand at the one node there is."""
        return Layout(None, (0,), (0, rows))

    @staticmethod
    def of(slots: Int[Tensor, " B"], num_slots: int, macs_per_row: int) -> Layout:
        """Choose the way through a bank of `num_slots` maps of `macs_per_row` multiply-adds each.

        Sorting is stable, so that equal input gives equal order on every machine.
        """
        rows = slots.shape[0]
        if num_slots == 1:
            return Layout.single(rows)
        # NumPy takes these tiny steps in a tenth of torch's time, and the counts are needed here anyway.
        where = slots.cpu().numpy()
        order = np.argsort(where, kind="stable")
        counts = np.bincount(where, minlength=num_slots)
        visited = np.flatnonzero(counts)
        sizes = counts[visited]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        capacity = int(sizes.max(initial=0))
        wasted = (len(visited) * capacity - rows) * macs_per_row
        copied = 0 if len(visited) == num_slots else len(visited) * macs_per_row
        fits = len(visited) * capacity <= 8 * rows  # one crowded slot must not fill up tables for all others
        if fits and wasted + copied < (len(visited) - 1) * MACS_PER_CALL:
            place = np.empty_like(order)
            # Row i of the sorted rows stands in table t, as many places down as it is rows after the table's first.
            shift = np.arange(len(visited)) * capacity - starts[:-1]
            place[order] = np.arange(rows) + np.repeat(shift, sizes)
            return Layout(None, tuple(visited.tolist()), (), torch.from_numpy(place).to(slots.device), capacity)
        return Layout(torch.from_numpy(order).to(slots.device), tuple(visited.tolist()), tuple(starts.tolist()))

    @property
    def segments(self) -> zip[tuple[int, int, int]]:
        """(slot, start, stop) of each visited slot."""
        return zip(self.visited, self.starts, self.starts[1:], strict=False)


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
    def slots(self) -> int:
        return self.weight.shape[0]

    @property
    def macs(self) -> int:
        """Multiply-adds for one row."""
        return self.weight.shape[1] * self.weight.shape[2]

    def forward(self, x: Float[Tensor, "B inp"], layout: Layout) -> Float[Tensor, "B out"]:
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        if weight.shape[0] == 1:
            return nn.functional.linear(x, weight[0], None if bias is None else bias[0])
        way = _SegmentedLinear if layout.place is None else _PaddedLinear
        result: Tensor = way.apply(x, weight, bias, layout)
        return result

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


class _SegmentedLinear(torch.autograd.Function):
    """One product a visited slot over neighbouring rows; slots that nobody visits get a gradient of exactly zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layout, ctx.has_bias = layout, bias is not None
        out = x.new_empty(x.shape[0], weight.shape[1])
        for slot, start, stop in layout.segments:
            if bias is None:
                torch.mm(x[start:stop], weight[slot].t(), out=out[start:stop])
            else:
                torch.addmm(bias[slot], x[start:stop], weight[slot].t(), out=out[start:stop])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = weight.new_zeros(weight.shape[:2]) if ctx.has_bias and ctx.needs_input_grad[2] else None
        for slot, start, stop in ctx.layout.segments:
            part = grad[start:stop]
            if grad_x is not None:
                torch.mm(part, weight[slot], out=grad_x[start:stop])
            if grad_weight is not None:
                torch.mm(part.t(), x[start:stop], out=grad_weight[slot])
            if grad_bias is not None:
                torch.sum(part, 0, out=grad_bias[slot])
        return grad_x, grad_weight, grad_bias, None


class _PaddedLinear(torch.autograd.Function):
    """One batched product over tables of rows; the zeros that fill a table up add nothing to any gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
        visited = len(layout.visited)
        slots = None if visited == weight.shape[0] else torch.tensor(layout.visited, device=x.device)
        maps = weight if slots is None else weight.index_select(0, slots)
        table = _tabled(x, layout)
        if bias is None:
            out = torch.bmm(table, maps.transpose(1, 2))
        else:
            shift = bias if slots is None else bias.index_select(0, slots)
            out = torch.baddbmm(shift.unsqueeze(1), table, maps.transpose(1, 2))
        ctx.save_for_backward(table, maps, slots)
        ctx.layout, ctx.shape, ctx.has_bias = layout, weight.shape, bias is not None
        return _untabled(out, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        table, maps, slots = ctx.saved_tensors
        tabled_grad = _tabled(grad, ctx.layout)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = _untabled(torch.bmm(tabled_grad, maps), ctx.layout)
        if ctx.needs_input_grad[1]:
            grad_weight = _among_all(torch.bmm(tabled_grad.transpose(1, 2), table), slots, ctx.shape[0])
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_bias = _among_all(tabled_grad.sum(1), slots, ctx.shape[0])
        return grad_x, grad_weight, grad_bias, None


def _tabled(rows: Tensor, layout: Layout) -> Tensor:
    """Rows placed into one zero-filled table a visited slot, [visited, capacity, features]."""
    assert layout.place is not None
    size, visited = rows.shape[1], len(layout.visited)
    table = rows.new_zeros(visited * layout.capacity, size).index_copy_(0, layout.place, rows)
    return table.view(visited, layout.capacity, size)


def _untabled(table: Tensor, layout: Layout) -> Tensor:
    """Rows back from their tables, without what filled them up."""
    assert layout.place is not None
    return table.flatten(0, 1).index_select(0, layout.place)


def _among_all(part: Tensor, slots: Tensor | None, num_slots: int) -> Tensor:
    """Gradients of the visited slots at their places among all, zero elsewhere."""
    if slots is None:
        return part
    return part.new_zeros(num_slots, *part.shape[1:]).index_copy_(0, slots, part)
