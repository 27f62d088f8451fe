"""Which beliefs are surely below an entropy threshold, and which surely not, without computing their entropy.

The exact entropy takes some twenty passes over a belief (`nbsr_core._stirling`): for a leaf's expert it costs
as much as the expert, and an exit test that costs more than what it saves is no gain. But it is a sum of one function
of each alpha_k, less one of alpha_0:

    H = Σ_k g(α_k) - G(α_0),   G(a) = g(a) + (K - 1)·ψ(a)

A table over the leading bits of a float32 holds both, so two passes give an estimate. How far it can be off follows
from the size of a cell, and only rows that lie closer to the threshold are computed. Compiled code interpolates within
a cell: its tables are half as long, and leave less in doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import digamma, gammaln
from torch import Tensor
from torch.nn import functional as F

from nbsr_core import dirichlet
from nbsr_core.native import ExitTest, is_plain, screened

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


def below(alpha: Float[Tensor, "b K"], eta: float) -> Bool[Tensor, " b"]:
    """`dirichlet.entropy(alpha) < eta`, the same answer for every row."""
    if math.isinf(eta):
        return torch.full(alpha.shape[:1], eta > 0, device=alpha.device)
    if alpha.dtype != torch.float32:
        return dirichlet.entropy(alpha, validate_args=False) < eta
    if is_plain(alpha):
        told, count = screened(alpha, exit_test(eta, alpha.shape[1]))
        if not count:
            return told.view(torch.bool)
        unclear = told == 2
        answer = told == 1
    else:
        distance = estimate(alpha).sub_(eta)
        answer = distance < 0
        unclear = ~(distance.abs_() > doubt(eta, alpha.shape[1]))  # true for NaN too
        if not bool(unclear.any()):
            return answer
    rows_in_doubt = unclear.nonzero().squeeze(1)
    answer[rows_in_doubt] = dirichlet.entropy(alpha.index_select(0, rows_in_doubt), validate_args=False) < eta
    return answer


def exit_test(eta: float, num_classes: int) -> ExitTest:
    """`below` for compiled code, which leaves some rows unclear."""
    doubt = (_DOUBT_WITHIN + _ROUNDING_WITHIN) * (5 * num_classes + abs(eta))
    return ExitTest(eta, doubt, _within_class().ctypes.data, _within_total(num_classes).ctypes.data)


def estimate(alpha: Float[Tensor, "b K"]) -> Float[Tensor, " b"]:
    """The entropy of float32 beliefs, off by no more than `doubt` of it; NaN where nothing is known."""
    summed: Tensor = F.embedding_bag(_cell(alpha), _of_class(alpha.device).unsqueeze(1), mode="sum").squeeze(1)
    return summed.sub_(_of_total(alpha.shape[1], alpha.device).index_select(0, _cell(alpha.sum(-1))))


def doubt(entropy: float, num_classes: int) -> float:
    """How far an estimate can lie from an entropy of this size."""
    return (_DOUBT + _ROUNDING) * (5 * num_classes + abs(entropy))


def _cell(values: Float[Tensor, "*shape"]) -> Tensor:
    return values.view(torch.int32) >> _DROPPED


@cache
def _of_class(device: torch.device) -> Float[Tensor, " cells"]:
    return _in_the_middle(_SMALLEST, _of_one).to(device)


@cache
def _of_total(num_classes: int, device: torch.device) -> Float[Tensor, " cells"]:
    return _in_the_middle(_SMALLEST_TOTAL, partial(_of_all, num_classes)).to(device)


@cache
def _within_class() -> np.ndarray:
    return _at_edges(_SMALLEST, _of_one)


@cache
def _within_total(num_classes: int) -> np.ndarray:
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
