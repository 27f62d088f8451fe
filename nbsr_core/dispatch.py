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
from itertools import accumulate
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
        # NumPy and plain lists take these tiny steps in a tenth of torch's time, and the counts are needed here anyway.
        where = slots.cpu().numpy()
        counts = np.bincount(where, minlength=num_slots)
        slots_visited = np.flatnonzero(counts)
        visited, sizes = tuple(slots_visited.tolist()), counts[slots_visited].tolist()
        if len(visited) < 2:
            return Layout(None, visited, (0, *sizes))
        order = np.argsort(where.astype(np.int16 if num_slots < 2**15 else np.int64), kind="stable")  # radix if small
        starts = (0, *accumulate(sizes))
        capacity = max(sizes)
        wasted = (len(visited) * capacity - rows) * macs_per_row
        copied = 0 if len(visited) == num_slots else len(visited) * macs_per_row
        fits = len(visited) * capacity <= 8 * rows  # one crowded slot must not fill up tables for all others
        if fits and wasted + copied < (len(visited) - 1) * MACS_PER_CALL:
            place = np.empty_like(order)
            # Row i of the sorted rows stands in table t, as many places down as it is rows after the table's first.
            shift = np.arange(len(visited)) * capacity - np.asarray(starts[:-1])
            place[order] = np.arange(rows) + np.repeat(shift, sizes)
            return Layout(None, visited, (), torch.from_numpy(place).to(slots.device), capacity)
        return Layout(torch.from_numpy(order).to(slots.device), visited, starts)

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


@dataclass(frozen=True)
class Group:
    """Rows that go through one product together: [rows, features] with weights [out, in], or tables of such."""

    inputs: list[Tensor]
    weights: list[Tensor]
    biases: list[Tensor | None]
    active: list[Tensor]  # hidden activations, filled by the forward pass


def _groups(
    layout: Layout, inputs: list[Tensor], weights: list[Tensor], biases: list[Tensor | None]
) -> Iterator[Group]:
    if layout.place is None:
        for slot, start, stop in layout.segments:
            rows = inputs if len(layout.visited) == 1 else [x[start:stop] for x in inputs]
            yield Group(rows, [w[slot] for w in weights], [None if b is None else b[slot] for b in biases], [])
        return
    if len(layout.visited) < weights[0].shape[0]:
        slots = _index(layout.visited, inputs[0].device)
        weights = [weight.index_select(0, slots) for weight in weights]
        biases = [None if bias is None else bias.index_select(0, slots) for bias in biases]
    shifts = [None if bias is None else bias.unsqueeze(1) for bias in biases]
    yield Group([tabled(x, layout) if x.ndim == 2 else x for x in inputs], weights, shifts, [])


def run_networks(
    layout: Layout, inputs: list[Tensor], weights: list[Tensor], biases: list[Tensor | None]
) -> tuple[Tensor, list[Group]]:
    """The networks' output, and the groups with what `differentiate_networks` needs. Inputs may already be tables."""
    groups = list(_groups(layout, inputs, weights, biases))
    if len(groups) == 1:
        output = _through(groups[0])
        return (output if layout.place is None else _untabled(output, layout)), groups
    output = inputs[0].new_empty(inputs[0].shape[0], weights[-1].shape[1])
    for group, (_, start, stop) in zip(groups, layout.segments, strict=True):
        _through(group, output[start:stop])
    return output, groups


def _through(group: Group, out: Tensor | None = None) -> Tensor:
    """The rows of a group through their network, into `out` if there is one; hidden activations are kept."""
    layers, inputs, z = group.weights, group.inputs, group.biases[0]
    # An input of one row goes first: it is added to the bias, not to every row.
    order = sorted(range(len(inputs)), key=lambda i: inputs[i].shape[-2]) if len(inputs) > 1 else (0,)
    for done, index in enumerate(order, start=1):
        z = _affine(inputs[index], layers[index], z, out if done == len(layers) else None)
    assert z is not None
    for done, weight in enumerate(layers[len(inputs) :], start=len(inputs) + 1):
        group.active.append(z.relu_())
        z = _affine(z, weight, group.biases[done - len(inputs)], out if done == len(layers) else None)
    return z


def _affine(x: Tensor, weight: Tensor, shift: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`x W^T + shift`, for a group of rows or a table of groups."""
    if x.ndim == 3:
        return torch.bmm(x, weight.mT) if shift is None else torch.baddbmm(shift, x, weight.mT)
    if shift is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(shift, x, weight.t(), out=out)


def differentiate_networks(
    layout: Layout,
    groups: Sequence[Group],
    grad: Float[Tensor, "B out"],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> tuple[list[Tensor | None], list[Tensor], list[Tensor | None]]:
    """Gradients of the inputs (where wanted), weights and biases. Slots that nobody visits get exactly zero."""
    of_inputs: list[list[Tensor]] = [[] for _ in wanted]
    of_weights: list[list[Tensor]] = [[] for _ in weights]
    of_biases: list[list[Tensor]] = [[] for _ in biases]
    if layout.place is None:
        product, grads = torch.mm, [grad[start:stop] for _, start, stop in layout.segments]
    else:
        product, grads = torch.bmm, [tabled(grad, layout)]
    for group, g in zip(groups, grads, strict=True):
        for back, active in enumerate(reversed(group.active), start=1):
            of_weights[-back].append(product(g.mT, active))
            if group.biases[-back] is not None:
                of_biases[-back].append(g.sum(-2))
            g = torch.ops.aten.threshold_backward(product(g, group.weights[-back]), active, 0)
        if group.biases[0] is not None:
            of_biases[0].append(g.sum(-2))
        for index, x in enumerate(group.inputs):
            of_row = g if x.shape[-2] == g.shape[-2] else g.sum(-2, keepdim=True)
            of_weights[index].append(product(of_row.mT, x))
            if wanted[index]:
                of_inputs[index].append(product(of_row, group.weights[index]))
    return (
        [
            _rows_of(parts, layout, grad, w) if n else None
            for parts, n, w in zip(of_inputs, wanted, weights, strict=False)
        ],
        [_slots_of(parts, layout, weight) for parts, weight in zip(of_weights, weights, strict=True)],
        [None if b is None else _slots_of(parts, layout, b) for parts, b in zip(of_biases, biases, strict=True)],
    )


def _rows_of(parts: list[Tensor], layout: Layout, grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of an input from those of its groups."""
    if not parts:
        return grad.new_empty(0, weight.shape[2])
    if layout.place is not None:
        return _untabled(parts[0], layout)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _slots_of(parts: list[Tensor], layout: Layout, stack: Tensor) -> Tensor:
    """The gradient of a stack from those of its visited slots."""
    if not parts:
        return torch.zeros_like(stack)
    visited = parts[0] if layout.place is not None else parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)
    if len(layout.visited) == stack.shape[0]:
        return visited
    return torch.zeros_like(stack).index_copy_(0, _index(layout.visited, stack.device), visited)


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


def _index(slots: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(slots, dtype=torch.int64, device=device)


def tabled(rows: Tensor, layout: Layout) -> Tensor:
    """Rows placed into one zero-filled table a visited slot, [visited, capacity, features]."""
    assert layout.place is not None
    size, visited = rows.shape[1], len(layout.visited)
    table = rows.new_zeros(visited * layout.capacity, size).index_copy_(0, layout.place, rows)
    return table.view(visited, layout.capacity, size)


def _untabled(table: Tensor, layout: Layout) -> Tensor:
    """Rows back from their tables, without what filled them up."""
    assert layout.place is not None
    return table.flatten(0, 1).index_select(0, layout.place)
