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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
        where = slots.cpu().numpy().astype(np.int16 if num_slots < 2**15 else np.int64)  # radix sort for the small ones
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
    weights: list[Tensor] = [stack.weight for stack in (*(stack for _, stack in first), *rest)]
    shared = [stack.bias for _, stack in first if stack.bias is not None]
    biases: list[Tensor | None] = [shared[0] if shared else None, *(stack.bias for stack in rest)]
    device = inputs[0].device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        inputs, weights = [x.to(dtype) for x in inputs], [weight.to(dtype) for weight in weights]
        biases = [None if bias is None else bias.to(dtype) for bias in biases]
    if torch.is_grad_enabled():
        result: Tensor = _StackedNetwork.apply(layout, len(inputs), len(weights), *inputs, *weights, *biases)
        return result
    return _forward(layout, inputs, weights, biases)[0]


@dataclass(frozen=True)
class _Group:
    """Rows that go through one product together: [rows, features] with weights [out, in], or tables of such."""

    inputs: list[Tensor]
    weights: list[Tensor]
    biases: list[Tensor | None]
    active: list[Tensor]  # hidden activations, filled by the forward pass


def _groups(
    layout: Layout, inputs: list[Tensor], weights: list[Tensor], biases: list[Tensor | None]
) -> Iterator[_Group]:
    if layout.place is None:
        for slot, start, stop in layout.segments:
            rows = inputs if len(layout.visited) == 1 else [x[start:stop] for x in inputs]
            yield _Group(rows, [w[slot] for w in weights], [None if b is None else b[slot] for b in biases], [])
        return
    if len(layout.visited) < weights[0].shape[0]:
        slots = _index(layout.visited, inputs[0].device)
        weights = [weight.index_select(0, slots) for weight in weights]
        biases = [None if bias is None else bias.index_select(0, slots) for bias in biases]
    shifts = [None if bias is None else bias.unsqueeze(1) for bias in biases]
    yield _Group([_tabled(x, layout) for x in inputs], weights, shifts, [])


def _forward(
    layout: Layout, inputs: list[Tensor], weights: list[Tensor], biases: list[Tensor | None]
) -> tuple[Tensor, list[_Group]]:
    """The networks' output, and the groups with what their backward pass needs."""
    groups, outputs = list(_groups(layout, inputs, weights, biases)), []
    for group in groups:
        z = group.biases[0]
        # An input of one row goes first: it is added to the bias, not to every row.
        for x, weight in sorted(zip(group.inputs, group.weights, strict=False), key=lambda pair: pair[0].shape[-2]):
            z = _affine(x, weight, z)
        assert z is not None
        for weight, bias in zip(group.weights[len(inputs) :], group.biases[1:], strict=True):
            group.active.append(z.relu_())
            z = _affine(z, weight, bias)
        outputs.append(z)
    if layout.place is not None:
        return _untabled(outputs[0], layout), groups
    if not outputs:
        return inputs[0].new_empty(0, weights[-1].shape[1]), groups
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs), groups


def _affine(x: Tensor, weight: Tensor, shift: Tensor | None) -> Tensor:
    """`x W^T + shift`, for a group of rows or a table of groups."""
    if x.ndim == 3:
        return torch.bmm(x, weight.mT) if shift is None else torch.baddbmm(shift, x, weight.mT)
    return torch.mm(x, weight.t()) if shift is None else torch.addmm(shift, x, weight.t())


class _StackedNetwork(torch.autograd.Function):
    """Slots that nobody visits get a gradient of exactly zero."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, num_inputs: int, num_weights: int, *tensors: Any) -> Tensor:
        stop = num_inputs + num_weights
        inputs, weights, biases = tensors[:num_inputs], tensors[num_inputs:stop], tensors[stop:]
        output, ctx.groups = _forward(layout, list(inputs), list(weights), list(biases))
        ctx.save_for_backward(*tensors)  # the groups hold views of them; saved, a change in between is noticed
        ctx.layout, ctx.num_inputs, ctx.num_weights = layout, num_inputs, num_weights
        ctx.shapes = [None if tensor is None else tensor.shape for tensor in tensors]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        _ = ctx.saved_tensors
        layout, needed = ctx.layout, ctx.needs_input_grad[3:]
        parts: list[list[Tensor]] = [[] for _ in ctx.shapes]
        of_inputs, rest = parts[: ctx.num_inputs], parts[ctx.num_inputs :]
        of_weights, of_biases = rest[: ctx.num_weights], rest[ctx.num_weights :]
        grads = [_tabled(grad, layout)] if layout.place is not None else [grad[a:b] for _, a, b in layout.segments]
        for group, g in zip(ctx.groups, grads, strict=True):
            for back, active in enumerate(reversed(group.active), start=1):
                of_weights[-back].append(g.mT @ active)
                if group.biases[-back] is not None:
                    of_biases[-back].append(g.sum(-2))
                g = torch.ops.aten.threshold_backward(g @ group.weights[-back], active, 0)
            if group.biases[0] is not None:
                of_biases[0].append(g.sum(-2))
            for index, x in enumerate(group.inputs):
                of_row = g if x.shape[-2] == g.shape[-2] else g.sum(-2, keepdim=True)
                of_weights[index].append(of_row.mT @ x)
                if needed[index]:
                    of_inputs[index].append(of_row @ group.weights[index])
        joined = [_joined(parts[i], ctx, i, grad) if wanted else None for i, wanted in enumerate(needed)]
        return None, None, None, *joined


def _joined(parts: list[Tensor], ctx: Any, index: int, grad: Tensor) -> Tensor:
    """The gradient of one tensor from those of its groups."""
    layout, shape = ctx.layout, ctx.shapes[index]
    if index < ctx.num_inputs:
        if layout.place is not None:
            return _untabled(parts[0], layout)
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else grad.new_zeros(shape)
    if layout.place is None and shape[0] == 1 and parts:
        return parts[0].unsqueeze(0)
    if layout.place is not None and len(layout.visited) == shape[0]:
        return parts[0]
    whole = grad.new_zeros(shape)
    if layout.place is not None:
        return whole.index_copy_(0, _index(layout.visited, grad.device), parts[0])
    for slot, part in zip(layout.visited, parts, strict=True):
        whole[slot] = part
    return whole


def _index(slots: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(slots, dtype=torch.int64, device=device)


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
