"""How walks are computed: one interface (`Backend`), its backends, and the one place where a backend is chosen.

    backend_for(h, levels=[level]).level(level, h, belief, side, position, mode="argmax", tau=1.0)

Nobody outside this room knows which backend that is. `availability` and `outlook` tell people whether walks are
compiled on this machine.
"""

from nbsr_core.kernels.activations import activate
from nbsr_core.kernels.banks import Bank, StackedLinear, stacked_network
from nbsr_core.kernels.choice import backend_for
from nbsr_core.kernels.interface import Backend, DensityShape, Level, LevelResult, Siblings, WalkResult
from nbsr_core.kernels.layout import Layout
from nbsr_core.kernels.native.build import availability, outlook
from nbsr_core.kernels.reference import CONCENTRATION_FLOOR, closeness_at
from nbsr_core.kernels.routing import Routes, choose, gated, gumbel_noise, selection

__all__ = [
    "CONCENTRATION_FLOOR",
    "Backend",
    "Bank",
    "DensityShape",
    "Layout",
    "Level",
    "LevelResult",
    "Routes",
    "Siblings",
    "StackedLinear",
    "WalkResult",
    "activate",
    "availability",
    "backend_for",
    "choose",
    "closeness_at",
    "gated",
    "gumbel_noise",
    "outlook",
    "selection",
    "stacked_network",
]
