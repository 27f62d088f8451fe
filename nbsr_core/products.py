"""The matrix products of a bank and their derivatives, written out for every `Layout`.

A bank is stacked tensors `[slots, out, in]` and `[slots, out]`: the layers of small ReLU networks, one a slot. At the
size of routers and experts, autograd's books over single layers cost more than the layers, so it sees networks whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.layout import Layout


@dataclass(frozen=True)
class Group:
    """Rows that go through one product together: [rows, features] with weights [out, in], or tables of such."""

    inputs: list[Tensor]
    weights: list[Tensor]
    biases: list[Tensor | None]
    active: list[Tensor]  # hidden activations, filled by the forward pass


def run_networks(
    layout: Layout, inputs: list[Tensor], weights: list[Tensor], biases: list[Tensor | None]
) -> tuple[Tensor, list[Group]]:
    """The networks' output, and the groups with what `differentiate_networks` needs.

    The first matrices belong to one input each, and their products are added up. Inputs may already be tables; one of
    a single row stands for all rows, where all share a slot.
    """
    groups = list(_groups(layout, inputs, weights, biases))
    if len(groups) == 1:
        output = _through(groups[0], layout)
        return (output if layout.place is None else layout.untabled(output)), groups
    output = inputs[0].new_empty(inputs[0].shape[0], weights[-1].shape[1])
    for group, out in zip(groups, output.split(layout.sizes), strict=True):
        _through(group, layout, out)
    return output, groups


def _groups(
    layout: Layout, inputs: list[Tensor], weights: list[Tensor], biases: list[Tensor | None]
) -> Iterator[Group]:
    if layout.own is not None:
        flat = [weight.flatten(0, 1) for weight in weights]
        yield Group(inputs, flat, [None if bias is None else bias.flatten() for bias in biases], [])
    elif layout.place is not None:
        if len(layout.visited) < weights[0].shape[0]:
            slots = _index(layout, inputs[0].device)
            weights = [weight.index_select(0, slots) for weight in weights]
            biases = [None if bias is None else bias.index_select(0, slots) for bias in biases]
        shifts = [None if bias is None else bias.unsqueeze(1) for bias in biases]
        yield Group([layout.tabled(x) if x.ndim == 2 else x for x in inputs], weights, shifts, [])
    else:
        one = len(layout.visited) == 1
        parts: Sequence[Sequence[Tensor]] = [[x] for x in inputs] if one else [x.split(layout.sizes) for x in inputs]
        for index, slot in enumerate(layout.visited):
            maps = [w[slot] for w in weights], [None if b is None else b[slot] for b in biases]
            yield Group([part[index] for part in parts], *maps, [])


def _through(group: Group, layout: Layout, out: Tensor | None = None) -> Tensor:
    """The rows of a group through their network, into `out` if there is one; hidden activations are kept."""
    layers, inputs, z = group.weights, group.inputs, group.biases[0]
    # An input of one row goes first: it is added to the bias, not to every row.
    order = sorted(range(len(inputs)), key=lambda i: inputs[i].shape[-2]) if len(inputs) > 1 else (0,)
    for done, index in enumerate(order, start=1):
        z = _affine(inputs[index], layers[index], z, out if done == len(layers) else None)
    assert z is not None
    z = layout.own_part(z)
    for done, weight in enumerate(layers[len(inputs) :], start=len(inputs) + 1):
        group.active.append(z.relu_())
        z = _affine(z, weight, group.biases[done - len(inputs)], out if done == len(layers) else None)
        z = layout.own_part(z)
    return z


def _affine(x: Tensor, weight: Tensor, shift: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`x W^T + shift`, for a group of rows or a table of groups."""
    if x.ndim == 3:
        product = torch.bmm(x, weight.mT)
        return product if shift is None else product.add_(shift)  # faster than baddbmm
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
    product = torch.mm if layout.place is None else torch.bmm
    wide = layout.own is not None
    parts = [layout.spread(grad)] if len(groups) == 1 else grad.split(layout.sizes)
    for group, g in zip(groups, parts, strict=True):
        for back, active in enumerate(reversed(group.active), start=1):
            of_weights[-back].append(product(g.mT, active))
            if group.biases[-back] is not None:
                of_biases[-back].append(g.sum(-2))
            g = torch.ops.aten.threshold_backward(product(g, group.weights[-back]), active, 0)
            g = layout.spread(g) if wide else g
        if group.biases[0] is not None:
            of_biases[0].append(g.sum(-2))
        for index, x in enumerate(group.inputs):
            of_row = g if x.shape[-2] == g.shape[-2] else g.sum(-2, keepdim=True)
            of_weights[index].append(product(of_row.mT, x))
            if wanted[index]:
                of_inputs[index].append(product(of_row, group.weights[index]))
    return (
        [_rows_of(parts, layout) if needed else None for parts, needed in zip(of_inputs, wanted, strict=True)],
        [_slots_of(parts, layout, weight) for parts, weight in zip(of_weights, weights, strict=True)],
        [None if b is None else _slots_of(parts, layout, b) for parts, b in zip(of_biases, biases, strict=True)],
    )


def _rows_of(parts: list[Tensor], layout: Layout) -> Tensor:
    """The gradient of an input from those of its groups."""
    if layout.place is not None:
        return layout.untabled(parts[0])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _slots_of(parts: list[Tensor], layout: Layout, stack: Tensor) -> Tensor:
    """The gradient of a stack from those of its visited slots."""
    if layout.own is not None:
        return parts[0].view_as(stack)
    visited = parts[0] if layout.place is not None else parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)
    if len(layout.visited) == stack.shape[0]:
        return visited
    return torch.zeros_like(stack).index_copy_(0, _index(layout, stack.device), visited)


def _index(layout: Layout, device: torch.device) -> Tensor:
    return torch.tensor(layout.visited, dtype=torch.int64, device=device)
