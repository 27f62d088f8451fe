"""Compiled passes over the rows of a batch: calibration, exit tests, marginals, distances. All without derivatives."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.autograd.function import once_differentiable

from nbsr_core.kernels.entropy_bounds import class_cells, interpolated_doubt, total_cells
from nbsr_core.kernels.interface import DensityShape
from nbsr_core.kernels.native.build import library
from nbsr_core.kernels.reference import CONCENTRATION_FLOOR


class ExitTest(ctypes.Structure):
    """`Test` of beliefs.h: is an entropy below eta? With addresses of tables."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("eta", "doubt")),
        *((name, ctypes.c_void_p) for name in ("of_class", "of_total")),
    )


def exit_test(eta: float, num_classes: int) -> ExitTest:
    """The test by tables that stay in memory; rows within `doubt` of eta are unclear."""
    doubt = interpolated_doubt(eta, num_classes)
    return ExitTest(eta, doubt, class_cells().ctypes.data, total_cells(num_classes).ctypes.data)


def marginals(alpha: Float[Tensor, "b K"]) -> tuple[Float[Tensor, "b K"], Int[Tensor, " b"]]:
    """Expected marginals and best classes."""
    alpha = alpha.contiguous()
    probs, label = torch.empty_like(alpha), torch.empty(len(alpha), dtype=torch.int64)
    _call("nbsr_marginals", alpha.data_ptr(), *alpha.shape, probs.data_ptr(), label.data_ptr())
    return probs, label


def screened(alpha: Float[Tensor, "b K"], test: ExitTest) -> tuple[UInt8[Tensor, " b"], int]:
    """0 for rows whose entropy is not below eta, 1 for those below, 2 for the unclear; and how many those are."""
    alpha, answer = alpha.contiguous(), torch.empty(len(alpha), dtype=torch.uint8)
    unclear = _call("nbsr_below", alpha.data_ptr(), *alpha.shape, ctypes.byref(test), answer.data_ptr())
    return answer, unclear


def calibrated(alpha: Float[Tensor, "b K"], temperature: Float[Tensor, "#b"]) -> Float[Tensor, "b K"] | None:
    """Each row with its temperature, or all with one; None where a row is not a belief."""
    alpha, temperature, shown = alpha.contiguous(), temperature.contiguous(), torch.empty(alpha.shape)
    own = int(len(temperature) > 1)
    floor = CONCENTRATION_FLOOR
    invalid = _call(
        "nbsr_calibrate", alpha.data_ptr(), *alpha.shape, temperature.data_ptr(), own, floor, shown.data_ptr()
    )
    return None if invalid else shown


class Density(ctypes.Structure):
    """`Density` of walk.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("centre", "whitening", "means")),
        *((name, ctypes.c_int64) for name in ("size", "kinds")),
        *((name, ctypes.c_void_p) for name in ("threshold", "spread")),
        ("floor", ctypes.c_double),
    )


def density(
    features: Float[Tensor, "N d"],
    shape: DensityShape,
    mean: Int[Tensor, " N"] | None,
    length: int,
    *,
    as_factor: bool,
) -> Float[Tensor, " N"]:
    """Distances, or the factors on evidence that follow from them."""
    centre, whitening, means, threshold, spread = (tensor.contiguous() for tensor in shape[:5])
    kinds, size = means.shape
    call = Density(centre.data_ptr(), whitening.data_ptr(), means.data_ptr(), size, kinds)
    if as_factor:
        call.threshold, call.spread, call.floor = threshold.data_ptr(), spread.data_ptr(), shape.floor
    features, found = features.contiguous(), torch.empty(len(features))
    mean = None if mean is None else mean.contiguous()
    compared = None if mean is None else mean.data_ptr()
    arguments = features.data_ptr(), len(features), compared, length, found.data_ptr()
    _call("nbsr_density", ctypes.byref(call), *arguments)
    return found


def _call(name: str, *arguments: Any) -> int:
    found: int = getattr(library(), name)(*arguments)
    return found


def with_derivative(compute: Callable[..., Tensor], in_torch: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The value of `compute`, with the derivative of `in_torch`, which is the same function in plain torch.

    So a walk says the same with gradients and without.
    """
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    with torch.no_grad():
        value = compute(*(tensor.detach() for tensor in tensors))
    if not wanted:
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
