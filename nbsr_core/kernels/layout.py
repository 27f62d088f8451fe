"""How the rows of one level go through a bank of small maps, each through the map of the node where it stands.

Several ways lead through a bank, and no one of them wins everywhere on a CPU:

* gathering a weight matrix for each *row* and a batched product: slowest by far, so it is not here;
* *wide*: all maps on all rows in one product, of which each row keeps its own part. Nothing is sorted or counted, which
  is most of the cost of a small batch: right where the arithmetic that nobody asked for is little;
* *padded*: rows are placed into one table for each visited slot, filled up to the size of the fullest, and one batched
  product does the rest. Few calls, some wasted arithmetic: right for many small groups;
* *segmented*: rows sorted by slot, one product for each visited slot. Exact in arithmetic, and as many calls as slots
  are visited, however many exist: right for everything else.

A `Layout` holds that choice for one level, and every bank of that level follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

# What one more product costs beyond its arithmetic, in multiply-adds.
MACS_PER_CALL = 500_000
# What counting rows, sorting and placing them costs, in multiply-adds: a wide product may waste as much.
MACS_PER_PLACING = 1_500_000
MOST_WIDE_ROWS = 128  # a wide product keeps every slot's output for a moment: memory must not grow with batch x slots


@dataclass(frozen=True)
class Layout:
    """How the rows of one level are spread over the slots of its banks.

    Attributes:
        order: the permutation that sorts rows by slot, or None where rows may stay as they are.
        visited: the slots that have rows, rising; of a wide layout all there are.
        starts: segmented: where the rows of each visited slot start, and at last where they all end.
        place: padded: where each row goes in the tables `[visited * capacity]`.
        source: padded: which row goes to each place of the tables; any row where nothing goes.
        own: wide: which of all `[B * slots]` outputs is each row's.
    """

    order: Int[Tensor, " B"] | None
    visited: tuple[int, ...] | range
    starts: tuple[int, ...]
    place: Int[Tensor, " B"] | None = None
    source: Int[Tensor, " places"] | None = None
    own: Int[Tensor, " B"] | None = None

    @staticmethod
    def single(rows: int, slot: int = 0) -> Layout:
        """All rows go through one map."""
        return Layout(None, (slot,), (0, rows))

    @staticmethod
    def of(slots: Int[Tensor, " B"], num_slots: int, macs_per_row: int) -> Layout:
        """Choose the way through a bank of `num_slots` maps of `macs_per_row` multiply-adds each.

        Sorting is stable, so that equal input gives equal order on every machine.
        """
        rows = slots.shape[0]
        if num_slots == 1:
            return Layout.single(rows)
        if rows <= MOST_WIDE_ROWS and (num_slots - 1) * rows * macs_per_row <= MACS_PER_PLACING:
            first = torch.arange(0, rows * num_slots, num_slots, device=slots.device)
            return Layout(None, range(num_slots), (), own=first.add_(slots))
        # NumPy and plain lists take these tiny steps in a tenth of torch's time, and the counts are needed here anyway.
        where = slots.cpu().numpy()
        counts = np.bincount(where, minlength=num_slots)
        slots_visited = np.flatnonzero(counts)
        visited, sizes = tuple(slots_visited.tolist()), counts[slots_visited].tolist()
        if len(visited) == 1:
            return Layout.single(rows, visited[0])
        order = np.argsort(where.astype(np.int16 if num_slots < 2**15 else np.int64), kind="stable")  # radix if small
        starts = (0, *accumulate(sizes))
        capacity = max(sizes)
        wasted = (len(visited) * capacity - rows) * macs_per_row
        copied = 0 if len(visited) == num_slots else len(visited) * macs_per_row
        fits = len(visited) * capacity <= 8 * rows  # one crowded slot must not fill up tables for all others
        if fits and wasted + copied < (len(visited) - 1) * MACS_PER_CALL:
            place, source = np.empty_like(order), np.zeros(len(visited) * capacity, dtype=order.dtype)
            # Row i of the sorted rows stands in table t, as many places down as it is rows after the table's first.
            shift = np.arange(len(visited)) * capacity - np.asarray(starts[:-1])
            place[order] = np.arange(rows) + np.repeat(shift, sizes)
            source[place] = np.arange(rows)
            to = slots.device
            return Layout(None, visited, (), torch.from_numpy(place).to(to), torch.from_numpy(source).to(to))
        return Layout(torch.from_numpy(order).to(slots.device), visited, starts)

    @property
    def sizes(self) -> list[int]:
        """Segmented: how many rows go through each visited slot."""
        return [stop - start for start, stop in zip(self.starts, self.starts[1:], strict=False)]

    def sorted(self, rows: Float[Tensor, "#B size"]) -> Float[Tensor, "#B size"]:
        """Rows as the bank wants them; a single one that stands for all stays as it is."""
        return rows if self.order is None or len(rows) == 1 else rows.index_select(0, self.order)

    def restored(self, rows: Float[Tensor, "B size"]) -> Float[Tensor, "B size"]:
        """Sorted rows back in the order of the batch."""
        return rows if self.order is None else torch.empty_like(rows).index_copy_(0, self.order, rows)

    def tabled(self, rows: Float[Tensor, "B size"]) -> Float[Tensor, "visited capacity size"]:
        """Rows placed into one table for each visited slot. What fills a table up is some row again, not zero."""
        assert self.source is not None
        return rows.index_select(0, self.source).view(len(self.visited), -1, rows.shape[1])

    def untabled(self, table: Float[Tensor, "visited capacity size"]) -> Float[Tensor, "B size"]:
        """Rows back from their tables, without what filled them up."""
        assert self.place is not None
        return table.flatten(0, 1).index_select(0, self.place)

    def own_part(self, every: Float[Tensor, "*rows out_of_all"]) -> Float[Tensor, "*rows out"]:
        """What each row's own slot said, where a product was wide; else all of it."""
        if self.own is None:
            return every
        return every.view(-1, every.shape[1] // len(self.visited)).index_select(0, self.own)
