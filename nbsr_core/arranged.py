"""Rows as a bank wants them, and back again: all or some of a batch, sorted or in tables if their layout says so."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.layout import Layout


@dataclass(frozen=True)
class Arranged:
    """Some rows as a bank wants them.

    Attributes:
        everyone: the oracles of the whole batch.
        layout: how the rows are spread over the slots of the bank.
        rows: which rows they are, in order; None for all, as they came.
    """

    everyone: Float[Tensor, "B d"]
    layout: Layout
    rows: Int[Tensor, " b"] | None

    @staticmethod
    def of(
        h: Float[Tensor, "B d"],
        slots: Int[Tensor, " b"],
        num_slots: int,
        macs: int,
        rows: Int[Tensor, " b"] | None = None,
    ) -> Arranged:
        """Arrange all rows, or the given ones, for a bank of `num_slots` maps; `slots` says which each goes through."""
        layout = Layout.of(slots, num_slots, macs)
        if layout.order is not None:
            rows = layout.order if rows is None else rows.index_select(0, layout.order)
        return Arranged(h, layout, rows)

    @cached_property
    def h(self) -> Float[Tensor, ...]:
        """Their oracles in that order, or in tables: routers and experts of the same nodes share them."""
        mine = self.pick(self.everyone)
        return mine if self.layout.place is None else self.layout.tabled(mine)

    def pick(self, values: Tensor) -> Tensor:
        """Values of these rows, in their order."""
        return values if self.rows is None else values.index_select(0, self.rows)

    def put(self, values: Tensor, into: Tensor | None = None) -> Tensor:
        """Values of these rows where they came from in the batch; `into` may hold those of others already."""
        if self.rows is None:
            return values
        into = values.new_empty(len(self.everyone), values.shape[1]) if into is None else into
        return into.index_copy_(0, self.rows, values)
