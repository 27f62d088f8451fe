"""From an expert's raw output to evidence.

Evidence must be strictly positive (Theorem 1 rests on it alone). Three activations keep that promise, and differ in
the *epistemic capacity* that they give an expert:

* `softplus`: unbounded and linear, the paper's choice for leaves. Against K prior pseudo-counts it is weak for large K;
* `sigmoid`: at most `bound` for each class, a confidence budget for broad intermediate experts;
* `exp`: `1 / (e^-z + 1 / bound)`, which is e^z while that is small against the bound, so that `alpha / alpha_0` behaves
  like a softmax where evidence is plentiful. It is the curve of `sigmoid`, shifted so that z = 0 means one pseudo-count
  and not half of the budget.

Both budgets are approached and never reached, so an expert at its bound still has a gradient back.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nbsr_core.options.specs import DEFAULT_EXP_BOUND, LARGEST_EXPONENT, SMALLEST_EVIDENCE, ExpertSpec


def activate(spec: ExpertSpec, z: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Strictly positive evidence from an expert's raw output, always in float32 or better."""
    z = z if z.dtype == torch.float64 else z.float()
    if spec.activation == "exp":
        return (z.neg().clamp_max(LARGEST_EXPONENT).exp() + 1 / (spec.bound or DEFAULT_EXP_BOUND)).reciprocal()
    positive = F.softplus(z) if spec.activation == "softplus" else torch.sigmoid(z) * (spec.bound or 1.0)
    with torch.no_grad():  # where this lifts a value, its gradient has long been zero
        positive.clamp_min_(SMALLEST_EVIDENCE)
    return positive
