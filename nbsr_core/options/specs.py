"""The options of a model, its training and its evaluation: plain values, checked when they are made.

Nothing here needs torch: a study file is checked against these classes, in less time than torch takes to be imported.
What they are for is said, and done, in the modules that use them: `kernels.activations`, `kernels.routing`,
`learning.objectives`, `evaluation`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from nbsr_core._checks import number
from nbsr_core.errors import InputError
from nbsr_core.options.conditions import counts_when

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

Family = Literal["nbsr", "baseline"]
Activation = Literal["softplus", "sigmoid", "exp"]
# Much smaller evidence would round to zero in float32, and zero is not positive.
SMALLEST_EVIDENCE = 1e-20
LARGEST_EXPONENT = -math.log(SMALLEST_EVIDENCE)
DEFAULT_EXP_BOUND = math.exp(15.0)
LARGEST_BOUND = 1e30  # float32 ends at 3e38, and beliefs are sums
BeliefInput = Literal["alpha", "log", "mean", "none"]
RoutingMode = Literal["gumbel", "softmax", "argmax"]
Estimator = Literal["sparse", "counterfactual"]
DetectorName = Literal["confidence", "energy", "mahalanobis", "knn", "vim"]
DETECTORS: tuple[DetectorName, ...] = get_args(DetectorName)
EvidenceKind = Literal["absolute", "relative"]
StopRule = Literal["dirichlet", "categorical"]
Sight = Literal["panel", "bought", "shared"]
Growth = Literal["absolute", "consistent"]

SMALLEST_TEMPERATURE = 1e-6  # colder, and the softmax of logits / tau has no gradient that float32 can hold


def check_choice(name: str, value: str, allowed: Any) -> None:
    """Reject a misspelt option with the list of right ones."""
    options = get_args(allowed)
    if value not in options:
        raise InputError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")


def check_temperature(tau: float) -> float:
    """A Gumbel-softmax temperature must be a positive, finite number."""
    is_number = isinstance(tau, int | float) and not isinstance(tau, bool)
    if not (is_number and SMALLEST_TEMPERATURE <= tau < math.inf):
        raise InputError(f"temperature tau must be a finite number > 0, got {tau!r}")
    return float(tau)


@dataclass(frozen=True)
class TemperatureSchedule:
    """Exponential annealing with a floor: `tau(epoch) = max(floor, start * decay ** epoch)`."""

    start: float = 1.0
    decay: float = 0.9
    floor: float = 0.1

    def __post_init__(self) -> None:
        check_temperature(self.start)
        check_temperature(self.floor)
        if not 0 < self.decay <= 1:
            raise InputError(f"temperature decay must lie in (0, 1], got {self.decay!r}")

    def __call__(self, epoch: int) -> float:
        return max(self.floor, self.start * self.decay**epoch)


def checked_hidden(owner: str, hidden: Sequence[int]) -> tuple[int, ...]:
    """Layer sizes as a tuple (study files give lists), so that specifications can be hashed and compared."""
    if any(not isinstance(size, int) or size < 1 for size in hidden):
        raise InputError(f"{owner} hidden sizes must be integers >= 1, got {hidden!r}")
    return tuple(hidden)


@dataclass(frozen=True)
class ExpertSpec:
    """How an expert turns the oracle into evidence.

    Attributes:
        hidden: sizes of ReLU layers between oracle and evidence; empty for the paper's linear experts.
        bias: whether the layers have biases (without, a zero oracle says nothing about any class).
        activation: see `nbsr_core.kernels.activations`.
        bound: largest evidence for one class, the expert's confidence budget; needed by `sigmoid`, e^15 by default for
            `exp`, none for `softplus`.
    """

    hidden: tuple[int, ...] = ()
    bias: bool = True
    activation: Activation = "softplus"
    bound: float | None = None

    def __post_init__(self) -> None:
        check_choice("expert activation", self.activation, Activation)
        object.__setattr__(self, "hidden", checked_hidden("expert", self.hidden))
        if self.activation == "softplus" and self.bound is not None:
            raise InputError(f"softplus evidence is unbounded: drop bound={self.bound!r} or choose sigmoid or exp")
        if self.activation == "sigmoid" and self.bound is None:
            raise InputError("sigmoid evidence needs a bound, its confidence budget for each class")
        if self.bound is not None and not 0 < self.bound <= LARGEST_BOUND:
            raise InputError(f"{self.activation} bound must be finite and > 0, got {self.bound!r}")

    @property
    def limit(self) -> float | None:
        """The largest evidence for one class; None where there is none."""
        return self.bound or DEFAULT_EXP_BOUND if self.activation == "exp" else self.bound

    @property
    def smallest(self) -> float:
        """The smallest evidence for one class."""
        return SMALLEST_EVIDENCE


@dataclass(frozen=True)
class RouterSpec:
    """How a router scores its children from `[h, alpha, eps]` (paper, Eq. router).

    Attributes:
        hidden: sizes of ReLU layers; empty for a linear router.
        bias: whether the layers have biases.
        belief: how the belief enters: as it is (the paper), its logarithm (steadier where evidence is exponential),
            its mean, or not at all.
    """

    hidden: tuple[int, ...] = (64,)
    bias: bool = True
    belief: BeliefInput = "alpha"

    def __post_init__(self) -> None:
        check_choice("router belief", self.belief, BeliefInput)
        object.__setattr__(self, "hidden", checked_hidden("router", self.hidden))

    def describe(self, alpha: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
        """The belief as the router sees it."""
        if self.belief == "log":
            return alpha.log()
        if self.belief == "mean":
            return alpha / alpha.sum(-1, keepdim=True)
        return alpha


@dataclass(frozen=True)
class ObjectiveWeights:
    """Weights of the terms of an objective (`nbsr_core.learning.objectives`); a term of weight 0 is not computed.

    Attributes:
        entropy: lambda of the paper.
        cost: gamma of the paper.
        every_depth: weight of the NLL at each depth before the last.
        regulariser: weight of the evidential regulariser, ramped up linearly over `anneal_epochs`.
        anneal_epochs: epochs until the regulariser has its whole weight.
        concept: weight of the concept loss; needs a graph whose nodes own classes.
        balance: weight of the load balancing.
    """

    entropy: float = 0.0
    cost: float = 0.0
    every_depth: float = 0.0
    regulariser: float = 0.0
    anneal_epochs: int = field(
        default=10, metadata=counts_when("regulariser is above 0", lambda objective: objective.regulariser > 0)
    )
    concept: float = 0.0
    balance: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise InputError(f"objective.{item.name} must be a finite number >= 0, got {value!r}")

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms that are computed, `loss` first."""
        weights = [item.name for item in fields(self) if item.name != "anneal_epochs"]
        return ("loss", "nll", *(name for name in weights if getattr(self, name)))


def check_max_vacuity(max_vacuity: float | None) -> float | None:
    """Vacuity is a share of the whole belief, so a limit on it lies in (0, 1]."""
    if max_vacuity is None:
        return None
    known = number(max_vacuity)
    if known is None or not 0 < known <= 1:
        raise InputError(f"max_vacuity must lie in (0, 1] or be None, got {max_vacuity!r}")
    return known


@dataclass(frozen=True)
class DistanceSpec:
    """How a sample's distance from the training features is measured (`nbsr_core.belief.density`).

    Attributes:
        directions: principal directions with a variance of their own; None for all.
        normalise: project features to the unit sphere first.
        power: each feature h becomes `sign(h) abs(h)^power` first.
    """

    directions: int | None = None
    normalise: bool = True
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.directions is not None and self.directions < 1:
            raise InputError(f"directions must be a whole number >= 1 or None, got {self.directions}")
        if not 0 < self.power <= 1:
            raise InputError(f"power must lie in (0, 1], got {self.power}")


@dataclass(frozen=True)
class EvaluationOptions:
    """What to look at after training.

    Attributes:
        eta: exit threshold of the Fast operating point; None chooses it on the validation split.
        max_accuracy_loss: what the chosen threshold may cost there, as a share of the samples.
        max_nll_loss: what it may cost in nats instead, where accuracy says little (language); None goes by accuracy.
        etas: thresholds of the frontier; None takes all that make a difference.
        max_vacuity: abstain above it; None chooses it on the validation split (`nbsr_core.evaluation.abstention`), 1
            never abstains. Models that know no vacuity go by confidence, with a threshold chosen on the validation
            split, unless it is 1.
        answered: the share of the validation samples that every threshold which is chosen there answers, at least; the
            same for all models. 1 answers them all: for agents, whose episode ends where they do not answer.
        audits: walks of test samples to keep.
        calibrate: fit temperatures on the validation split, one per depth of a walk, one for a model that does not
            walk; figures before calibration stand beside those after it (`ece_raw`).
        detectors: of the unknown, judged where there are unknown samples, the same for every model with features: the
            largest probability (`confidence`), `energy`, `mahalanobis`, `knn`, `vim`.
        mahalanobis: how that detector measures. With the settings of an NBSR model's `density` it is the very factor
            that is inside that belief, outside of every other model.
        doubt: the detector by which a model without a belief of its own tells unknown samples from known ones, beside
            NBSR, which goes by its precision alpha_0.
        set_level: how often conformal sets of classes shall hold the true one.
        max_error: the largest error among the answered that a model guarantees by withholding others, as a share ...
        max_error_chance: ... and the chance, over the draw of the validation samples, that it does not hold.
        prune: also judge a copy without the nodes that fewer than this share of the validation samples visit
            (`pruned/...`); None judges none.
        mirror: of pictures, also judge the mean of the answers to each test picture and to its mirror image
            (`mirrored/...`), at twice the effort, beside the plain figures and for every model alike.
    """

    eta: float | None = None
    max_accuracy_loss: float = field(
        default=0.005,
        metadata=counts_when(
            "neither eta nor max_nll_loss is set", lambda judged: judged.eta is None and judged.max_nll_loss is None
        ),
    )
    max_nll_loss: float | None = field(
        default=None, metadata=counts_when("eta is not set", lambda judged: judged.eta is None)
    )
    etas: tuple[float, ...] | None = None
    max_vacuity: float | None = None
    answered: float = field(
        default=0.95, metadata=counts_when("max_vacuity is not 1", lambda judged: judged.max_vacuity != 1)
    )
    audits: int = 20
    calibrate: bool = True
    detectors: tuple[DetectorName, ...] = DETECTORS
    mahalanobis: DistanceSpec = field(
        default_factory=DistanceSpec,
        metadata=counts_when("detectors or doubt name it", lambda judged: "mahalanobis" in judged.all_detectors),
    )
    doubt: DetectorName = "confidence"
    set_level: float = 0.9
    max_error: float = 0.05
    max_error_chance: float = 0.1
    prune: float | None = None
    mirror: bool = False

    def __post_init__(self) -> None:
        for name in ("set_level", "max_error", "max_error_chance"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} must lie between 0 and 1, got {getattr(self, name)!r}")
        for name in self.detectors:
            check_choice("detectors", name, DetectorName)
        check_choice("doubt", self.doubt, DetectorName)
        if not 0 <= self.max_accuracy_loss < 1:
            raise InputError(f"max_accuracy_loss must lie in [0, 1), got {self.max_accuracy_loss!r}")
        if self.max_nll_loss is not None and not 0 <= self.max_nll_loss < math.inf:
            raise InputError(f"max_nll_loss must be a finite number >= 0 or None, got {self.max_nll_loss!r}")
        check_max_vacuity(self.max_vacuity)
        if not 0 < self.answered <= 1:
            raise InputError(f"answered must lie in (0, 1], got {self.answered!r}")
        if self.audits < 0:
            raise InputError(f"audits must be at least 0, got {self.audits!r}")
        if self.prune is not None and not 0 <= self.prune <= 1:
            raise InputError(f"prune must be a share between 0 and 1 or None, got {self.prune!r}")

    @property
    def all_detectors(self) -> tuple[DetectorName, ...]:
        """Those that were asked for, and the one that models without a belief doubt by."""
        return self.detectors if self.doubt in self.detectors else (*self.detectors, self.doubt)
