"""Which beliefs are below an entropy threshold: the exit test of a walk, without computing most of the entropies."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nbsr_core.belief import dirichlet
from nbsr_core.kernels import backend_for


def below(alpha: Float[Tensor, "b K"], eta: float) -> Bool[Tensor, " b"]:
    """`dirichlet.entropy(alpha) < eta`, the same answer for every row.

    Bounds decide all rows but those at the threshold (`nbsr_core.kernels.entropy_bounds`); only these are computed.
    """
    if math.isinf(eta):
        return torch.full(alpha.shape[:1], eta > 0, device=alpha.device)
    if alpha.dtype != torch.float32:
        return dirichlet.entropy(alpha, validate_args=False) < eta
    answer, unclear = backend_for(alpha).screened(alpha, eta)
    if unclear is not None:
        rows = unclear.nonzero().squeeze(1)
        answer[rows] = dirichlet.entropy(alpha.index_select(0, rows), validate_args=False) < eta
    return answer
