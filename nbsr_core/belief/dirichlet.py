"""The belief of NBSR: functions of the concentrations `alpha` of a Dirichlet, classes on the last axis.

A belief is a plain tensor of float32 or float64, `alpha = evidence + prior`; every function keeps its dtype
and its leading axes. All are right to about 1e-6 for K from 2 to 10,000 and alpha from 1e-3 to 1e8, in
float32 too, and so are their gradients: what would cancel is cancelled on paper (see `_stirling`) or computed
in float64.

The form of `alpha` (dtype, K ≥ 2) is always checked. Its values (finite, above 0) are checked unless
`validate_args=False`: that costs a pass and, on an accelerator, a wait, which an early exit at every node can
do without. Whoever skips it can call `validate` once, where beliefs enter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from scipy.special import betaincinv
from torch import Tensor

from nbsr_core._checks import whole_number
from nbsr_core.belief._stirling import DirichletDivergence, DirichletEntropy
from nbsr_core.errors import InputError


def prior(
    num_classes: int,
    weight: float | None = None,
    base_rate: Sequence[float] | Float[Tensor, " K"] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, " K"]:
    """The belief before any evidence: `W a_k`, as in Subjective Logic's `alpha_k = e_k + W a_k`.

    Args:
        num_classes: K.
        weight: W in pseudo-counts, K by default. The smaller it is, the more the same evidence weighs.
        base_rate: a, the probability of each class before any evidence, uniform by default. With W = K
            that is the paper's prior, all ones.
        dtype: None takes torch's default.
        device: None takes torch's default.
    """
    num_classes = whole_number("num_classes", num_classes, 2)
    weight = _checked_weight(float(num_classes) if weight is None else weight, "weight")
    dtype = dtype or torch.get_default_dtype()
    if base_rate is None:
        return torch.full((num_classes,), weight / num_classes, dtype=dtype, device=device)
    rate = torch.as_tensor(base_rate, dtype=torch.float64, device=device)
    if rate.shape != (num_classes,):
        raise InputError(f"base_rate must have shape [{num_classes}], one a class, got {list(rate.shape)}")
    lowest, total = float(rate.min()), float(rate.sum())
    if not (lowest > 0.0 and math.isclose(total, 1.0, abs_tol=1e-6)):
        raise InputError(f"base_rate must be above 0 and sum to 1, got minimum {lowest:g} and sum {total:g}")
    return (weight * rate).to(dtype)


def validate(alpha: Tensor, name: str = "alpha") -> None:
    """Raise `InputError` unless `alpha` is float32 or float64 [..., K ≥ 2], finite and above 0."""
    _check_form(alpha, name)
    if alpha.numel() == 0:
        return
    values = alpha.detach()
    low, high = torch.aminmax(values)
    if not bool((low > 0) & (high < math.inf)):  # NaN anywhere makes both NaN
        place = torch.nonzero(~((values > 0) & (values < math.inf)))[0].tolist()
        found = f"{name}{place} is {values[tuple(place)].item():g}"
        raise InputError(f"{name} must be finite and above 0, but {found}")


def precision(alpha: Float[Tensor, "*batch K"], *, validate_args: bool = True) -> Float[Tensor, "*batch"]:
    """alpha_0 = sum_k alpha_k. Summed in float64, so that small classes are not lost beside a huge one."""
    _check(alpha, validate_args)
    return alpha.sum(-1, dtype=torch.float64).to(alpha.dtype)


def mean(alpha: Float[Tensor, "*batch K"], *, validate_args: bool = True) -> Float[Tensor, "*batch K"]:
    """E[p_k] = alpha_k / alpha_0 (paper, eq. expected_marginal)."""
    return alpha / precision(alpha, validate_args=validate_args).unsqueeze(-1)


def variance(alpha: Float[Tensor, "*batch K"], *, validate_args: bool = True) -> Float[Tensor, "*batch K"]:
    """Var[p_k] = alpha_k (alpha_0 - alpha_k) / (alpha_0² (alpha_0 + 1)) (paper, eq. Dirichlet_var)."""
    _check(alpha, validate_args)
    return _variance(alpha.double()).to(alpha.dtype)


def covariance(alpha: Float[Tensor, "*batch K"], *, validate_args: bool = True) -> Float[Tensor, "*batch K K"]:
    """Cov[p_i, p_j] = -alpha_i alpha_j / (alpha_0² (alpha_0 + 1)) for i ≠ j (paper, eq. Dirichlet_cov).

    The diagonal holds the variances. Every row sums to 0: what one class gains, the others lose.
    """
    _check(alpha, validate_args)
    wide = alpha.double()
    total = wide.sum(-1, keepdim=True)
    share = wide / total
    between = -(share / (total + 1.0)).unsqueeze(-1) * share.unsqueeze(-2)
    return torch.diagonal_scatter(between, _variance(wide), dim1=-2, dim2=-1).to(alpha.dtype)


def marginal_interval(
    alpha: Float[Tensor, "*batch K"], level: float = 0.95, *, validate_args: bool = True
) -> tuple[Float[Tensor, "*batch K"], Float[Tensor, "*batch K"]]:
    """Bounds (low, high) between which p_k lies with probability `level`, with equal tails.

    Class k alone is Beta(alpha_k, alpha_0 - alpha_k) (paper, appendix, "Marginal Distributions"). Computed by
    scipy on the CPU and without a gradient: for reports, not for training.
    """
    _check(alpha, validate_args)
    if not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    wide = alpha.detach().double().cpu()
    own, others, tail = wide.numpy(), _others(wide).numpy(), (1.0 - level) / 2.0
    low, high = (torch.as_tensor(betaincinv(own, others, below)) for below in (tail, 1.0 - tail))
    return low.to(alpha), high.to(alpha)


def entropy(alpha: Float[Tensor, "*batch K"], *, validate_args: bool = True) -> Float[Tensor, "*batch"]:
    """Differential entropy of the belief in nats (paper, eq. differential_entropy_Dirichlet).

    What an early exit compares with eta. At most -ln (K-1)!, the entropy of the uniform belief, all ones. New
    evidence need not lower it: only the precision is sure to rise. It can be differentiated once.
    """
    _check(alpha, validate_args)
    result: Tensor = DirichletEntropy.apply(alpha)
    return result


def information_gain(
    before: Float[Tensor, "*#batch K"], after: Float[Tensor, "*#batch K"], *, validate_args: bool = True
) -> Float[Tensor, "*batch"]:
    """Entropy of `before` less that of `after`: the information that one step brought, in nats.

    Negative where the evidence spoke against the belief and left it less sure. How far a belief moved, in
    whatever direction, is `kl_divergence(after, before)`, the belief shift of an audit, which never is.
    Subtracted in float64: two entropies near -100 have most of float32's digits in common.
    """
    _check_pair(before, after, "before", "after", validate_args)
    gain = entropy(before.double(), validate_args=False) - entropy(after.double(), validate_args=False)
    return gain.to(torch.promote_types(before.dtype, after.dtype))


def kl_divergence(
    alpha: Float[Tensor, "*#batch K"], beta: Float[Tensor, "*#batch K"], *, validate_args: bool = True
) -> Float[Tensor, "*batch"]:
    """KL(Dir(alpha) ‖ Dir(beta)) in nats; leading axes broadcast, so one `beta` may serve a whole batch.

    `kl_divergence(after, before)` is the paper's belief shift of one routing decision. Computed in float64,
    from the difference of the beliefs, hence right for nearby ones too. It can be differentiated once.
    """
    _check_pair(alpha, beta, "alpha", "beta", validate_args)
    result: Tensor = DirichletDivergence.apply(*torch.broadcast_tensors(alpha.double(), beta.double()))
    return result.to(torch.promote_types(alpha.dtype, beta.dtype))


def categorical_entropy(alpha: Float[Tensor, "*batch K"], *, validate_args: bool = True) -> Float[Tensor, "*batch"]:
    """Shannon entropy of the expected categorical E[p] in nats, between 0 and ln K.

    In float64: the share of a dominant class may be 1 - 1e-8, and its distance from 1 is what counts.
    """
    _check(alpha, validate_args)
    wide = alpha.double()
    result: Tensor = torch.special.entr(wide / wide.sum(-1, keepdim=True)).sum(-1)
    return result.to(alpha.dtype)


def vacuity(
    alpha: Float[Tensor, "*batch K"], prior_weight: float | None = None, *, validate_args: bool = True
) -> Float[Tensor, "*batch"]:
    """The mass W / alpha_0 that no evidence backs (paper, eq. uncertainty_Dirichlet); W = K by default."""
    total = precision(alpha, validate_args=validate_args)
    weight = float(alpha.shape[-1]) if prior_weight is None else prior_weight
    return torch.full_like(total, _checked_weight(weight, "prior_weight")) / total


def belief_masses(
    alpha: Float[Tensor, "*batch K"], prior: Float[Tensor, " K"] | None = None, *, validate_args: bool = True
) -> Float[Tensor, "*batch K"]:
    """b_k = (alpha_k - prior_k) / alpha_0 (paper, eq. uncertainty_Dirichlet); a prior of ones by default.

    With `vacuity(alpha, float(prior.sum()))` they sum to 1. A mass is negative where a belief is below
    its prior; conjugate addition of evidence never leads there, but calibration may.
    """
    if prior is None:
        _check(alpha, validate_args)
        evidence = alpha - 1.0
    else:
        _check_pair(alpha, prior, "alpha", "prior", validate_args)
        evidence = alpha - prior.to(alpha)
    return evidence / precision(alpha, validate_args=False).unsqueeze(-1)


def _others(wide: Tensor) -> Tensor:
    """alpha_0 - alpha_k [..., K], in float64. Only the largest class can cancel: its rest is summed anew."""
    top = wide.argmax(-1, keepdim=True)
    rest_of_top = wide.scatter(-1, top, 0.0).sum(-1, keepdim=True)
    return (wide.sum(-1, keepdim=True) - wide).scatter(-1, top, rest_of_top)


def _variance(wide: Tensor) -> Tensor:
    total = wide.sum(-1, keepdim=True)
    return (wide / total) * (_others(wide) / total) / (total + 1.0)


def _check(alpha: Tensor, values: bool, name: str = "alpha") -> None:
    if values:
        validate(alpha, name)
    else:
        _check_form(alpha, name)


def _check_form(alpha: Tensor, name: str) -> None:
    if alpha.dtype not in (torch.float32, torch.float64):
        raise InputError(f"{name} must be float32 or float64, got {alpha.dtype}")
    if alpha.ndim == 0 or alpha.shape[-1] < 2:
        raise InputError(f"{name} must have at least 2 classes on the last axis, got {list(alpha.shape)}")


def _check_pair(first: Tensor, second: Tensor, first_name: str, second_name: str, values: bool) -> None:
    _check(first, values, first_name)
    _check(second, values, second_name)
    pair = f"{first_name} and {second_name}"
    shapes = f"{list(first.shape)} and {list(second.shape)}"
    if first.shape[-1] != second.shape[-1]:
        raise InputError(f"{pair} must have the same number of classes, got shapes {shapes}")
    try:
        torch.broadcast_shapes(first.shape, second.shape)
    except RuntimeError as error:
        raise InputError(f"the leading axes of {pair} must broadcast, got shapes {shapes}") from error


def _checked_weight(weight: float, name: str) -> float:
    if not 0.0 < weight < math.inf:
        raise InputError(f"{name} must be finite and above 0, got {weight}")
    return weight
