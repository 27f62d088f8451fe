"""What a backend can do, and what it is given: a level, a whole walk, and passes over the rows of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.kernels.banks import Bank
from nbsr_core.kernels.routing import Routes
from nbsr_core.options.specs import EvidenceKind, RouterSpec, RoutingMode

Siblings = Callable[[Float[Tensor, "b d"], Int[Tensor, " b"]], Float[Tensor, "b children K"]]
"""The evidence of all children of the nodes at some positions, for the counterfactual estimator."""


@runtime_checkable
class Routers(Protocol):
    """The routers of one level (`nbsr_core.model.routers.LevelRouters`)."""

    num_children: int
    size: int
    all_inner: bool
    uneven: bool
    slot_of_node: Tensor
    missing: Tensor
    inner: Tensor
    child_position: Tensor

    @property
    def bank(self) -> Bank | None: ...

    def inputs(self, h: Tensor, belief: Tensor, side: Tensor | None) -> list[Tensor]:
        """What the first layer of the bank sees, in the order of its maps."""

    def __call__(self, inputs: Sequence[Tensor], position: Tensor) -> Tensor:
        """Logits: the scores of the children, -inf for those that a node does not have."""

    def chosen(self, position: Tensor, choice: Tensor) -> Tensor:
        """Where the chosen children stand in the level below."""


@runtime_checkable
class Experts(Protocol):
    """The experts of one level (`nbsr_core.model.experts.LevelExperts`)."""

    @property
    def banks(self) -> Any:
        """Modules of the type `Bank`, one for each kind of expert."""

    def __call__(self, h: Tensor, position: Tensor) -> Tensor:
        """Evidence: what each row's own expert says."""


class Level:
    """The routers of one level and the experts of the next.

    Attributes:
        first_node: number of the first node of the next level.
        most_macs, longest_side, most_layers: the size of the largest map and network, by which a backend is chosen.
        prepared: what a backend keeps for this level from one call to the next; nobody else reads it.
    """

    def __init__(self, routers: Routers, experts: Experts, first_node: int) -> None:
        self.routers, self.experts, self.first_node = routers, experts, first_node
        banks: list[Bank] = [*([] if routers.bank is None else [routers.bank]), *experts.banks]
        maps = [stack for bank in banks for stack in (*bank.first(), *bank.rest())]
        self.most_macs = max(stack.macs for stack in maps)
        self.longest_side = max(side for stack in maps for side in stack.weight.shape[1:])
        self.most_layers = max(1 + len(bank.rest()) for bank in banks)
        self.prepared: Any = None


@dataclass(frozen=True)
class LevelResult:
    """What one level gave.

    Attributes:
        routes: where each row was sent.
        position: where in the next level it stands now.
        evidence: what its expert there says.
    """

    routes: Routes
    position: Int[Tensor, " b"]
    evidence: Float[Tensor, "b K"]


@dataclass(frozen=True)
class WalkResult:
    """Where every row of a walk stopped, and what it believed then.

    Attributes:
        unclear: rows that came too close to the threshold for the bounds to decide; None if there are none.
    """

    alpha: Float[Tensor, "b K"]
    probs: Float[Tensor, "b K"]
    label: Int[Tensor, " b"]
    depth: Int[Tensor, " b"]
    node: Int[Tensor, " b"]
    unclear: Bool[Tensor, " b"] | None


class DensityShape(NamedTuple):
    """Where training features lie, and how evidence falls off away from them (`nbsr_core.belief.density`)."""

    centre: Float[Tensor, " d"]
    whitening: Float[Tensor, "d d"]
    means: Float[Tensor, "kinds d"]
    threshold: Float[Tensor, ""]
    spread: Float[Tensor, ""]
    floor: float


class Backend(ABC):
    """One way to compute walks and what is read off them. All backends agree up to rounding."""

    @abstractmethod
    def level(
        self,
        level: Level,
        h: Float[Tensor, "b d"],
        belief: Float[Tensor, "#b K"],
        side: Float[Tensor, "b s"] | None,
        position: Int[Tensor, " b"],
        *,
        mode: RoutingMode,
        tau: float,
        siblings: Siblings | None = None,
    ) -> LevelResult:
        """Go one level down; differentiably, where gradients are enabled.

        Args:
            level: the routers where the rows stand, and the experts below.
            h: the oracle of each row.
            belief: alpha of each row; one row stands for all.
            side: side information of each row, if the routers take any.
            position: where in the level each row stands.
            mode: how to choose.
            tau: temperature of the choice.
            siblings: given for the counterfactual estimator.
        """

    @abstractmethod
    def walk(
        self,
        levels: Sequence[Level],
        h: Float[Tensor, "b d"],
        side: Float[Tensor, "b s"] | None,
        scale: Float[Tensor, " b"] | None,
        prior: Float[Tensor, " K"],
        router: RouterSpec,
        evidence: EvidenceKind,
        eta: float | None,
        temperature: Float[Tensor, " depth"] | None,
    ) -> WalkResult | None:
        """All levels in one call, without derivatives; None where this backend cannot, or a belief is invalid.

        Args:
            levels: from the root down.
            h: the oracle of each row.
            side: side information of each row, if the routers take any.
            scale: factor on each row's evidence.
            prior: alpha before the first level.
            router: how the routers see a belief.
            evidence: what is added to a belief: what experts say, or that times the belief.
            eta: rows whose calibrated belief has an entropy below it exit; None for no exits.
            temperature: of the calibration at each depth; None if beliefs are not calibrated.
        """

    @abstractmethod
    def calibrated(
        self, alpha: Float[Tensor, "*batch K"], temperature: Float[Tensor, "*#batch"]
    ) -> Float[Tensor, "*batch K"]:
        """The belief of the same precision whose mean is p^(1/T), renormalised; differentiable in alpha and T."""

    @abstractmethod
    def marginals(self, alpha: Float[Tensor, "b K"]) -> tuple[Float[Tensor, "b K"], Int[Tensor, " b"]]:
        """Expected marginals `alpha / alpha_0`, and the most probable class of each row."""

    @abstractmethod
    def screened(self, alpha: Float[Tensor, "b K"], eta: float) -> tuple[Bool[Tensor, " b"], Bool[Tensor, " b"] | None]:
        """Whether the entropy of each float32 belief is below eta, and which rows are unclear; None if none are."""

    @abstractmethod
    def distances(
        self, features: Float[Tensor, "N d"], shape: DensityShape, mean: Int[Tensor, " N"] | None, length: int
    ) -> Float[Tensor, " N"]:
        """Mahalanobis distance of each row to its mean (the nearest by default) over sqrt(d); differentiable.

        Rows come in sequences of `length`, in which the largest distance so far counts.
        """

    @abstractmethod
    def closeness(
        self, features: Float[Tensor, "N d"], shape: DensityShape, mean: Int[Tensor, " N"] | None, length: int
    ) -> Float[Tensor, " N"]:
        """The factor on evidence that follows from these distances, in [floor, 1]."""
