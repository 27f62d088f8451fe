"""Standard models to compare with, offered by name: their options, and how they are built for inputs of one vector.

The options that are not about the network itself are shared with the domains that have networks of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.domains.tabular import MlpOptions, backbone
from nbsr_core.errors import InputError
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import check_choice

if TYPE_CHECKING:  # imported where models are built: options are checked without torch
    from nbsr_core.learning.references.dropout import McDropout
    from nbsr_core.learning.references.early_exit import EarlyExit
    from nbsr_core.learning.references.ensemble import Ensemble
    from nbsr_core.learning.references.evidential import EvidentialClassifier
    from nbsr_core.learning.references.soft_tree import SoftTreeClassifier
    from nbsr_core.learning.references.tabm import TabM
    from nbsr_core.learning.references.trees import Cart, HistBoosting

# A deeper soft tree asks more leaves for every sample than most data sets have classes.
DEEPEST = 10


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} must be a whole number >= {least}, got {value}")


@dataclass(frozen=True)
class EvidentialTerms:
    """How an evidential network is trained (Sensoy et al., 2018).

    Attributes:
        penalty: weight of the divergence of evidence for wrong classes from none. That paper has 1, for ten classes;
            the divergence grows with their number, and with dozens of them the whole weight can leave no evidence.
        anneal_epochs: over how many epochs that weight grows from 0; 0 starts with all of it.
    """

    penalty: float = 1.0
    anneal_epochs: int = field(default=10, metadata=counts_when("penalty is above 0", lambda terms: terms.penalty > 0))

    def check_terms(self) -> None:
        if not 0 <= self.penalty < float("inf"):
            raise InputError(f"penalty must be a finite number >= 0, got {self.penalty}")
        _at_least("anneal_epochs", self.anneal_epochs, 0)


@dataclass(frozen=True)
class Members:
    """Of how many networks an ensemble is made (Lakshminarayanan et al., 2017).

    Attributes:
        members: networks that learn side by side from different first weights.
    """

    members: int = 5

    def check_members(self) -> None:
        _at_least("members", self.members, 1)


@dataclass(frozen=True)
class Thinning:
    """Dropout that stays on in use (Gal and Ghahramani, 2016).

    Attributes:
        rate: probability that a feature is dropped.
        passes: thinned networks whose mean is the answer.
    """

    rate: float = 0.1
    passes: int = 20

    def check_thinning(self) -> None:
        if not 0 < self.rate < 1:
            raise InputError(f"rate must lie in (0, 1), got {self.rate}")
        _at_least("passes", self.passes, 1)


@dataclass(frozen=True)
class EvidentialOptions(EvidentialTerms, MlpOptions):
    """An evidential flat network (Sensoy et al., 2018): a Dirichlet belief in one step, without a walk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_terms()


@dataclass(frozen=True)
class EnsembleOptions(Members, MlpOptions):
    """A deep ensemble of the flat network (Lakshminarayanan et al., 2017); its members see the same batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_members()


@dataclass(frozen=True)
class DropoutOptions(Thinning, MlpOptions):
    """The flat network with Monte Carlo dropout (Gal and Ghahramani, 2016) after each layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_thinning()


Leaves = Literal["linear", "constant"]


@dataclass(frozen=True)
class SoftTreeOptions(MlpOptions):
    """A soft decision tree on the features of the flat network's backbone.

    Attributes:
        depth: levels of gates; there are 2^depth leaves.
        leaves: `linear` experts of the features (Jordan and Jacobs, 1994) or `constant` distributions (Frosst and
            Hinton, 2017).
        balance: weight of the penalty on gates that send all samples one way.
    """

    depth: int = 3
    leaves: Leaves = "linear"
    balance: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("leaves", self.leaves, Leaves)
        if not 1 <= self.depth <= DEEPEST:
            raise InputError(f"depth must lie in 1..{DEEPEST}, got {self.depth}")
        if not 0 <= self.balance < float("inf"):
            raise InputError(f"balance must be a finite number >= 0, got {self.balance}")


@dataclass(frozen=True)
class EarlyExitOptions(MlpOptions):
    """The flat network with a head at each layer (Teerapittayanon et al., 2016), and an exit where one is sure enough.

    Its threshold is chosen as NBSR's is; the entropy that it is compared with is that of the answer.
    """


@dataclass(frozen=True)
class TabmOptions(MlpOptions):
    """The flat network as TabM (Gorishniy et al., 2025): many members that share almost all weights.

    Needs `nbsr[tabm]`.

    Attributes:
        members: k of that paper, how many answers are averaged.
        dropout: share of each layer's outputs that is dropped in training.
    """

    members: int = 32
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("members", self.members, 1)
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must lie in [0, 1), got {self.dropout}")


@dataclass(frozen=True)
class CartOptions:
    """One decision tree by scikit-learn (Breiman et al., 1984).

    Attributes:
        max_depth: of the tree; None grows it until its leaves are pure.
        min_samples_leaf: training rows in each leaf at least.
    """

    max_depth: int | None = None
    min_samples_leaf: int = 1

    def __post_init__(self) -> None:
        if self.max_depth is not None:
            _at_least("max_depth", self.max_depth, 1)
        _at_least("min_samples_leaf", self.min_samples_leaf, 1)


@dataclass(frozen=True)
class HistBoostingOptions:
    """Boosted trees on histograms by scikit-learn, its own defaults spelled out; early stopping is off.

    Attributes:
        max_iter: rounds of boosting, with one tree per class in each.
        learning_rate: what each round's trees are scaled by.
        max_leaf_nodes: leaves of each tree at most.
    """

    max_iter: int = 100
    learning_rate: float = 0.1
    max_leaf_nodes: int = 31

    def __post_init__(self) -> None:
        _at_least("max_iter", self.max_iter, 1)
        _at_least("max_leaf_nodes", self.max_leaf_nodes, 2)
        if not 0 < self.learning_rate <= 1:
            raise InputError(f"learning_rate must lie in (0, 1], got {self.learning_rate}")


def build_evidential(options: EvidentialOptions, signature: Signature) -> EvidentialClassifier:
    from torch import nn

    from nbsr_core.learning.references.evidential import EvidentialClassifier
    from nbsr_core.learning.references.flat import flat_network

    body = backbone(signature.num_features, options.hidden)
    head = nn.Linear(options.hidden[-1], signature.num_classes)
    return EvidentialClassifier(flat_network(body, head), options.penalty, options.anneal_epochs)


def build_ensemble(options: EnsembleOptions, signature: Signature) -> Ensemble:
    from torch import nn

    from nbsr_core.learning.references.ensemble import Ensemble

    return Ensemble(
        (backbone(signature.num_features, options.hidden), nn.Linear(options.hidden[-1], signature.num_classes))
        for _ in range(options.members)
    )


def build_dropout(options: DropoutOptions, signature: Signature) -> McDropout:
    from torch import nn

    from nbsr_core.learning.references.dropout import McDropout, thinned_layers
    from nbsr_core.learning.references.flat import flat_network

    body = thinned_layers(signature.num_features, options.hidden, options.rate, options.passes)
    return McDropout(flat_network(body, nn.Linear(options.hidden[-1], signature.num_classes)))


def build_soft_tree(options: SoftTreeOptions, signature: Signature) -> SoftTreeClassifier:
    from nbsr_core.learning.references.soft_tree import SoftTree, SoftTreeClassifier

    body, linear = backbone(signature.num_features, options.hidden), options.leaves == "linear"
    tree = SoftTree(options.hidden[-1], signature.num_classes, options.depth, linear_leaves=linear)
    return SoftTreeClassifier(body, tree, options.balance)


def build_cart(options: CartOptions, signature: Signature) -> Cart:
    from nbsr_core.learning.references.trees import Cart

    return Cart(signature.num_classes, max_depth=options.max_depth, min_samples_leaf=options.min_samples_leaf)


def build_hist_boosting(options: HistBoostingOptions, signature: Signature) -> HistBoosting:
    from nbsr_core.learning.references.trees import HistBoosting

    return HistBoosting(
        signature.num_classes,
        max_iter=options.max_iter,
        learning_rate=options.learning_rate,
        max_leaf_nodes=options.max_leaf_nodes,
    )


def build_early_exit(options: EarlyExitOptions, signature: Signature) -> EarlyExit:
    from nbsr_core.learning.references.early_exit import EarlyExit, ExitHeads
    from nbsr_core.model.stages import Stages

    sizes = [signature.num_features, *options.hidden]
    stages = Stages([backbone(inputs, (size,)) for inputs, size in pairwise(sizes)])
    return EarlyExit(stages, ExitHeads(options.hidden, signature.num_classes))


def build_tabm(options: TabmOptions, signature: Signature) -> TabM:
    from nbsr_core.learning.references.tabm import TabM

    sizes = (signature.num_features, signature.num_classes, options.hidden)
    return TabM(*sizes, members=options.members, dropout=options.dropout)


CART = ModelKind("baseline", CartOptions, build_cart)
# For every domain whose inputs are one vector.
TABULAR_REFERENCES = {
    "evidential": ModelKind("baseline", EvidentialOptions, build_evidential),
    "ensemble": ModelKind("baseline", EnsembleOptions, build_ensemble),
    "mc_dropout": ModelKind("baseline", DropoutOptions, build_dropout),
    "soft_tree": ModelKind("baseline", SoftTreeOptions, build_soft_tree),
    "early_exit": ModelKind("baseline", EarlyExitOptions, build_early_exit),
    "tabm": ModelKind("baseline", TabmOptions, build_tabm),
    "cart": CART,
    "hist_boosting": ModelKind("baseline", HistBoostingOptions, build_hist_boosting),
}
