"""Which beliefs are surely below an entropy threshold, and which surely not, without computing their entropy.

The exact entropy takes some twenty passes over a belief (`nbsr_core._stirling`): for a leaf's expert it costs
as much as the expert, and an exit test that costs more than what it saves is no gain. But it is a sum of one function
of each alpha_k, less one of alpha_0:

    H = Σ_k g(α_k) - G(α_0),   G(a) = g(a) + (K - 1)·ψ(a)

A table over the leading bits of a float32 holds both, so two passes give an estimate. How far it can be off follows
from the size of a cell, and only rows that lie closer to the threshold are computed.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import digamma, gammaln
from torch import Tensor
from torch.nn import functional as F

from nbsr_core import dirichlet
from nbsr_core.native.build import library

# A float32 without its sign and its last 12 bits: the exponent and 11 bits of the mantissa number a cell.
_DROPPED = 12
_CELLS = 0x7F80_0000 >> _DROPPED
# Beliefs and precisions outside have no estimate (NaN), and are computed.
_SMALLEST, _SMALLEST_TOTAL, _LARGEST = 2.0**-70, 1.0, 2.0**30
# The middle of a cell is at most 2^-12 of a value away from it. On that way g moves by at most 1.04 (2 + max(-g, 0))
# times as much and G by 1.65 K, and all negative g together are Σ max(g, 0) - G - H, where the first two make no more
# than 0.58 K for alpha_0 >= 1. In all, an estimate is off by at most 1.05 * 2^-12 (5 K - H); H is never above 0.
_DOUBT = 1.05 * 2.0**-12
_ROUNDING = 1e-5  # of float32 sums and of the exact entropy itself, relative


def below(alpha: Float[Tensor, "b K"], eta: float) -> Bool[Tensor, " b"]:
    """`dirichlet.entropy(alpha) < eta`, the same answer for every row."""
    if math.isinf(eta):
        return torch.full(alpha.shape[:1], eta > 0, device=alpha.device)
    if alpha.dtype != torch.float32:
        return dirichlet.entropy(alpha, validate_args=False) < eta
    compiled = library() if alpha.device.type == "cpu" and alpha.is_contiguous() else None
    if compiled is not None:
        (rows, classes), told = alpha.shape, alpha.new_empty(len(alpha), dtype=torch.uint8)
        tables = _of_class(alpha.device).data_ptr(), _of_total(classes, alpha.device).data_ptr(), _DROPPED
        close = doubt(eta, classes)
        if not compiled.nbsr_below(alpha.data_ptr(), rows, classes, *tables, eta, close, told.data_ptr()):
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
    middle, table = _cells(_SMALLEST)
    table[~np.isnan(table)] = gammaln(middle) - (middle - 1.0) * digamma(middle) + middle
    return torch.from_numpy(table).to(device)


@cache
def _of_total(num_classes: int, device: torch.device) -> Float[Tensor, " cells"]:
    middle, table = _cells(_SMALLEST_TOTAL)
    slope = digamma(middle)
    table[~np.isnan(table)] = gammaln(middle) - (middle - 1.0) * slope + middle + (num_classes - 1) * slope
    return torch.from_numpy(table).to(device)


def _cells(smallest: float) -> tuple[np.ndarray, np.ndarray]:
    """The middle of every cell from `smallest` on, and a table of all cells: NaN where there is no middle, else 0."""
    first, last = (int(np.float32(end).view(np.int32)) >> _DROPPED for end in (smallest, _LARGEST))
    edges = (np.arange(first, last + 1, dtype=np.int32) << _DROPPED).view(np.float32).astype(np.float64)
    table = np.full(_CELLS, np.nan, dtype=np.float32)
    table[first:last] = 0.0
    return (edges[:-1] + edges[1:]) / 2, table
