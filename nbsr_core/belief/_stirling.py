"""Dirichlet entropy and divergence that keep their digits where differences of lgamma and digamma lose them.

The textbook formulas subtract terms of size a·ln a: at a = 1e6 little of float32's seven digits is left
for an entropy of -10. Here Stirling's growth is cancelled on paper. With z = a + 1 ≥ 1 the poles at a = 0
are gone, and what remains of each gamma function is smooth in w = 1/z ∈ (0, 1]: a short polynomial in w
stands for it.

    lnΓ(a) = L(w) - ln a + (z - 1/2) ln z - z
    ψ(a)   = P(w) - 1/a + ln z
    ψ'(a)  = w·Q(w) + 1/a²

and, for the term g(a) = lnΓ(a) - (a - 1)·ψ(a) + a that the entropy sums over the classes,

    g(a)   = T(w) - 1/a - ln(a·w·√w)
    g'(a)  = w·(R(w) + 1/a²)

That is one logarithm, one root and some products an element, without cancellation, and all vectorised
(torch's digamma is a scalar loop). The polynomials are interpolated on first use, from scipy's functions:
there is no table to mistype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, polygamma
from torch import Tensor

_Vector = NDArray[np.float64]
_Remainder = Literal["L", "P", "Q", "T", "R"]

_REMAINDERS: dict[_Remainder, Callable[[_Vector], _Vector]] = {
    "L": lambda z: gammaln(z) - (z - 0.5) * np.log(z) + z,
    "P": lambda z: digamma(z) - np.log(z),
    "Q": lambda z: z * polygamma(1, z),
    "T": lambda z: gammaln(z) - (z - 2.0) * digamma(z) + z - 1.5 * np.log(z),
    "R": lambda z: z - 1.0 - z * (z - 2.0) * polygamma(1, z),
}

# Interpolation errors of at most 6e-8 and 2e-12; more terms would cost time in float32, add noise in float64.
_DEGREE = {torch.float32: 8, torch.float64: 16}

# Elements worked on at once on a CPU, so that the temporaries stay in its cache.
_BLOCK = 1 << 17

# ln(1 + x) = 2·atanh(s) = 2s + s³·(2/3 + 2s²/5 + 2s⁴/7 + ...) with s = x/(2 + x): exact where |s| < _NEAR.
_ATANH = tuple(2.0 / (2 * j + 3) for j in range(9))
_NEAR = 0.15


@cache
def _coefficients(remainder: _Remainder, degree: int) -> _Vector:
    """Coefficients of the remainder's polynomial in w, lowest power first."""
    interpolant = Chebyshev.interpolate(lambda w: _REMAINDERS[remainder](1.0 / w), degree, domain=[0.0, 1.0])
    return np.asarray(interpolant.convert(kind=Polynomial).coef, dtype=np.float64)


@cache
def _polynomial(
    terms: tuple[tuple[int, _Remainder], ...], degree: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Coefficients of a weighted sum of remainders, as the 0-dimensional tensors that `_horner` takes."""
    coefficients = np.sum([weight * _coefficients(remainder, degree) for weight, remainder in terms], axis=0)
    return torch.tensor(coefficients, dtype=dtype, device=device).unbind()


def _remainder(remainder: _Remainder, like: Tensor) -> tuple[Tensor, ...]:
    return _polynomial(((1, remainder),), _DEGREE[like.dtype], like.dtype, like.device)


def _horner(coefficients: tuple[Tensor, ...], w: Tensor) -> Tensor:
    """One pass over the data a coefficient."""
    value = torch.mul(w, coefficients[-1]).add_(coefficients[-2])
    for coefficient in reversed(coefficients[:-2]):
        torch.addcmul(coefficient, value, w, out=value)
    return value


class DirichletEntropy(torch.autograd.Function):
    """H = Σ_k g(α_k) - [g(α_0) + (K - 1)·ψ(α_0)] over the last axis, in α's dtype; α_0's part in float64.

    All terms are O(ln α): this is eq. differential_entropy_Dirichlet with every α·ln α cancelled. float32's
    own sum over the classes is pairwise, hence right to some 1e-7 for any K, and so is the entropy.
    """

    @staticmethod
    def forward(ctx: Any, alpha: Tensor) -> Tensor:
        num_classes = alpha.shape[-1]
        flat = alpha.reshape(-1, num_classes)
        coefficients, one = _remainder("T", alpha), alpha.new_ones(())
        sums = []
        for block in flat.split(_rows_at_once(flat)):
            w = block.add(1.0).reciprocal_()
            terms = _horner(coefficients, w).addcdiv_(one, block, value=-1.0)
            terms.sub_(w.sqrt().mul_(block).mul_(w).log_())
            sums.append(terms.sum(-1))

        total = flat.sum(-1).double()
        w = total.add(1.0).reciprocal_()
        both = _polynomial(((1, "T"), (num_classes - 1, "P")), _DEGREE[alpha.dtype], torch.float64, alpha.device)
        logs = total.log() + (num_classes + 0.5) * w.log()
        of_total = _horner(both, w) - num_classes / total - logs
        ctx.save_for_backward(alpha, total)
        return torch.cat(sums).sub(of_total).to(alpha.dtype).reshape(alpha.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad_entropy: Tensor) -> Tensor:
        alpha, total = ctx.saved_tensors
        return _only_once(_entropy_gradient(alpha, total, grad_entropy), alpha, grad_entropy)


@torch.no_grad()
def _entropy_gradient(alpha: Tensor, total: Tensor, grad_entropy: Tensor) -> Tensor:
    """∂H/∂α_k = g'(α_k) - [g'(α_0) + (K - 1)·ψ'(α_0)], times the gradient of H."""
    num_classes = alpha.shape[-1]
    w = (total + 1.0).reciprocal_()
    both = _polynomial(((1, "R"), (num_classes - 1, "Q")), _DEGREE[alpha.dtype], torch.float64, alpha.device)
    of_total = w * _horner(both, w) + (w + (num_classes - 1)) / total.square()

    flat = alpha.reshape(-1, num_classes)
    rows = _rows_at_once(flat)
    gradient = torch.empty_like(flat)
    row_values = torch.stack((of_total.to(alpha.dtype), grad_entropy.reshape(-1))).unsqueeze(-1)
    coefficients = _remainder("R", alpha)
    for block, (slope_of_total, weight), out in zip(
        flat.split(rows), row_values.split(rows, dim=1), gradient.split(rows), strict=True
    ):
        w = block.add(1.0).reciprocal_()
        inverse = block.reciprocal()
        slope = _horner(coefficients, w).addcmul_(inverse, inverse).mul_(w)
        torch.mul(slope.sub_(slope_of_total), weight, out=out)
    return gradient.reshape(alpha.shape)


def _rows_at_once(flat: Tensor) -> int:
    """All rows on an accelerator, where one large kernel is better than many small ones."""
    return max(1, _BLOCK // flat.shape[-1] if flat.device.type == "cpu" else flat.shape[0])


class DirichletDivergence(torch.autograd.Function):
    """KL(Dir(α) ‖ Dir(β)) = Σ_k φ(α_k, β_k) - φ(α_0, β_0) over the last axis; float64 tensors of one shape.

    φ(a, b) = lnΓ(b) - lnΓ(a) - (b - a)·ψ(a) ≥ 0 is second order in b - a. It is computed as products with
    b - a, so that the divergence of two nearby beliefs is as exact as that of two distant ones.
    """

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, beta: Tensor) -> Tensor:
        ctx.save_for_backward(alpha, beta)
        shift = beta - alpha
        of_total = _bregman(alpha.sum(-1), beta.sum(-1), shift.sum(-1))
        return _bregman(alpha, beta, shift).sum(-1).sub_(of_total).clamp_min_(0.0)

    @staticmethod
    def backward(ctx: Any, grad_divergence: Tensor) -> tuple[Tensor | None, Tensor | None]:
        sources = (*ctx.saved_tensors, grad_divergence)
        of_alpha, of_beta = ctx.needs_input_grad
        return (
            _only_once(_gradient_in_alpha(*sources), *sources) if of_alpha else None,
            _only_once(_gradient_in_beta(*sources), *sources) if of_beta else None,
        )


@torch.no_grad()
def _gradient_in_alpha(alpha: Tensor, beta: Tensor, grad_divergence: Tensor) -> Tensor:
    shift = beta - alpha
    total, total_shift = alpha.sum(-1, keepdim=True), shift.sum(-1, keepdim=True)
    return (total_shift * _trigamma(total) - shift * _trigamma(alpha)) * grad_divergence.unsqueeze(-1)


@torch.no_grad()
def _gradient_in_beta(alpha: Tensor, beta: Tensor, grad_divergence: Tensor) -> Tensor:
    shift = beta - alpha
    of_total = _digamma_rise(*(part.sum(-1, keepdim=True) for part in (alpha, beta, shift)))
    return (_digamma_rise(alpha, beta, shift) - of_total) * grad_divergence.unsqueeze(-1)


def _bregman(a: Tensor, b: Tensor, shift: Tensor) -> Tensor:
    """φ(a, b), shift = b - a: what -ln a, what (z - 1/2) ln z - z, and what the remainder L(w) adds to it."""
    u, v = (a + 1.0).reciprocal_(), (b + 1.0).reciprocal_()
    pole, _ = _log_excess(a, b, shift)
    concave, convex = _log_excess(a + 1.0, b + 1.0, shift)
    first, second = _divided_differences(_remainder("L", a), u, v)
    return pole + (a + 1.0) * convex + 0.5 * concave + (shift * u).square_() * v * (first + u * second)


def _digamma_rise(a: Tensor, b: Tensor, shift: Tensor) -> Tensor:
    """ψ(b) - ψ(a), shift = b - a."""
    u, v = (a + 1.0).reciprocal_(), (b + 1.0).reciprocal_()
    first, _ = _divided_differences(_remainder("P", a), u, v)
    return shift / a / b + torch.log1p(shift * u) - shift * u * v * first


def _trigamma(a: Tensor) -> Tensor:
    w = (a + 1.0).reciprocal_()
    return w * _horner(_remainder("Q", a), w) + a.reciprocal().square_()


def _log_excess(a: Tensor, b: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The pair x - ln(1 + x) and (1 + x) ln(1 + x) - x for x = shift/a = b/a - 1, right for tiny x too.

    With ln(1 + x) = 2s + tail, s = x/(2 + x), their first orders cancel on paper: x - 2s = x·s.
    """
    x, s, ratio = shift / a, shift / (a + b), b / a
    tail = _horner(s.new_tensor(_ATANH).unbind(), s.square()).mul_(s.pow(3))
    log_ratio = ratio.log()
    near = s.abs() < _NEAR
    return (
        torch.where(near, x * s - tail, x - log_ratio),
        torch.where(near, x * s + ratio * tail, ratio * log_ratio - x),
    )


def _divided_differences(coefficients: tuple[Tensor, ...], u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """f[u, v] = (f(v) - f(u))/(v - u) and f[u, u, v] of a polynomial f by Horner's rule, also for u = v."""
    value = coefficients[-1].expand_as(u)
    first, second = torch.zeros_like(u), torch.zeros_like(u)
    for coefficient in reversed(coefficients[:-1]):
        second = torch.addcmul(first, second, u)
        first = torch.addcmul(value, first, v)
        value = torch.addcmul(coefficient, value, u)
    return first, second


def _only_once(gradient: Tensor, *sources: Tensor) -> Tensor:
    """Under `create_graph=True`, a gradient whose own derivative is an error.

    torch's `once_differentiable` looks at the incoming gradient alone: where that is constant it would let
    the second derivative through `sources` pass for zero.
    """
    if not torch.is_grad_enabled():
        return gradient
    result: Tensor = _OnlyOnce.apply(gradient, *sources)
    return result


class _OnlyOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise NotImplementedError("entropy and divergence of a belief can be differentiated only once")
