"""Models for inputs that are one vector: NBSR, the flat MLP with the same backbone, and boosted trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.errors import InputError
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import (
    Estimator,
    EvidenceKind,
    ExpertSpec,
    ObjectiveWeights,
    RouterSpec,
    RoutingMode,
    check_choice,
)

if TYPE_CHECKING:  # imported where models are built: options are checked without torch
    from torch import Tensor, nn

    from nbsr_core.belief.density import DensityFactor
    from nbsr_core.graph.decision_graph import DecisionGraph
    from nbsr_core.learning.learners import Classifier, NbsrLearner
    from nbsr_core.learning.references.boosted_trees import BoostedTrees

# A larger tree has more experts than most data sets have samples, and its parameters alone fill a machine.
MOST_NODES = 100_000

GraphShape = Literal["taxonomy", "uniform", "layered", "chain", "learned"]


@dataclass(frozen=True)
class GraphOptions:
    """Which graph to walk: the domain's own taxonomy, or a regular one of a given depth and width.

    Attributes:
        shape: the domain's own `taxonomy`; a tree (`uniform`); levels that are all connected (`layered`); one path
            (`chain`); or a taxonomy that is `learned` before training: classes that a linear model takes for each other
            on the validation split are in one group (only where inputs are one vector).
        depth: levels below the root; of a learned taxonomy, levels of groups.
        width: children of each node, or nodes of each level; of a learned taxonomy, groups of each node on average.
        widths: of a layered graph, the width of each level; those beyond `depth` do not count. Empty: `width` for all.
        generalist: one more expert between the root and the first level, which every sample visits. It sees all the
            data, where each expert of the first level would see a share of it.
    """

    shape: GraphShape = "taxonomy"
    depth: int = field(
        default=2,
        metadata=counts_when("shape is uniform, layered, chain or learned", lambda graph: graph.shape != "taxonomy"),
    )
    width: int = field(
        default=4,
        metadata=counts_when(
            "shape is uniform or learned, or layered without widths",
            lambda graph: graph.shape in ("uniform", "learned") or (graph.shape == "layered" and not graph.widths),
        ),
    )
    widths: tuple[int, ...] = field(
        default=(), metadata=counts_when("shape is layered", lambda graph: graph.shape == "layered")
    )
    generalist: bool = False

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, GraphShape)
        if self.depth < 1:
            raise InputError(f"depth must be a whole number >= 1, got {self.depth}")
        if self.width < 1:
            raise InputError(f"width must be a whole number >= 1, got {self.width}")
        if self.widths and (len(self.widths) < self.depth or min(self.widths) < 1):
            raise InputError(f"widths must be {self.depth} or more whole numbers >= 1, got {list(self.widths)}")
        nodes = sum(self.width**level for level in range(1, self.depth + 1)) if self.shape == "uniform" else 0
        if nodes > MOST_NODES:
            raise InputError(f"depth {self.depth} and width {self.width} make {nodes:,} nodes; {MOST_NODES:,} at most")

    def build(self, taxonomy: DecisionGraph | None) -> DecisionGraph:
        """The graph of the study's choice; `taxonomy` is the domain's own, if it has one."""
        graph = self._shaped(taxonomy)
        return graph.with_generalist() if self.generalist else graph

    def _shaped(self, taxonomy: DecisionGraph | None) -> DecisionGraph:
        from nbsr_core.graph.decision_graph import DecisionGraph

        if self.shape == "uniform":
            return DecisionGraph.uniform(self.depth, self.width)
        if self.shape == "layered":
            return DecisionGraph.layered(list(self.widths[: self.depth]) or [self.width] * self.depth)
        if self.shape == "chain":
            return DecisionGraph.chain(self.depth)
        if self.shape == "learned":
            raise InputError(
                "graph.shape: a taxonomy is learned only where inputs are one vector; choose another shape"
            )
        if taxonomy is None:
            raise InputError("graph.shape: this domain has no taxonomy; choose uniform, layered or chain")
        return taxonomy


WHERE_ENABLED = counts_when("enabled is true", lambda density: density.enabled)


@dataclass(frozen=True)
class DensityOptions:
    """The density factor on evidence, see `nbsr_core.belief.density`; off unless asked for.

    Attributes:
        enabled: scale evidence by how close a sample is to the training data.
        directions: principal directions with a variance of their own; None for all.
        normalise: project features to the unit sphere first, for deep image features.
        power: each feature h becomes `sign(h) abs(h)^power` first; well below 1, it counts which features are there.
        quantile: share of new samples of the known kind that shall keep their evidence whole.
    """

    enabled: bool = False
    directions: int | None = field(default=None, metadata=WHERE_ENABLED)
    normalise: bool = field(default=False, metadata=WHERE_ENABLED)
    power: float = field(default=1.0, metadata=WHERE_ENABLED)
    quantile: float = field(default=0.99, metadata=WHERE_ENABLED)

    def __post_init__(self) -> None:
        if not 0.5 <= self.quantile < 1:
            raise InputError(f"quantile must lie in [0.5, 1), got {self.quantile}")
        if not 0 < self.power <= 1:
            raise InputError(f"power must lie in (0, 1], got {self.power}")

    def build(self, oracle_dim: int) -> DensityFactor | None:
        if not self.enabled:
            return None
        from nbsr_core.belief.density import DensityFactor

        return DensityFactor(
            oracle_dim,
            directions=self.directions,
            normalise=self.normalise,
            power=self.power,
            quantile=self.quantile,
        )


@dataclass(frozen=True)
class WalkOptions:
    """What every NBSR may be told, whatever it reads.

    Attributes:
        experts: one specification for all experts, or a list with one per level, the last of which counts for all
            deeper levels too. The first of two may have a `bound`, its confidence budget: what a generalist or a broad
            expert says can then be outweighed below.
        routing: how training walks choose: `gumbel` (straight-through), `softmax` (every path at once, weighted) or
            `argmax` (no exploring: routers learn from a concept or balance loss alone).
        estimator: whose evidence teaches the router: that of the chosen child (`sparse`), or of all its siblings too
            (`counterfactual`).
        evidence: what an expert says: pseudo-counts (`absolute`, as in the paper), or multiples of the belief that it
            finds (`relative`: each expert refines what was said before it, so that a specialist that sees few samples
            need not learn everything anew).
        prior_weight: W of Subjective Logic, `alpha = e + W a`; None takes the number of classes, a prior of all ones.
        normalise: an ablation: the belief is scaled back to the precision of the prior after each step, which the paper
            forbids, because nothing can then be told to be unknown.
        training_eta: an ablation: entropy below which walks end while training too, which the paper warns of ("lazy
            optimization"); None never ends one early.
    """

    graph: GraphOptions = field(default_factory=GraphOptions)
    experts: ExpertSpec | tuple[ExpertSpec, ...] = field(default_factory=ExpertSpec)
    router: RouterSpec = field(default_factory=RouterSpec)
    routing: RoutingMode = "gumbel"
    estimator: Estimator = field(
        default="sparse", metadata=counts_when("routing is gumbel", lambda walk: walk.routing == "gumbel")
    )
    evidence: EvidenceKind = "absolute"
    prior_weight: float | None = None
    normalise: bool = False
    training_eta: float | None = None
    density: DensityOptions = field(default_factory=DensityOptions)
    objective: ObjectiveWeights = field(default_factory=ObjectiveWeights)

    @property
    def of_walk(self) -> dict[str, Any]:
        """The arguments of `NBSR` that are taken over as they are."""
        taken = ("experts", "router", "routing", "estimator", "evidence", "prior_weight", "normalise", "training_eta")
        return {name: getattr(self, name) for name in taken}


@dataclass(frozen=True)
class NbsrOptions(WalkOptions):
    """NBSR over a vector.

    Attributes:
        hidden: sizes of the backbone's layers; the last one is the oracle.
    """

    hidden: tuple[int, ...] = (128, 128)

    def __post_init__(self) -> None:
        _check_layers(self.hidden)


@dataclass(frozen=True)
class MlpOptions:
    """The flat baseline: the same backbone, then one linear layer.

    Attributes:
        hidden: sizes of the backbone's layers.
    """

    hidden: tuple[int, ...] = (128, 128)

    def __post_init__(self) -> None:
        _check_layers(self.hidden)


@dataclass(frozen=True)
class BoostedTreesOptions:
    """XGBoost's own defaults, spelled out.

    Attributes:
        n_estimators: rounds of boosting.
        max_depth: of each tree.
        learning_rate: what each round's trees are scaled by.
    """

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
    from torch import nn

    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers)


def build_nbsr(
    options: NbsrOptions,
    signature: Signature,
    taxonomy: DecisionGraph | None,
    body: tuple[nn.Module, Sequence[int]] | None = None,
    side: int = 0,
) -> NbsrLearner:
    """NBSR on a graph of the study's choice.

    Args:
        options: the study's.
        signature: of the data.
        taxonomy: the domain's own, if it has one.
        body: another backbone than dense layers, and the sizes of its oracles, one for each of its stages.
        side: how many of the last features only routers see.
    """
    from nbsr_core.learning.learned_taxonomy import LearnedTaxonomy, TaxonomyLearner
    from nbsr_core.learning.learners import NbsrLearner
    from nbsr_core.model.network import NBSR
    from nbsr_core.model.side_input import SideInput

    shape = options.graph
    asked, sizes = body or (backbone(signature.num_features - side, options.hidden), options.hidden[-1:])
    density = [factor for factor in map(options.density.build, sizes) if factor is not None]
    learned = LearnedTaxonomy(signature.class_names, shape.depth, shape.width, shape.generalist)
    graph = learned.before_training() if shape.shape == "learned" else shape.build(taxonomy)
    network = SideInput if side else NBSR
    model = network(
        asked,
        graph,
        signature.num_classes,
        sizes,
        side_dim=side,
        density=density or None,
        **options.of_walk,
    )
    if shape.shape == "learned":
        return TaxonomyLearner(model, options.objective, learned)
    return NbsrLearner(model, options.objective, class_owners(graph, options, signature))


def class_owners(graph: DecisionGraph, options: WalkOptions, signature: Signature) -> Tensor | None:
    """Which node owns which class, [nodes, K], for the concept loss; None where nodes own none."""
    import torch

    if graph.root.classes:
        return torch.tensor(graph.admissible(signature.num_classes, signature.class_names))
    if options.objective.concept:
        raise InputError("objective.concept needs graph.shape: taxonomy or learned, whose nodes own classes")
    return None


def build_mlp(options: MlpOptions, signature: Signature) -> Classifier:
    """The flat MLP; its hidden layers are called `backbone`, so that weight decay treats it like NBSR's."""
    from torch import nn

    from nbsr_core.learning.learners import Classifier
    from nbsr_core.learning.references.flat import flat_network

    body = backbone(signature.num_features, options.hidden)
    return Classifier(flat_network(body, nn.Linear(options.hidden[-1], signature.num_classes)))


def build_boosted_trees(options: BoostedTreesOptions, signature: Signature) -> BoostedTrees:
    """XGBoost with the given settings."""
    from nbsr_core.learning.references.boosted_trees import BoostedTrees

    return BoostedTrees(
        signature.num_classes,
        n_estimators=options.n_estimators,
        max_depth=options.max_depth,
        learning_rate=options.learning_rate,
    )


MLP = ModelKind("baseline", MlpOptions, build_mlp)
XGBOOST = ModelKind("baseline", BoostedTreesOptions, build_boosted_trees)
