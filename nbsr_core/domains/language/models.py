"""The models that read through the shared transformer: one softmax, standard references, mixture of experts, NBSR.

All see tokens as flattened rows [rows, d]; their labels are the tokens that are not padding, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.domains.language import grammar
from nbsr_core.domains.language.data import Routers, routing_graph, with_routers
from nbsr_core.domains.language.grammar import PAD
from nbsr_core.domains.language.reading import TokenNBSR
from nbsr_core.domains.language.transformer import CausalTransformer, TransformerOptions, TransformerStages
from nbsr_core.domains.references import EvidentialTerms, FlatNetworks, Gates, L, Members, Thinning, references_on
from nbsr_core.domains.tabular import WalkOptions, class_owners
from nbsr_core.errors import InputError
from nbsr_core.kernels import Layout, StackedLinear
from nbsr_core.learning.learners import Classifier, NbsrLearner
from nbsr_core.learning.references.dropout import McDropout
from nbsr_core.learning.references.early_exit import EarlyExit
from nbsr_core.learning.references.ensemble import Ensemble
from nbsr_core.learning.references.evidential import EvidentialClassifier
from nbsr_core.learning.references.flat import flat_network
from nbsr_core.learning.references.soft_tree import SoftTreeClassifier
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


@dataclass(frozen=True)
class EnsembleOptions(Members, StandardOptions):
    """A deep ensemble of the monolithic baseline (Lakshminarayanan et al., 2017), transformers and all."""


@dataclass(frozen=True)
class DropoutOptions(Thinning, StandardOptions):
    """The monolithic baseline with Monte Carlo dropout (Gal and Ghahramani, 2016) on the transformer's output.

    The dropout inside the transformer is ordinary: on in training, off in use.
    """


@dataclass(frozen=True)
class SoftTreeOptions(Gates, StandardOptions):
    """A soft decision tree on the transformer's output, in the place of the linear map."""


@dataclass(frozen=True)
class EarlyExitOptions(StandardOptions):
    """The monolithic baseline with a head at each block of the transformer (Teerapittayanon et al., 2016).

    Each token stops where a head is sure enough of it; its threshold is chosen as NBSR's is, on the answer's entropy.
    """


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


class TokenDropout(TokenLabels, McDropout):
    """Monte Carlo dropout over tokens."""

    at_once = 32  # sentences: each token goes through all passes


class TokenSoftTree(TokenLabels, SoftTreeClassifier):
    """A soft tree over tokens."""

    at_once = 64  # sentences: each leaf has an answer of its own to each token


class TokenEarlyExit(TokenLabels, EarlyExit):
    """Heads at each block, over tokens."""


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


TOKEN_LEARNERS: dict[type[Classifier], type[Classifier]] = {
    EvidentialClassifier: TokenEvidential,
    Ensemble: TokenEnsemble,
    McDropout: TokenDropout,
    SoftTreeClassifier: TokenSoftTree,
    EarlyExit: TokenEarlyExit,
}


class TokenNetworks(FlatNetworks):
    """The shared transformer, and one linear map to the vocabulary."""

    def body(self, options: StandardOptions | MoeOptions, signature: Signature) -> tuple[nn.Module, int]:
        transformer = CausalTransformer(signature.num_classes, signature.num_features, options.transformer)
        return transformer, options.transformer.dim

    def stages(self, options: StandardOptions, signature: Signature) -> tuple[nn.Module, Sequence[int]]:
        """Its blocks."""
        shape = options.transformer
        blocks = TransformerStages(signature.num_classes, signature.num_features, shape)
        return blocks, [shape.dim] * shape.layers

    def learner(self, kind: type[L]) -> type[L]:
        """The same with the labels of tokens."""
        of_tokens = TOKEN_LEARNERS[kind]
        assert issubclass(of_tokens, kind)
        return of_tokens


FLAT_NETWORKS = TokenNetworks()


def build_standard(options: StandardOptions, signature: Signature) -> TokenClassifier:
    return TokenClassifier(flat_network(*FLAT_NETWORKS.parts(options, signature)))


def build_moe(options: MoeOptions, signature: Signature) -> TokenClassifier:
    transformer, dim = FLAT_NETWORKS.body(options, signature)
    return TokenClassifier(flat_network(transformer, Top1Head(dim, signature.num_classes, options.experts)))


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
REFERENCES = references_on(
    FLAT_NETWORKS,
    {
        "evidential": EvidentialOptions,
        "ensemble": EnsembleOptions,
        "mc_dropout": DropoutOptions,
        "soft_tree": SoftTreeOptions,
        "early_exit": EarlyExitOptions,
    },
)
NBSR_KIND = ModelKind("nbsr", NbsrOptions, build_nbsr)
