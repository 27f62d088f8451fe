"""Compiled passes over the rows of a batch: calibration, exit tests, marginals, distances.

Each gives None where there is no compiled code for what it is given. Those that may be asked for a derivative compute
their value here all the same, so that a walk says the same with gradients and without, and their derivative in torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.autograd.function import once_differentiable

from nbsr_core.native.build import library

# Whitening beyond is left to products that cut it into blocks.
MOST_MACS = 65_536


class ExitTest(ctypes.Structure):
    """`Test` of beliefs.h: is an entropy below eta? With addresses of tables, see `nbsr_core._screening`."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("eta", "doubt")),
        *((name, ctypes.c_void_p) for name in ("of_class", "of_total")),
    )


def is_plain(*tensors: Tensor) -> bool:
    """Whether these are what compiled code takes, and there is any."""
    plain = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    return plain and library() is not None


def marginals(alpha: Float[Tensor, "b K"]) -> tuple[Float[Tensor, "b K"], Int[Tensor, " b"]] | None:
    """Expected marginals and best classes."""
    if not is_plain(alpha) or alpha.requires_grad:
        return None
    alpha = alpha.contiguous()
    probs, label = torch.empty_like(alpha), torch.empty(len(alpha), dtype=torch.int64)
    _call("nbsr_marginals", alpha.data_ptr(), *alpha.shape, probs.data_ptr(), label.data_ptr())
    return probs, label


def screened(alpha: Float[Tensor, "b K"], test: ExitTest) -> tuple[UInt8[Tensor, " b"], int]:
    """0 for rows whose entropy is not below eta, 1 for those below, 2 for the unclear; and how many those are."""
    alpha, told = alpha.contiguous(), torch.empty(len(alpha), dtype=torch.uint8)
    unclear = _call("nbsr_below", alpha.data_ptr(), *alpha.shape, ctypes.byref(test), told.data_ptr())
    return told, unclear


def calibrated_rows(
    alpha: Float[Tensor, "b K"], temperature: Float[Tensor, "#b"], floor: float, in_torch: Callable[..., Tensor]
) -> Tensor | None:
    """`nbsr_core.calibration.calibrated` of each row, which is `in_torch`; None also where a row is no belief."""
    if not is_plain(alpha, temperature):
        return None

    def compute(alpha: Tensor, temperature: Tensor) -> Tensor | None:
        alpha, temperature, shown = alpha.contiguous(), temperature.contiguous(), torch.empty(alpha.shape)
        step = int(len(temperature) > 1)
        bad = _call(
            "nbsr_calibrate", alpha.data_ptr(), *alpha.shape, temperature.data_ptr(), step, floor, shown.data_ptr()
        )
        return None if bad else shown

    return _with_derivative(compute, in_torch, alpha, temperature)


class Density(ctypes.Structure):
    """`Density` of walk.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("centre", "whitening", "means")),
        *((name, ctypes.c_int64) for name in ("size", "kinds")),
        *((name, ctypes.c_void_p) for name in ("threshold", "spread")),
        ("floor", ctypes.c_double),
    )


def distances(
    features: Float[Tensor, "N d"],
    shape: tuple[Float[Tensor, " d"], Float[Tensor, "d d"], Float[Tensor, "kinds d"]],
    fall: tuple[Float[Tensor, ""], Float[Tensor, ""], float] | None,
    mean: Int[Tensor, " N"] | None,
    length: int,
    in_torch: Callable[..., Tensor],
) -> Float[Tensor, " N"] | None:
    """`nbsr_core.density`'s distances of features, or factors, which in torch are `in_torch`.

    Args:
        features: one row an oracle.
        shape: centre, whitening and means.
        fall: threshold, spread and floor of the factor; None asks for distances.
        mean: which mean each row is compared with; the nearest unless told.
        length: rows of a sequence, in which the largest distance so far counts.
        in_torch: the same function of `features`.
    """
    (kinds, size), limits = shape[2].shape, () if fall is None else fall[:2]
    macs = size * max(size, kinds if mean is None else 1)
    if not is_plain(features, *shape, *limits) or macs > MOST_MACS or len(features) % length:
        return None

    def compute(features: Tensor) -> Tensor:
        held = [tensor.contiguous() for tensor in (*shape, *limits)]
        density = Density(*(tensor.data_ptr() for tensor in held[:3]), size, kinds)
        if fall is not None:
            density.threshold, density.spread, density.floor = held[3].data_ptr(), held[4].data_ptr(), fall[2]
        features, found = features.contiguous(), torch.empty(len(features))
        which = None if mean is None else mean.contiguous()
        told = None if which is None else which.data_ptr()
        call = features.data_ptr(), len(features), told, length, found.data_ptr()
        _call("nbsr_density", ctypes.byref(density), *call)
        return found

    return _with_derivative(compute, in_torch, features)


def _call(name: str, *arguments: Any) -> int:
    found: int = getattr(library(), name)(*arguments)
    return found


def _with_derivative(
    compute: Callable[..., Tensor | None], in_torch: Callable[..., Tensor], *tensors: Tensor
) -> Tensor | None:
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    with torch.no_grad():
        value = compute(*(tensor.detach() for tensor in tensors))
    if value is None or not wanted:
        return value
    found: Tensor = _Known.apply(value, in_torch, *tensors)
    return found


class _Known(torch.autograd.Function):
    """A function whose value is known already; torch computes it again where its derivative is asked for."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, in_torch: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.in_torch = in_torch
        ctx.save_for_backward(*tensors)
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            own = [t.detach().requires_grad_(asked) for t, asked in zip(ctx.saved_tensors, wanted, strict=True)]
            again = ctx.in_torch(*own)
            asked = [tensor for tensor in own if tensor.requires_grad]
            grads = iter(torch.autograd.grad(again, asked, grad))
        return None, None, *(next(grads) if tensor.requires_grad else None for tensor in own)
