"""All that training does on some devices and not on others: which device there is, bfloat16, compiled backbones.

A study asks for them whatever machine it may run on; where they would not pay nothing changes.
"""

from __future__ import annotations

import torch
from torch import nn

# Kinds of devices on which compiling is worth its start.
COMPILES = {"cuda"}
# Instructions of which a CPU needs one to multiply in bfloat16; without, it would compute in float32 and round.
BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def best_device() -> torch.device:
    """A GPU where this process sees one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is faster than float32 there: on GPUs, and on CPUs with instructions for it."""
    if device.type != "cpu":
        return device.type == "cuda"
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in BFLOAT16_INSTRUCTIONS)


def mixed_precision(device: torch.device, wanted: bool) -> torch.autocast:
    """bfloat16 where it is wanted and pays; its range is that of float32, so that no gradient needs scaling."""
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted and has_fast_bfloat16(device))


def compile_backbone(backbone: nn.Module | None, device: torch.device, wanted: bool) -> None:
    """torch.compile of the backbone, in place, where it is wanted and pays.

    The walk behind it goes another way for every sample and is left as it is. Names of weights stay, so that
    checkpoints of compiled and plain runs fit each other, and a wrapping by DDP sees the compiled one. (torch passes
    over a backbone that is a bare `nn.Sequential`; a module with a `forward` of its own is compiled whole.)
    """
    if wanted and backbone is not None and device.type in COMPILES:
        backbone.compile()
