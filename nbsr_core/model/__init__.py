"""NBSR and its walks, experts, routers, memory (NBSR-Mem) and purchases (AR-NBSR)."""

from nbsr_core.model.acquisition import AcquisitionTrace, Panels
from nbsr_core.model.autoregressive import AutoregressiveNBSR
from nbsr_core.model.memory import FrameMemory
from nbsr_core.model.network import NBSR, evaluating

__all__ = ["NBSR", "AcquisitionTrace", "AutoregressiveNBSR", "FrameMemory", "Panels", "evaluating"]
