"""Calibration of the beliefs: one power temperature per depth, fitted on a validation split.

The mean of a Dirichlet belief, p = alpha / alpha_0, is no honest probability: evidence that grows slowly
against K prior pseudo-counts leaves it under-confident, and differently so at every depth. Raising it to a
power, p' ∝ p^(1/T), corrects its sharpness with a single number per depth. The precision is kept,
alpha' = alpha_0 p', hence vacuity and the growing precision of Theorem 1 stay as they are; no class overtakes
another, and a uniform belief stays uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nbsr_core.errors import InputError
from nbsr_core.kernels import CONCENTRATION_FLOOR as CONCENTRATION_FLOOR
from nbsr_core.kernels import backend_for
from nbsr_core.metrics import PROBABILITY_FLOOR, checked_labels

TEMPERATURE_BOUNDS = (0.05, 20.0)
"""Where temperatures are searched: validation worse than chance would drive T to infinity. At 0.05 odds of 2:1 become a
million to one, at 20 the reverse: no data need more."""


def calibrated(
    alpha: Float[Tensor, "*batch K"], temperature: float | Float[Tensor, "*#batch"]
) -> Float[Tensor, "*batch K"]:
    """The belief of the same precision whose mean is p^(1/T), renormalised; differentiable in alpha and T.

    The largest alpha_k stays the largest, though values that differ by little more than rounding may become
    equal. None falls below `CONCENTRATION_FLOOR`.
    """
    if alpha.numel() == 0:  # every sample has left the batch
        return alpha
    temperature = torch.as_tensor(temperature, dtype=alpha.dtype, device=alpha.device)
    coldest, hottest = (bound.item() for bound in temperature.detach().aminmax())
    if not 0 < coldest <= hottest < inf:
        raise InputError(f"temperature is {temperature.tolist()}; finite and above 0 expected")
    return backend_for(alpha, temperature).calibrated(alpha, temperature)


def calibrated_probabilities(probs: Float[Tensor, "N K"], temperature: float) -> Float[Tensor, "N K"]:
    """`p^(1/T)`, renormalised, for an answer that is no belief; in float64, and p no smaller than the NLL counts it."""
    return (probs.double().clamp_min(PROBABILITY_FLOOR).log() / temperature).softmax(-1)


def fit_temperature(belief: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> float:
    """The T within `TEMPERATURE_BOUNDS` at which p^(1/T) has the smallest NLL on these samples and one more error.

    N samples without an error do not say that there is none: by the rule of succession the next one is wrong with a
    probability of 1 / (N + 2), and so much of each label is given to the likeliest of the other classes, as Platt
    (1999) does for two. Without it T would fall to its bound there, and all answers would look equally certain; where
    samples show errors it changes next to nothing.

    `belief` holds probabilities or Dirichlet parameters: each row is divided by its sum. The NLL is convex in
    1/T, so the one zero of its slope is the minimum; it is searched in float64 and without randomness. Where
    every T is as good (uniform beliefs) T is 1.
    """
    if belief.ndim != 2 or not belief.is_floating_point():
        raise InputError(f"belief is {belief.dtype} of shape {tuple(belief.shape)}; expected floats [N, K]")
    labels = checked_labels(labels, *belief.shape)
    belief = belief.detach().cpu().double()
    total = belief.sum(dim=1, keepdim=True)
    if not bool((belief >= 0).all() and (total > 0).all() and total.isfinite().all()):
        given = f"{belief.min():.4g} to {belief.max():.4g}"
        raise InputError(f"belief runs from {given}; finite, at least 0 and no row of zeros expected")
    log_p = (belief / total).clamp_min(PROBABILITY_FLOOR).log()
    mistaken = 1 / (len(labels) + 2)
    likeliest_other = log_p.scatter(1, labels[:, None], -inf).amax(dim=1)
    log_p_label = ((1 - mistaken) * log_p.gather(1, labels[:, None]).squeeze(1) + mistaken * likeliest_other).mean()

    def slope(log_power: float) -> float:
        """Derivative of the mean NLL by the power: E[ln p] under p^power, minus ln p of the label."""
        mean = torch.softmax(log_p * exp(log_power), dim=1)
        return ((mean * log_p).sum(dim=1).mean() - log_p_label).item()

    from scipy.optimize import brentq  # slow to import, and only those who fit need it

    coldest, hottest = TEMPERATURE_BOUNDS
    if abs(slope(0.0)) < 1e-12:
        return 1.0
    if slope(-log(coldest)) <= 0:
        return coldest
    if slope(-log(hottest)) >= 0:
        return hottest
    return exp(-brentq(slope, -log(hottest), -log(coldest), xtol=1e-10))


class DepthCalibration(nn.Module):
    """A temperature for each depth of a walk but 0: the prior is never calibrated.

    Until `fit`, beliefs pass unchanged, bit for bit. Both the temperatures and whether they are fitted are
    buffers: saved, loaded and moved with the model.
    """

    temperature: Float[Tensor, " depth"]
    fitted: Bool[Tensor, ""]

    def __init__(self, depth: int) -> None:
        super().__init__()
        if depth < 1:
            raise InputError(f"depth is {depth}; at least 1 expected")
        self.register_buffer("temperature", torch.ones(depth))
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def depth(self) -> int:
        return len(self.temperature)

    def extra_repr(self) -> str:
        return f"depth={self.depth}, fitted={bool(self.fitted)}"

    def fit(
        self,
        alpha: Float[Tensor, "beliefs N K"],
        labels: Int[Tensor, " N"],
        reached: Bool[Tensor, "beliefs-1 N"] | None = None,
    ) -> DepthCalibration:
        """Fit every depth on its own, on samples that were not used in training.

        Args:
            alpha: The beliefs of full-depth walks, the prior first: [depth + 1, N, K].
            labels: The true classes.
            reached: Where some walks end early, which of them reach depths 1, 2, ...; only those samples
                count there. A depth that none reaches keeps temperature 1.
        """
        reached = self._checked_walks(alpha, reached)
        labels = checked_labels(labels, *alpha.shape[1:]).to(alpha.device)
        temperatures = [
            fit_temperature(belief[here], labels[here]) if bool(here.any()) else 1.0
            for belief, here in zip(alpha[1:], reached, strict=True)
        ]
        self.temperature.copy_(torch.tensor(temperatures))
        self.fitted.fill_(True)
        return self

    @property
    def found(self) -> tuple[float, ...]:
        """The temperatures by depth; none before they are fitted."""
        return tuple(self.temperature.tolist()) if bool(self.fitted) else ()

    def use(self, temperatures: Sequence[float]) -> DepthCalibration:
        """Take over temperatures that were `found` elsewhere; none forgets the fit."""
        if not temperatures:
            return self.reset()
        if len(temperatures) != self.depth or not all(0 < value < inf for value in temperatures):
            raise InputError(
                f"temperatures are {list(temperatures)}; expected {self.depth} finite numbers > 0, one per depth"
            )
        self.temperature.copy_(torch.tensor(temperatures))
        self.fitted.fill_(True)
        return self

    def reset(self) -> DepthCalibration:
        """Forget the fit: beliefs pass unchanged again."""
        self.temperature.fill_(1.0)
        self.fitted.fill_(False)
        return self

    def forward(self, alpha: Float[Tensor, "*batch K"], depth: int) -> Float[Tensor, "*batch K"]:
        """Calibrate beliefs that all stand at the same depth; those at depth 0 pass unchanged."""
        if not 0 <= depth <= self.depth:
            raise InputError(f"depth is {depth}; expected 0 .. {self.depth}, the depths of this calibration")
        if depth == 0 or not bool(self.fitted):
            return alpha
        return calibrated(alpha, self.temperature[depth - 1])

    def all_depths(
        self, alpha: Float[Tensor, "beliefs N K"], reached: Bool[Tensor, "beliefs-1 N"] | None = None
    ) -> Float[Tensor, "beliefs N K"]:
        """Calibrate the beliefs of whole walks, the prior first.

        A walk that ended early repeats its last belief, and so keeps the temperature of its last depth.
        """
        reached = self._checked_walks(alpha, reached)
        if not bool(self.fitted):
            return alpha
        last_depth = reached.cumsum(0)
        temperature = torch.cat([self.temperature.new_ones(1), self.temperature])[last_depth]
        sharpened = calibrated(alpha[1:], temperature)
        return torch.cat([alpha[:1], torch.where(last_depth[..., None] > 0, sharpened, alpha[1:])])

    def _checked_walks(
        self, alpha: Float[Tensor, "beliefs N K"], reached: Bool[Tensor, "beliefs-1 N"] | None
    ) -> Bool[Tensor, "beliefs-1 N"]:
        if alpha.ndim != 3 or len(alpha) != self.depth + 1:
            raise InputError(
                f"alpha has shape {tuple(alpha.shape)}; expected [{self.depth + 1}, N, K]: "
                f"the prior and one belief for each of {self.depth} depths"
            )
        shape = (self.depth, alpha.shape[1])
        if reached is None:
            return torch.ones(shape, dtype=torch.bool, device=alpha.device)
        if reached.shape != shape or reached.dtype != torch.bool:
            given = f"{reached.dtype} of shape {tuple(reached.shape)}"
            raise InputError(f"reached is {given}; expected torch.bool of shape {shape}")
        if bool((reached[1:] & ~reached[:-1]).any()):
            raise InputError("reached has a walk that skips a depth; True up to its end, then False expected")
        return reached
