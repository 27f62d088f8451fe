"""Standard models to compare with, offered by name: their options, and how they are made of a domain's flat network.

There is one door: a domain says in `FlatNetworks` what its flat network is, and which options each reference has beside
those of that network; `references_on` makes the models. Every domain whose inputs are one vector takes the same ones
(`TABULAR_REFERENCES`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.domains.tabular import MlpOptions, backbone
from nbsr_core.errors import InputError
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import check_choice

if TYPE_CHECKING:  # imported where models are built: options are checked without torch
    from torch import Tensor, nn

    from nbsr_core.learning.learners import Classifier
    from nbsr_core.learning.references.tabm import TabM
    from nbsr_core.learning.references.trees import Cart, HistBoosting

L = TypeVar("L", bound="Classifier")

# A deeper soft tree asks more leaves for every sample than most data sets have classes.
DEEPEST = 10


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} must be a whole number >= {least}, got {value}")


class Terms:
    """What a reference has beside the options of a domain's flat network; both are checked."""

    def __post_init__(self) -> None:
        self.check()
        of_network: Callable[[], None] | None = getattr(super(), "__post_init__", None)
        if of_network is not None:
            of_network()

    def check(self) -> None:
        """Raise `InputError` for what cannot work."""


@dataclass(frozen=True)
class EvidentialTerms(Terms):
    """How an evidential network is trained (Sensoy et al., 2018).

    Attributes:
        penalty: weight of the divergence of evidence for wrong classes from none, divided by the number of classes,
            with which the divergence grows. That paper's weight of 1, for ten classes, is 10 here, and leaves dozens of
            classes without any evidence. The default was chosen on validation data with 3, 10, 41 and 65 classes.
        anneal_epochs: over how many epochs that weight grows from 0; 0 starts with all of it.
    """

    penalty: float = 0.1
    anneal_epochs: int = field(default=10, metadata=counts_when("penalty is above 0", lambda terms: terms.penalty > 0))

    def check(self) -> None:
        if not 0 <= self.penalty < float("inf"):
            raise InputError(f"penalty must be a finite number >= 0, got {self.penalty}")
        _at_least("anneal_epochs", self.anneal_epochs, 0)


@dataclass(frozen=True)
class Members(Terms):
    """Of how many networks an ensemble is made (Lakshminarayanan et al., 2017).

    Attributes:
        members: networks that learn side by side from different first weights.
    """

    members: int = 5

    def check(self) -> None:
        _at_least("members", self.members, 1)


@dataclass(frozen=True)
class Thinning(Terms):
    """Dropout that stays on in use (Gal and Ghahramani, 2016).

    Attributes:
        rate: probability that a feature is dropped.
        passes: thinned networks whose mean is the answer.
    """

    rate: float = 0.1
    passes: int = 20

    def check(self) -> None:
        if not 0 < self.rate < 1:
            raise InputError(f"rate must lie in (0, 1), got {self.rate}")
        _at_least("passes", self.passes, 1)


Leaves = Literal["linear", "constant"]


@dataclass(frozen=True)
class Gates(Terms):
    """The gates and leaves of a soft decision tree.

    Attributes:
        depth: levels of gates; there are 2^depth leaves.
        leaves: `linear` experts of the features (Jordan and Jacobs, 1994) or `constant` distributions (Frosst and
            Hinton, 2017).
        balance: weight of the penalty on gates that send all samples one way.
    """

    depth: int = 3
    leaves: Leaves = "linear"
    balance: float = 0.1

    def check(self) -> None:
        check_choice("leaves", self.leaves, Leaves)
        if not 1 <= self.depth <= DEEPEST:
            raise InputError(f"depth must lie in 1..{DEEPEST}, got {self.depth}")
        if not 0 <= self.balance < float("inf"):
            raise InputError(f"balance must be a finite number >= 0, got {self.balance}")


@dataclass(frozen=True)
class EvidentialOptions(EvidentialTerms, MlpOptions):
    """An evidential flat network (Sensoy et al., 2018): a Dirichlet belief in one step, without a walk."""


@dataclass(frozen=True)
class EnsembleOptions(Members, MlpOptions):
    """A deep ensemble of the flat network (Lakshminarayanan et al., 2017); its members see the same batches."""


@dataclass(frozen=True)
class DropoutOptions(Thinning, MlpOptions):
    """The flat network with Monte Carlo dropout (Gal and Ghahramani, 2016) after each layer."""


@dataclass(frozen=True)
class SoftTreeOptions(Gates, MlpOptions):
    """A soft decision tree on the features of the flat network's backbone."""


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


class FlatNetworks(ABC):
    """What the references ask of a domain: its flat network, whole and in parts. All options are the domain's own."""

    @abstractmethod
    def body(self, options: Any, signature: Signature) -> tuple[nn.Module, int]:
        """What comes before the head, and the size of the features that it gives."""

    def head(self, options: Any, inputs: int, outputs: int) -> nn.Module:
        """From features to one output per class: a linear map, unless a domain has another."""
        from torch import nn

        return nn.Linear(inputs, outputs)

    def thinned(self, options: Any, signature: Signature) -> tuple[nn.Module, nn.Module]:
        """Body and head with dropout that stays on in use; by default it is on the features alone."""
        from torch import nn

        from nbsr_core.learning.references.dropout import ThinnedDropout

        body, size = self.body(options, signature)
        dropout = ThinnedDropout(size, options.rate, options.passes, place=0)
        return nn.Sequential(body, dropout), self.head(options, size, signature.num_classes)

    def stages(self, options: Any, signature: Signature) -> tuple[nn.Module, Sequence[int]]:
        """The body as a module that gives the outputs of all its layers, and their sizes: `early_exit` asks for it."""
        raise NotImplementedError

    def learner(self, kind: type[L]) -> type[L]:
        """The class of a reference as the domain's labels need it: as it is, where a sample has one label."""
        return kind

    def parts(self, options: Any, signature: Signature) -> tuple[nn.Module, nn.Module]:
        """Body and head."""
        body, size = self.body(options, signature)
        return body, self.head(options, size, signature.num_classes)


def build_evidential(networks: FlatNetworks, options: Any, signature: Signature) -> Classifier:
    from nbsr_core.learning.references.evidential import EvidentialClassifier
    from nbsr_core.learning.references.flat import flat_network

    learner = networks.learner(EvidentialClassifier)
    return learner(flat_network(*networks.parts(options, signature)), options.penalty, options.anneal_epochs)


def build_ensemble(networks: FlatNetworks, options: Any, signature: Signature) -> Classifier:
    from nbsr_core.learning.references.ensemble import Ensemble, side_by_side

    members = (networks.parts(options, signature) for _ in range(options.members))
    return networks.learner(Ensemble)(side_by_side(members), options.members)


def build_dropout(networks: FlatNetworks, options: Any, signature: Signature) -> Classifier:
    from nbsr_core.learning.references.dropout import McDropout
    from nbsr_core.learning.references.flat import flat_network

    return networks.learner(McDropout)(flat_network(*networks.thinned(options, signature)))


def build_soft_tree(networks: FlatNetworks, options: Any, signature: Signature) -> Classifier:
    from nbsr_core.learning.references.soft_tree import SoftTree, SoftTreeClassifier

    body, size = networks.body(options, signature)
    tree = SoftTree(size, signature.num_classes, options.depth, linear_leaves=options.leaves == "linear")
    return networks.learner(SoftTreeClassifier)(body, tree, options.balance)


def build_early_exit(networks: FlatNetworks, options: Any, signature: Signature) -> Classifier:
    from nbsr_core.learning.references.early_exit import EarlyExit, ExitHeads

    stages, sizes = networks.stages(options, signature)
    return networks.learner(EarlyExit)(stages, ExitHeads(sizes, signature.num_classes))


BUILDERS: dict[str, Callable[[FlatNetworks, Any, Signature], Classifier]] = {
    "evidential": build_evidential,
    "ensemble": build_ensemble,
    "mc_dropout": build_dropout,
    "soft_tree": build_soft_tree,
    "early_exit": build_early_exit,
}


def references_on(networks: FlatNetworks, options: Mapping[str, type]) -> dict[str, ModelKind]:
    """The references of a domain by name, as models to offer.

    Args:
        networks: the domain's flat network.
        options: of each reference that makes sense there (see `BUILDERS`): those of the network, and its own `Terms`.
    """
    return {name: ModelKind("baseline", kind, partial(BUILDERS[name], networks)) for name, kind in options.items()}


class TabularNetworks(FlatNetworks):
    """Dense ReLU layers on one vector, and a linear head.

    Args:
        standardise: scale the features by the training rows first, where a domain's data are not scaled.
    """

    def __init__(self, *, standardise: bool = False) -> None:
        self.standardise = standardise

    def first(self, signature: Signature) -> list[nn.Module]:
        """What comes before the layers."""
        from nbsr_core.model.preprocessing import Standardise

        return [Standardise(signature.num_features)] if self.standardise else []

    def body(self, options: MlpOptions, signature: Signature) -> tuple[nn.Module, int]:
        from torch import nn

        layers = backbone(signature.num_features, options.hidden)
        return nn.Sequential(*self.first(signature), *layers), options.hidden[-1]

    def thinned(self, options: DropoutOptions, signature: Signature) -> tuple[nn.Module, nn.Module]:
        """With dropout after each layer."""
        from torch import nn

        from nbsr_core.learning.references.dropout import thinned_layers

        layers = thinned_layers(signature.num_features, options.hidden, options.rate, options.passes)
        head = self.head(options, options.hidden[-1], signature.num_classes)
        return nn.Sequential(*self.first(signature), *layers), head

    def stages(self, options: MlpOptions, signature: Signature) -> tuple[nn.Module, Sequence[int]]:
        from torch import nn

        from nbsr_core.model.stages import Stages

        sizes = [signature.num_features, *options.hidden]
        layers = [backbone(inputs, (size,)) for inputs, size in pairwise(sizes)]
        return Stages([nn.Sequential(*self.first(signature), *layers[0]), *layers[1:]]), options.hidden


def build_tabm(networks: TabularNetworks, options: TabmOptions, signature: Signature) -> TabM:
    from nbsr_core.learning.references.tabm import TabM

    sizes = (signature.num_features, signature.num_classes, options.hidden)
    return TabM(*sizes, members=options.members, dropout=options.dropout, first=networks.first(signature))


def build_cart(options: CartOptions, signature: Signature, as_rows: Callable[[Tensor], Tensor] | None = None) -> Cart:
    """One tree; `as_rows` makes rows of numbers of a domain's inputs, where they are not."""
    from nbsr_core.learning.references.trees import Cart

    settings = {"max_depth": options.max_depth, "min_samples_leaf": options.min_samples_leaf}
    return Cart(signature.num_classes, as_rows, **settings)


def build_hist_boosting(options: HistBoostingOptions, signature: Signature) -> HistBoosting:
    from nbsr_core.learning.references.trees import HistBoosting

    return HistBoosting(
        signature.num_classes,
        max_iter=options.max_iter,
        learning_rate=options.learning_rate,
        max_leaf_nodes=options.max_leaf_nodes,
    )


def tabular_references(*, standardise: bool = False) -> dict[str, ModelKind]:
    """All references for inputs of one vector; `standardise` those that networks read, trees need no scale."""
    networks = TabularNetworks(standardise=standardise)
    options = {
        "evidential": EvidentialOptions,
        "ensemble": EnsembleOptions,
        "mc_dropout": DropoutOptions,
        "soft_tree": SoftTreeOptions,
        "early_exit": EarlyExitOptions,
    }
    return {
        **references_on(networks, options),
        "tabm": ModelKind("baseline", TabmOptions, partial(build_tabm, networks)),
        "cart": ModelKind("baseline", CartOptions, build_cart),
        "hist_boosting": ModelKind("baseline", HistBoostingOptions, build_hist_boosting),
    }


# For every domain whose inputs are one vector of scaled numbers.
TABULAR_REFERENCES = tabular_references()
