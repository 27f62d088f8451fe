"""All that training does on a GPU and not on a CPU: which device there is, bfloat16, compiled backbones.

A study asks for them whatever machine it may run on; where they would not pay (on a CPU) nothing changes.
"""

from __future__ import annotations

import torch
from torch import nn

# Kinds of devices on which mixed precision and compiling are worth their start.
ACCELERATED = {"cuda"}


def best_device() -> torch.device:
    """A GPU where this process sees one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mixed_precision(device: torch.device, wanted: bool) -> torch.autocast:
    """bfloat16 where it is wanted and pays; its range is that of float32, so that no gradient needs scaling."""
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted and device.type in ACCELERATED)


def compile_backbone(backbone: nn.Module | None, device: torch.device, wanted: bool) -> None:
    """torch.compile of the backbone, in place, where it is wanted and pays.

    The walk behind it goes another way for every sample and is left as it is. Names of weights stay, so that
    checkpoints of compiled and plain runs fit each other, and a wrapping by DDP sees the compiled one. (torch passes
    over a backbone that is a bare `nn.Sequential`; a module with a `forward` of its own is compiled whole.)
    """
    if wanted and backbone is not None and device.type in ACCELERATED:
        backbone.compile()
