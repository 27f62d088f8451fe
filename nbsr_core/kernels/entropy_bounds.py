"""Bounds on the entropy of beliefs from tables, which decide almost every exit test without computing an entropy.

The exact entropy takes some twenty passes over a belief (`nbsr_core.belief._stirling`): for a leaf's expert it costs
as much as the expert, and an exit test that costs more than what it saves is no gain. But it is a sum of one function
of each alpha_k, less one of alpha_0:

    H = Σ_k g(α_k) - G(α_0),   G(a) = g(a) + (K - 1)·ψ(a)

A table over the leading bits of a float32 holds both, so two passes give an estimate. How far it can be off follows
from the size of a cell, and only rows that lie closer to the threshold are computed. Compiled code interpolates within
a cell: its tables are half as long, and leave less in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import digamma, gammaln
from torch import Tensor
from torch.nn import functional as F

Function = Callable[[np.ndarray], np.ndarray]

# A float32 without its sign and its last 12 bits: the exponent and 11 bits of the mantissa number a cell.
_DROPPED = 12
_CELLS = 0x7F80_0000 >> _DROPPED
# Beliefs and precisions outside have no estimate (NaN), and are computed.
_SMALLEST, _SMALLEST_TOTAL, _LARGEST = 2.0**-70, 1.0, 2.0**30
# The middle of a cell is at most 2^-12 of a value away from it. On that way g moves by at most 1.04 (2 + max(-g, 0))
# times as much and G by 1.65 K, and all negative g together are Σ max(g, 0) - G - H, where the first two make no more
# than 0.58 K for alpha_0 >= 1. In all, an estimate is off by at most 1.05 * 2^-12 (5 K - H); H is never above 0.
_DOUBT = 1.05 * 2.0**-12
# Between the edges of a cell of 2^-10 a function is off by at most an eighth of its second derivative times the square
# of the cell: for g no more than 2^-23 times 2.3 (2 + max(-g, 0)), for G 2^-23 times 2.5 K. In all, as above; and
# compiled code adds up in float64:
_DROPPED_WITHIN = 13
_DOUBT_WITHIN, _ROUNDING_WITHIN = 2.5 * 2.0**-23, 1e-6
_ROUNDING = 1e-5  # of float32 sums and of the exact entropy itself, relative


def estimate(alpha: Float[Tensor, "b K"]) -> Float[Tensor, " b"]:
    """The entropy of float32 beliefs, off by no more than `doubt` of it; NaN where nothing is known."""
    summed: Tensor = F.embedding_bag(_cell(alpha), _of_class(alpha.device).unsqueeze(1), mode="sum").squeeze(1)
    return summed.sub_(_of_total(alpha.shape[1], alpha.device).index_select(0, _cell(alpha.sum(-1))))


def doubt(entropy: float, num_classes: int) -> float:
    """How far an estimate can lie from an entropy of this size."""
    return (_DOUBT + _ROUNDING) * (5 * num_classes + abs(entropy))


def interpolated_doubt(entropy: float, num_classes: int) -> float:
    """The same for an estimate that interpolates within the cells."""
    return (_DOUBT_WITHIN + _ROUNDING_WITHIN) * (5 * num_classes + abs(entropy))


def _cell(values: Float[Tensor, "*shape"]) -> Tensor:
    return values.view(torch.int32) >> _DROPPED


@cache
def _of_class(device: torch.device) -> Float[Tensor, " cells"]:
    return _in_the_middle(_SMALLEST, _of_one).to(device)


@cache
def _of_total(num_classes: int, device: torch.device) -> Float[Tensor, " cells"]:
    return _in_the_middle(_SMALLEST_TOTAL, partial(_of_all, num_classes)).to(device)


@cache
def class_cells() -> np.ndarray:
    """G by cell: its value at the lower edge, and its rise by unit of the dropped bits."""
    return _at_edges(_SMALLEST, _of_one)


@cache
def total_cells(num_classes: int) -> np.ndarray:
    """G by cell, in the same way."""
    return _at_edges(_SMALLEST_TOTAL, partial(_of_all, num_classes))


def _of_one(alpha: np.ndarray) -> np.ndarray:
    found: np.ndarray = gammaln(alpha) - (alpha - 1.0) * digamma(alpha) + alpha
    return found


def _of_all(num_classes: int, total: np.ndarray) -> np.ndarray:
    found: np.ndarray = _of_one(total) + (num_classes - 1) * digamma(total)
    return found


def _in_the_middle(smallest: float, function: Function) -> Tensor:
    """A function in the middle of every cell from `smallest` on; NaN elsewhere."""
    first, edges = _edges(smallest, _DROPPED)
    table = np.full(_CELLS, np.nan, dtype=np.float32)
    table[first : first + len(edges) - 1] = function((edges[:-1] + edges[1:]) / 2)
    return torch.from_numpy(table)


def _at_edges(smallest: float, function: Function) -> np.ndarray:
    """A function at the lower edge of every cell from `smallest` on, and its rise by unit of the dropped bits."""
    first, edges = _edges(smallest, _DROPPED_WITHIN)
    table, values = np.full((1 << 31 - _DROPPED_WITHIN, 2), np.nan, dtype=np.float32), function(edges)
    table[first : first + len(edges) - 1, 0] = values[:-1]
    table[first : first + len(edges) - 1, 1] = np.diff(values) / (1 << _DROPPED_WITHIN)
    return table


def _edges(smallest: float, dropped: int) -> tuple[int, np.ndarray]:
    """The number of the first cell, and where the cells from there on begin."""
    first, last = (int(np.float32(end).view(np.int32)) >> dropped for end in (smallest, _LARGEST))
    return first, (np.arange(first, last + 1, dtype=np.int32) << dropped).view(np.float32).astype(np.float64)
