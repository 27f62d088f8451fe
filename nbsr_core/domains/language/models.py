"""The models that read through the shared transformer: one softmax, standard references, mixture of experts, NBSR.

All see tokens as flattened rows [rows, d]; their labels are the tokens that are not padding, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.domains.language import grammar
from nbsr_core.domains.language.data import Routers, routing_graph, with_routers
from nbsr_core.domains.language.grammar import PAD
from nbsr_core.domains.language.reading import TokenNBSR
from nbsr_core.domains.language.transformer import CausalTransformer, TransformerOptions
from nbsr_core.domains.references import EvidentialTerms, Members
from nbsr_core.domains.tabular import WalkOptions, class_owners
from nbsr_core.errors import InputError
from nbsr_core.kernels import Layout, StackedLinear
from nbsr_core.learning.learners import Classifier, NbsrLearner
from nbsr_core.learning.references.ensemble import Ensemble
from nbsr_core.learning.references.evidential import EvidentialClassifier
from nbsr_core.learning.references.flat import flat_network
from nbsr_core.learning.splits import Splits
from nbsr_core.model.network import evaluating
from nbsr_core.model.routers import RouterSpec
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import check_choice


@dataclass(frozen=True)
class StandardOptions:
    """The monolithic baseline: one linear map to the vocabulary."""

    transformer: TransformerOptions = field(default_factory=TransformerOptions)


@dataclass(frozen=True)
class EvidentialOptions(EvidentialTerms, StandardOptions):
    """The monolithic baseline as an evidential network (Sensoy et al., 2018): a Dirichlet belief in one step."""

    def __post_init__(self) -> None:
        self.check_terms()


@dataclass(frozen=True)
class EnsembleOptions(Members, StandardOptions):
    """A deep ensemble of the monolithic baseline (Lakshminarayanan et al., 2017), transformers and all."""

    def __post_init__(self) -> None:
        self.check_members()


@dataclass(frozen=True)
class MoeOptions:
    """Top-1 mixture of experts: a router picks one linear map to the vocabulary, and scales it by its probability.

    Attributes:
        experts: linear maps to choose from.
    """

    transformer: TransformerOptions = field(default_factory=TransformerOptions)
    experts: int = 4

    def __post_init__(self) -> None:
        if self.experts < 2:
            raise InputError(f"experts must be a whole number >= 2, got {self.experts}")


@dataclass(frozen=True)
class NbsrOptions(WalkOptions):
    """NBSR over tokens.

    For large vocabularies a hidden layer smaller than `transformer.dim` is what keeps the belief affordable: an expert
    then costs that width for each token of the vocabulary, and routers do well without the belief (`belief: none`).

    Attributes:
        bands: of real text, bands of word frequency that the graph's leaves stand for.
        routers: `every` inner node of the graph has a router, or the `root` alone, as in the paper's appendix: all
            leaves below the chosen mid are then asked, one after another, which makes a walk as many steps deeper.
    """

    router: RouterSpec = field(default_factory=lambda: RouterSpec(hidden=(32,)))
    transformer: TransformerOptions = field(default_factory=TransformerOptions)
    bands: int = field(
        default=4, metadata=counts_when("graph.shape is taxonomy", lambda walk: walk.graph.shape == "taxonomy")
    )
    routers: Routers = field(
        default="every", metadata=counts_when("graph.shape is taxonomy", lambda walk: walk.graph.shape == "taxonomy")
    )

    def __post_init__(self) -> None:
        check_choice("routers", self.routers, Routers)
        if not 4 <= self.bands <= 16:
            raise InputError(f"bands must lie in 4..16, got {self.bands}")


class TokenLabels:
    """Labels of token models: those that are not padding, flattened like the rows of the model."""

    def labels(self, y: Int[Tensor, "N T"]) -> Int[Tensor, " rows"]:
        return y[y != PAD]


class TokenClassifier(TokenLabels, Classifier):
    """Standard and MoE."""


class TokenEvidential(TokenLabels, EvidentialClassifier):
    """An evidential network over tokens."""


class TokenEnsemble(TokenLabels, Ensemble):
    """A deep ensemble over tokens."""


class TokenNbsr(TokenLabels, NbsrLearner):
    """NBSR over tokens."""

    model: TokenNBSR

    def fit_density(self, splits: Splits) -> None:
        device = self.model.prior.device
        with evaluating(self.model):
            self.model.fit_density_on(splits.train.x.to(device), splits.valid.x.to(device))

    @property
    def ignores(self) -> dict[str, str]:
        of_grammar = with_routers(grammar.taxonomy(), "every")
        by_grammar = {node.name for node in of_grammar.nodes} <= {node.name for node in self.model.graph.nodes}
        bands = {"bands": "the grammar has a taxonomy of its own"} if by_grammar else {}
        return super().ignores | bands


class Top1Head(nn.Module):
    """Each row through the one expert that its router likes best, scaled by how much it does (Switch Transformer)."""

    def __init__(self, dim: int, num_classes: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.experts = StackedLinear(experts, dim, num_classes)

    def forward(self, h: Float[Tensor, "rows d"]) -> Float[Tensor, "rows K"]:
        gate, choice = self.router(h).softmax(-1).max(-1)
        layout = Layout.of(choice, self.experts.slots, self.experts.macs)
        if layout.order is None:
            logits: Tensor = self.experts(h, layout)
        else:
            sorted_logits = self.experts(h.index_select(0, layout.order), layout)
            logits = torch.empty_like(sorted_logits).index_copy(0, layout.order, sorted_logits)
        scaled: Tensor = logits * gate.unsqueeze(1)
        return scaled


def _with_backbone(options: TransformerOptions, signature: Signature, head: nn.Module) -> TokenClassifier:
    transformer = CausalTransformer(signature.num_classes, signature.num_features, options)
    return TokenClassifier(flat_network(transformer, head))


def build_standard(options: StandardOptions, signature: Signature) -> TokenClassifier:
    head = nn.Linear(options.transformer.dim, signature.num_classes)
    return _with_backbone(options.transformer, signature, head)


def _parts(options: StandardOptions, signature: Signature) -> tuple[nn.Module, nn.Module]:
    transformer = CausalTransformer(signature.num_classes, signature.num_features, options.transformer)
    return transformer, nn.Linear(options.transformer.dim, signature.num_classes)


def build_evidential(options: EvidentialOptions, signature: Signature) -> TokenEvidential:
    return TokenEvidential(flat_network(*_parts(options, signature)), options.penalty, options.anneal_epochs)


def build_ensemble(options: EnsembleOptions, signature: Signature) -> TokenEnsemble:
    return TokenEnsemble(_parts(options, signature) for _ in range(options.members))


def build_moe(options: MoeOptions, signature: Signature) -> TokenClassifier:
    head = Top1Head(options.transformer.dim, signature.num_classes, options.experts)
    return _with_backbone(options.transformer, signature, head)


def build_nbsr(options: NbsrOptions, signature: Signature) -> TokenNbsr:
    """NBSR on the grammar's taxonomy, on bands of word frequency, or on a regular graph."""
    graph = options.graph.build(routing_graph(signature, options.bands, options.routers))
    dim = options.transformer.dim
    model = TokenNBSR(
        CausalTransformer(signature.num_classes, signature.num_features, options.transformer),
        graph,
        signature.num_classes,
        dim,
        density=options.density.build(dim),
        **options.of_walk,
    )
    return TokenNbsr(model, options.objective, class_owners(graph, options, signature))


STANDARD = ModelKind("baseline", StandardOptions, build_standard)
MOE = ModelKind("baseline", MoeOptions, build_moe)
EVIDENTIAL = ModelKind("baseline", EvidentialOptions, build_evidential)
ENSEMBLE = ModelKind("baseline", EnsembleOptions, build_ensemble)
NBSR_KIND = ModelKind("nbsr", NbsrOptions, build_nbsr)
