"""Models for inputs that are one vector: NBSR, the flat MLP with the same backbone, and boosted trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nbsr_core.density import DensityFactor
from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.errors import InputError
from nbsr_core.experts import ExpertSpec
from nbsr_core.graph import DecisionGraph
from nbsr_core.learners import BoostedTrees, Classifier, NbsrLearner
from nbsr_core.network import NBSR
from nbsr_core.objectives import Objective
from nbsr_core.routers import RouterSpec
from nbsr_core.routing import Estimator, RoutingMode, check_choice

# A larger tree has more experts than most data sets have samples, and its parameters alone fill a machine.
MOST_NODES = 100_000

GraphShape = Literal["taxonomy", "uniform", "layered", "chain"]


@dataclass(frozen=True)
class GraphOptions:
    """Which graph to walk: the domain's own taxonomy, or a regular one of a given depth and width."""

    shape: GraphShape = "taxonomy"
    depth: int = 2
    width: int = 4

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, GraphShape)
        if self.depth < 1:
            raise InputError(f"depth must be a whole number >= 1, got {self.depth}")
        if self.width < 1:
            raise InputError(f"width must be a whole number >= 1, got {self.width}")
        nodes = sum(self.width**level for level in range(1, self.depth + 1)) if self.shape == "uniform" else 0
        if nodes > MOST_NODES:
            raise InputError(f"depth {self.depth} and width {self.width} make {nodes:,} nodes; {MOST_NODES:,} at most")

    def build(self, taxonomy: DecisionGraph | None) -> DecisionGraph:
        if self.shape == "uniform":
            return DecisionGraph.uniform(self.depth, self.width)
        if self.shape == "layered":
            return DecisionGraph.layered([self.width] * self.depth)
        if self.shape == "chain":
            return DecisionGraph.chain(self.depth)
        if taxonomy is None:
            raise InputError("graph.shape: this domain has no taxonomy; choose uniform, layered or chain")
        return taxonomy


@dataclass(frozen=True)
class DensityOptions:
    """The density factor on evidence, see `nbsr_core.density`; off unless asked for."""

    enabled: bool = False
    directions: int | None = None
    normalise: bool = False
    quantile: float = 0.99

    def __post_init__(self) -> None:
        if not 0.5 <= self.quantile < 1:
            raise InputError(f"quantile must lie in [0.5, 1), got {self.quantile}")

    def build(self, oracle_dim: int) -> DensityFactor | None:
        if not self.enabled:
            return None
        return DensityFactor(oracle_dim, directions=self.directions, normalise=self.normalise, quantile=self.quantile)


@dataclass(frozen=True)
class WalkOptions:
    """What every NBSR may be told, whatever it reads.

    `experts` is one specification for all experts, or a list with one a level.
    """

    experts: ExpertSpec | tuple[ExpertSpec, ...] = field(default_factory=ExpertSpec)
    router: RouterSpec = field(default_factory=RouterSpec)
    routing: RoutingMode = "gumbel"
    estimator: Estimator = "sparse"
    prior_weight: float | None = None
    density: DensityOptions = field(default_factory=DensityOptions)
    objective: Objective = field(default_factory=Objective)
    calibrate: bool = True

    @property
    def of_walk(self) -> dict[str, Any]:
        """The arguments of `NBSR` that are taken over as they are."""
        return {name: getattr(self, name) for name in ("experts", "router", "routing", "estimator", "prior_weight")}


@dataclass(frozen=True)
class NbsrOptions(WalkOptions):
    """NBSR over a vector."""

    hidden: tuple[int, ...] = (128, 128)
    graph: GraphOptions = field(default_factory=GraphOptions)

    def __post_init__(self) -> None:
        _check_layers(self.hidden)


@dataclass(frozen=True)
class MlpOptions:
    """The flat baseline: the same backbone, then one linear layer."""

    hidden: tuple[int, ...] = (128, 128)

    def __post_init__(self) -> None:
        _check_layers(self.hidden)


@dataclass(frozen=True)
class BoostedTreesOptions:
    """XGBoost's own defaults, spelled out."""

    n_estimators: int = 100
    max_depth: int = 6
    learning_rate: float = 0.3

    def __post_init__(self) -> None:
        for name in ("n_estimators", "max_depth"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be a whole number >= 1, got {getattr(self, name)}")
        if not 0 < self.learning_rate <= 1:
            raise InputError(f"learning_rate must lie in (0, 1], got {self.learning_rate}")


def _check_layers(hidden: Sequence[int]) -> None:
    if not hidden or any(size < 1 for size in hidden):
        raise InputError(f"hidden must be at least one layer size >= 1, got {list(hidden)}")


def backbone(inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Dense ReLU layers; the last one is the oracle."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers)


def build_nbsr(
    options: NbsrOptions, signature: Signature, taxonomy: DecisionGraph | None, body: nn.Module | None = None
) -> NbsrLearner:
    """NBSR on a graph of the study's choice; the concept loss needs the taxonomy's class owners."""
    graph = options.graph.build(taxonomy)
    oracle = options.hidden[-1]
    model = NBSR(
        body if body is not None else backbone(signature.num_features, options.hidden),
        graph,
        signature.num_classes,
        oracle,
        density=options.density.build(oracle),
        **options.of_walk,
    )
    admissible: Tensor | None = None
    if graph is taxonomy and any(node.classes for node in graph.nodes):
        admissible = torch.tensor(graph.admissible(signature.num_classes, signature.class_names))
    if options.objective.concept and admissible is None:
        raise InputError("objective.concept needs graph.shape: taxonomy, whose nodes own classes")
    return NbsrLearner(model, options.objective, admissible, options.calibrate)


def build_mlp(options: MlpOptions, signature: Signature) -> Classifier:
    """The flat MLP; its hidden layers are called `backbone`, so that weight decay treats it like NBSR's."""
    network = nn.Sequential()
    network.add_module("backbone", backbone(signature.num_features, options.hidden))
    network.add_module("head", nn.Linear(options.hidden[-1], signature.num_classes))
    return Classifier(network)


def build_boosted_trees(options: BoostedTreesOptions, signature: Signature) -> BoostedTrees:
    """XGBoost with the given settings."""
    return BoostedTrees(
        signature.num_classes,
        n_estimators=options.n_estimators,
        max_depth=options.max_depth,
        learning_rate=options.learning_rate,
    )


MLP = ModelKind("baseline", MlpOptions, build_mlp)
XGBOOST = ModelKind("baseline", BoostedTreesOptions, build_boosted_trees)
