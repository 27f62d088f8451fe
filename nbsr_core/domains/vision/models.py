"""Heads on a picture backbone: flat, sparse mixture of experts, and NBSR on a taxonomy or a regular graph.

NBSR and the flat network with early exits may ask the backbone stage by stage (`nbsr_core.model.stages`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nbsr_core.domains import tabular
from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.domains.references import (
    CartOptions,
    EvidentialTerms,
    FlatNetworks,
    Gates,
    Members,
    Thinning,
    build_cart,
    references_on,
)
from nbsr_core.domains.vision.backbones import (
    BackboneOptions,
    FitsPictures,
    channels_last,
    scaling_of,
    width,
)
from nbsr_core.domains.vision.data import pixel_names
from nbsr_core.domains.vision.packed_images import CIFAR10
from nbsr_core.domains.vision.views import Scaling, scaled
from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning.learners import NO_WALK, Classifier, Inside, NbsrLearner, TorchLearner
from nbsr_core.learning.references.dropout import ThinnedDropout, thinned_layers
from nbsr_core.learning.references.early_exit import EarlyExit, ExitHeads
from nbsr_core.learning.references.flat import flat_network
from nbsr_core.learning.references.trees import Cart
from nbsr_core.model.network import evaluating
from nbsr_core.model.preprocessing import FittedStep
from nbsr_core.model.routers import RouterSpec
from nbsr_core.model.stages import Stages, cut

# Pictures that go through a backbone together where no gradient is wanted: large batches at 224 px fill a machine.
PICTURES_AT_ONCE = 256
# Training pictures that a network looks at before it is trained; rows are in no order, so the first are as good as any.
PICTURES_TO_FIT = 5000

TAXONOMIES = {
    CIFAR10: {
        "Animal": {"Pets": ["cat", "dog"], "Wildlife": ["deer", "horse", "frog"], "Birds": ["bird"]},
        "Vehicle": {"AirWater": ["airplane", "ship"], "Road": ["automobile", "truck"]},
    },
    tuple(str(digit) for digit in range(10)): {
        "Looped": {"OneLoop": ["0", "6", "9"], "TwoLoops": ["8"]},
        "Open": {"Straight": ["1", "4", "7"], "Curved": ["2", "3", "5"]},
    },
}


def taxonomy(class_names: Sequence[str]) -> DecisionGraph | None:
    """The paper's taxonomy for CIFAR-10, one by shape for digits, none for other classes.

    Where only some of the classes are known, nodes that would own none of them are left out.
    """
    for classes, tree in TAXONOMIES.items():
        if set(class_names) <= set(classes):
            return DecisionGraph.taxonomy(_restricted(tree, class_names))
    return None


def _restricted(branch: Any, class_names: Collection[str]) -> Any:
    """A branch with the named classes alone; empty if it has none of them."""
    if isinstance(branch, Mapping):
        parts = {name: _restricted(below, class_names) for name, below in branch.items()}
        return {name: part for name, part in parts.items() if part}
    return [name for name in branch if name in class_names]


class Pictures(FittedStep):
    """A backbone that takes pictures as they are stored: values 0-255, [B, 3, H, W] or flattened, of any size.

    It is fitted where its network is (`FitsPictures`): only here it is known how that sees a stored picture.
    """

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network, self.size, self.scaling = network, size, scaling_of(network)

    def fit(self, x: Tensor) -> Pictures:
        _look_at(x, self.network, self.size, self.scaling)
        return self

    def forward(self, x: Tensor) -> Float[Tensor, "B d"]:
        if torch.is_grad_enabled() or len(x) <= PICTURES_AT_ONCE:
            return self._embed(x)
        return torch.cat([self._embed(part) for part in x.split(PICTURES_AT_ONCE)])

    def _embed(self, x: Tensor) -> Tensor:
        h: Tensor = self.network(as_seen(x, self.size, self.scaling))
        return h


class StagedPictures(Stages, FittedStep):
    """The same in stages, which end at named submodules of the network."""

    rows_at_once = PICTURES_AT_ONCE

    def __init__(self, network: nn.Module, size: int, ends: Sequence[str]) -> None:
        super().__init__(cut(network, ends))
        self.size, self.scaling = size, scaling_of(network)
        self.whole = (network,)  # whose submodules the stages share; in a tuple, it is no submodule itself

    def fit(self, x: Tensor) -> StagedPictures:
        _look_at(x, *self.whole, self.size, self.scaling)
        return self

    def prepared(self, x: Tensor) -> Tensor:
        return as_seen(x, self.size, self.scaling)

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "B _"], ...]:
        if torch.is_grad_enabled() or len(x) <= PICTURES_AT_ONCE:
            return super().forward(x)
        parts = [super(StagedPictures, self).forward(part) for part in x.split(PICTURES_AT_ONCE)]
        return tuple(torch.cat(of_stage) for of_stage in zip(*parts, strict=True))


def _look_at(x: Tensor, network: nn.Module, size: int, scaling: Scaling) -> None:
    """Show training pictures to a network that wants to see some before it is trained."""
    if isinstance(network, FitsPictures):
        network.fit_pictures(as_seen(x[:PICTURES_TO_FIT], size, scaling))


def as_seen(x: Tensor, size: int, scaling: Scaling) -> Float[Tensor, "B 3 {size} {size}"]:
    """Stored pictures, flattened or not, as a network takes them."""
    if x.ndim == 2:
        side = math.isqrt(x.shape[1] // 3)
        x = x.view(len(x), 3, side, side)
    return scaling(scaled(x, size)).contiguous(memory_format=torch.channels_last)


class PlainView(nn.Module):
    """Features that a frozen backbone gave; of several views [B, V, d] the plain one, where no other was drawn."""

    def forward(self, x: Float[Tensor, "B *V d"]) -> Float[Tensor, "B d"]:
        return x[:, 0] if x.ndim == 3 else x


def body(options: BackboneOptions | None, signature: Signature) -> tuple[nn.Module, int]:
    """What comes before the head, and the size of the oracle that it gives."""
    if options is not None and options.stages:
        raise InputError("backbone.stages: the model asks its backbone once; nbsr and early_exit ask it in stages")
    backbone, (size,) = staged_body(options, signature)
    return backbone, size


def staged_body(options: BackboneOptions | None, signature: Signature) -> tuple[nn.Module, tuple[int, ...]]:
    """The same for models that ask it stage by stage, with the size of each stage's oracle; without stages, of one."""
    size = math.isqrt(signature.num_features // 3)
    pictures = list(signature.feature_names) == pixel_names(size)
    if pictures and options is None:
        raise InputError("pictures need a backbone: give the model one (backbone: {name: resnet18}) or set data.oracle")
    if options is None:
        return PlainView(), (signature.num_features,)
    if not pictures:
        raise InputError(f"backbone: the data are features of data.oracle already; drop {options.name} or data.oracle")
    network = channels_last(options.build())
    if not options.stages:
        return Pictures(network, options.input_size), (width(network, options.input_size),)
    try:
        stages = StagedPictures(network, options.input_size, options.stages)
    except InputError as error:
        raise InputError(f"backbone.{error}") from None
    return stages, _widths(stages, size)


@torch.no_grad()
def _widths(stages: StagedPictures, size: int) -> tuple[int, ...]:
    """How many features each stage gives, asked with one black picture."""
    with evaluating(stages):
        return tuple(h.shape[1] for h in stages(torch.zeros(1, 3, size, size)))


@dataclass(frozen=True)
class FlatOptions:
    """The flat baseline: backbone, then one linear layer, or with `hidden` a small network.

    Attributes:
        hidden: sizes of layers between backbone and classes.
    """

    backbone: BackboneOptions | None = None
    hidden: tuple[int, ...] = ()


@dataclass(frozen=True)
class EarlyExitOptions:
    """The flat baseline with a head at each stage of its backbone (Teerapittayanon et al., 2016).

    It exits where a head is sure enough. Its threshold is chosen as NBSR's is; the entropy that it is compared with is
    that of the answer.

    Attributes:
        backbone: with `stages`, after each of which there is a linear head.
    """

    backbone: BackboneOptions | None = None


@dataclass(frozen=True)
class EvidentialOptions(EvidentialTerms, FlatOptions):
    """The flat baseline as an evidential network (Sensoy et al., 2018): a Dirichlet belief in one step."""


@dataclass(frozen=True)
class EnsembleOptions(Members, FlatOptions):
    """A deep ensemble of the flat baseline (Lakshminarayanan et al., 2017); each member has a backbone of its own."""


@dataclass(frozen=True)
class DropoutOptions(Thinning, FlatOptions):
    """The flat baseline with Monte Carlo dropout (Gal and Ghahramani, 2016) on the features and each hidden layer."""


@dataclass(frozen=True)
class SoftTreeOptions(Gates):
    """A soft decision tree on the backbone's features, in the place of the flat baseline's head."""

    backbone: BackboneOptions | None = None


@dataclass(frozen=True)
class MixtureOptions:
    """Sparse mixture of experts as in the paper: softmax gate, the best `top` of `experts`, a load-balancing loss.

    Attributes:
        experts: how many there are.
        top: how many of them are asked for one picture.
        hidden: sizes of each expert's layers between backbone and classes.
        balance: weight of the load-balancing loss.
    """

    backbone: BackboneOptions | None = None
    experts: int = 5
    top: int = 2
    hidden: tuple[int, ...] = ()
    balance: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.top <= self.experts:
            raise InputError(f"top must lie in 1..{self.experts} (experts), got {self.top}")
        if not 0 <= self.balance < math.inf:
            raise InputError(f"balance must be a finite number >= 0, got {self.balance}")


@dataclass(frozen=True)
class NbsrOptions(tabular.WalkOptions):
    """NBSR over pictures."""

    router: RouterSpec = field(default_factory=lambda: RouterSpec(hidden=(128,)))
    backbone: BackboneOptions | None = None


def _head(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Mixture(nn.Module):
    """Logits of the best experts, weighted by the gate's probabilities, which are renormalised among them."""

    def __init__(self, backbone: nn.Module, oracle_dim: int, num_classes: int, options: MixtureOptions) -> None:
        super().__init__()
        self.backbone, self.top = backbone, options.top
        self.gate = nn.Linear(oracle_dim, options.experts)
        self.experts = nn.ModuleList(_head(oracle_dim, options.hidden, num_classes) for _ in range(options.experts))

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B E"]]:
        """Logits, and the gate's probability of every expert."""
        return self.logits(self.backbone(x))

    def logits(self, h: Float[Tensor, "B d"]) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B E"]]:
        """The same from the oracle."""
        gates = self.gate(h).softmax(-1)
        best = gates.topk(self.top, -1)
        weights = torch.zeros_like(gates).scatter(1, best.indices, best.values / best.values.sum(-1, keepdim=True))
        # All experts speak, those not chosen with weight 0: for linear experts picking rows costs more than it saves.
        said = torch.stack([expert(h) for expert in self.experts], 1)
        return (weights.unsqueeze(-1) * said).sum(1), gates


class MixtureLearner(TorchLearner):
    """Cross-entropy and the load-balancing loss of the Switch Transformer, `E sum_i share_i * mean gate_i`."""

    family = "baseline"
    smooths_labels = True

    def __init__(self, module: Mixture, balance: float) -> None:
        super().__init__(module)
        self.balance = balance

    def loss(self, module: nn.Module, x: Tensor, y: Int[Tensor, " B"], epoch: int) -> dict[str, Tensor]:
        logits, gates = module(x)
        experts = gates.shape[1]
        top: int = self.module.top  # type: ignore[assignment]
        chosen = torch.zeros_like(gates).scatter(1, gates.topk(top, -1).indices, 1 / top)
        balance = experts * (chosen.mean(0) * gates.mean(0)).sum()
        nll = self.cross_entropy(logits, y)
        return {"loss": nll + self.balance * balance, "nll": nll, "balance": self.balance * balance}

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss", "nll", "balance")

    @property
    def ignores(self) -> dict[str, str]:
        return super().ignores | NO_WALK

    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        return self.by_chunks(lambda part: self.module(part)[0].softmax(-1), x)

    has_features = True

    def inside(self, x: Tensor) -> Inside:
        network: Mixture = self.module  # type: ignore[assignment]
        features = self.by_chunks(network.backbone, x)
        return Inside(features, self.by_chunks(lambda part: network.logits(part)[0], features))


class PictureNetworks(FlatNetworks):
    """A picture backbone, or features of a frozen one, and a head that may have hidden layers."""

    def body(self, options: FlatOptions | SoftTreeOptions, signature: Signature) -> tuple[nn.Module, int]:
        return body(options.backbone, signature)

    def head(self, options: FlatOptions, inputs: int, outputs: int) -> nn.Module:
        return _head(inputs, options.hidden, outputs)

    def thinned(self, options: DropoutOptions, signature: Signature) -> tuple[nn.Module, nn.Module]:
        """With dropout on the features and after each hidden layer of the head."""
        backbone, oracle_dim = self.body(options, signature)
        on_features = ThinnedDropout(oracle_dim, options.rate, options.passes, place=0)
        layers = thinned_layers(oracle_dim, options.hidden, options.rate, options.passes, first=1)
        head = nn.Sequential(layers, nn.Linear([oracle_dim, *options.hidden][-1], signature.num_classes))
        return nn.Sequential(backbone, on_features), head


FLAT_NETWORKS = PictureNetworks()


def build_flat(options: FlatOptions, signature: Signature) -> Classifier:
    return Classifier(flat_network(*FLAT_NETWORKS.parts(options, signature)))


def build_pixel_cart(options: CartOptions, signature: Signature) -> Cart:
    """One tree on the values of the pixels, or on the features of a frozen backbone."""
    return build_cart(options, signature, as_rows)


def as_rows(x: Tensor) -> Float[Tensor, "N values"]:
    """Pictures [N, 3, H, W] as rows of pixels; features as they are, of several views [N, V, d] the plain one."""
    return (x[:, 0] if x.ndim == 3 else x).flatten(1).float()


def build_mixture(options: MixtureOptions, signature: Signature) -> MixtureLearner:
    backbone, oracle_dim = body(options.backbone, signature)
    return MixtureLearner(Mixture(backbone, oracle_dim, signature.num_classes, options), options.balance)


def build_early_exit(options: EarlyExitOptions, signature: Signature) -> EarlyExit:
    backbone, sizes = staged_body(options.backbone, signature)
    if not isinstance(backbone, Stages):
        raise InputError("early_exit needs backbone.stages, to have a head after each; for one head take flat")
    return EarlyExit(backbone, ExitHeads(sizes, signature.num_classes))


def build_nbsr(options: NbsrOptions, signature: Signature) -> NbsrLearner:
    shared = {item.name: getattr(options, item.name) for item in fields(options) if item.name != "backbone"}
    asked = staged_body(options.backbone, signature)
    return tabular.build_nbsr(tabular.NbsrOptions(**shared), signature, taxonomy(signature.class_names), asked)


MODELS = {
    "nbsr": ModelKind("nbsr", NbsrOptions, build_nbsr),
    "flat": ModelKind("baseline", FlatOptions, build_flat),
    "early_exit": ModelKind("baseline", EarlyExitOptions, build_early_exit),
    "moe": ModelKind("baseline", MixtureOptions, build_mixture),
    **references_on(
        FLAT_NETWORKS,
        {
            "evidential": EvidentialOptions,
            "ensemble": EnsembleOptions,
            "mc_dropout": DropoutOptions,
            "soft_tree": SoftTreeOptions,
        },
    ),
    "cart": ModelKind("baseline", CartOptions, build_pixel_cart),
}
