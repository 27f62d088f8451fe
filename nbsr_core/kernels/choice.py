"""Where a backend is chosen: by availability, device, precision and size, and nowhere else.

Compiled C is taken for float32 on a CPU if this machine has a C compiler (`native.build`; `NBSR_NATIVE=0` switches it
off) and what is multiplied fits into the processor's caches. All else is plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nbsr_core.kernels.interface import Backend, Level
from nbsr_core.kernels.native import Compiled, build
from nbsr_core.kernels.native.level import MOST_LAYERS
from nbsr_core.kernels.reference import Reference

# A map beyond no longer fits into a processor's caches: products that cut it into blocks are faster then.
MOST_MACS, LONGEST_SIDE = 65_536, 4096

REFERENCE = Reference()
COMPILED = Compiled(REFERENCE)


def backend_for(*tensors: Tensor, levels: Sequence[Level] = (), macs: int = 0) -> Backend:
    """The backend for a computation on these tensors.

    Args:
        tensors: what is computed on, parameters of levels left out.
        levels: what rows walk through, if they walk.
        macs: multiply-adds for one row, of what else is multiplied.
    """
    plain = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
    fits = macs <= MOST_MACS and all(_fits(level) for level in levels) and len(tensors[0]) > 0
    return COMPILED if plain and fits and build.library() else REFERENCE


def _fits(level: Level) -> bool:
    small = level.most_macs <= MOST_MACS and level.longest_side <= LONGEST_SIDE and level.most_layers <= MOST_LAYERS
    return small and len(level.experts.banks) == 1  # experts of one kind
