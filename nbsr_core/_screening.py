"""Which beliefs are surely below an entropy threshold, and which surely not, without computing their entropy.

The exact entropy takes some twenty passes over a belief (`nbsr_core._stirling`): for a leaf's expert it costs
as much as the expert, and an exit test that costs more than what it saves is no gain. But it is a sum of one function
of each alpha_k, less one of alpha_0:

    H = Σ_k g(α_k) - G(α_0),   G(a) = g(a) + (K - 1)·ψ(a)

and both rise with a. A table over the leading bits of a float32 holds what they are at least and at most, and sums of
these bound the entropy. Three passes then decide all rows but those whose bounds enclose the threshold; only these are
computed.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import digamma, gammaln
from torch import Tensor

from nbsr_core import dirichlet

# A float32 without its sign and its last 14 bits: the exponent and 9 bits of the mantissa number a cell.
_DROPPED = 14
_CELLS = 0x7F80_0000 >> _DROPPED
_SMALLEST, _LARGEST = 2.0**-70, 2.0**30  # outside, bounds are not a number, and nothing is decided by them
_ROUNDING = 1e-5  # of float32 sums and of the exact entropy itself, relative


def below(alpha: Float[Tensor, "b K"], eta: float) -> Bool[Tensor, " b"]:
    """`dirichlet.entropy(alpha) < eta`, the same answer for every row."""
    if math.isinf(eta):
        return torch.full(alpha.shape[:1], eta > 0, device=alpha.device)
    if alpha.dtype != torch.float32:
        return dirichlet.entropy(alpha, validate_args=False) < eta
    low, high = bounds(alpha).unbind(-1)
    rounding = _ROUNDING * (abs(eta) + alpha.shape[1])
    surely = high < eta - rounding
    unclear = ~(surely | (low > eta + rounding))
    if bool(unclear.any()):
        rows = unclear.nonzero().squeeze(1)
        surely[rows] = dirichlet.entropy(alpha.index_select(0, rows), validate_args=False) < eta
    return surely


def bounds(alpha: Float[Tensor, "b K"]) -> Float[Tensor, "b 2"]:
    """What the entropy of float32 beliefs is at least and at most, but for rounding; NaN where nothing is known."""
    of_class, of_total = _tables(alpha.shape[1], alpha.device)
    summed = of_class.index_select(0, _cell(alpha).flatten()).view(*alpha.shape, 2).sum(1)
    return summed.sub_(of_total.index_select(0, _cell(alpha.sum(-1))))


def _cell(values: Float[Tensor, "*shape"]) -> Tensor:
    return values.view(torch.int32) >> _DROPPED


@cache
def _tables(num_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The least and the most of g, and the most and the least of G, in every cell."""
    first, last = (int(np.float32(end).view(np.int32)) >> _DROPPED for end in (_SMALLEST, _LARGEST))
    edges = (np.arange(first, last + 1, dtype=np.int32) << _DROPPED).view(np.float32).astype(np.float64)
    digamma_at = digamma(edges)
    of_class = gammaln(edges) - (edges - 1.0) * digamma_at + edges
    of_total = of_class + (num_classes - 1) * digamma_at
    tables = []
    for columns in ((of_class[:-1], of_class[1:]), (of_total[1:], of_total[:-1])):
        table = np.full((_CELLS, 2), np.nan, dtype=np.float32)
        table[first:last] = np.stack(columns, axis=1)
        tables.append(torch.from_numpy(table).to(device))
    return tables[0], tables[1]
