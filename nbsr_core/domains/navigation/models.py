"""The four policies, all on the same CNN: CNN and CNN-GRU with a softmax, NBSR without memory and NBSR-Mem.

Beside them stand references of uncertainty, made of the CNN-GRU: evidential, an ensemble, Monte Carlo dropout.

The paper's four stabilisers are options: softmax routing through time (`routing`), the concept loss and the masked
evidential regulariser (`objective`), LayerNorm (`encoder.layer_norm`) with weight decay on the CNN alone (`training`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from nbsr_core.belief.density import DensityFactor
from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.domains.navigation.dagger import DaggerOptions
from nbsr_core.domains.navigation.learners import (
    ClonedClassifier,
    ClonedDropout,
    ClonedEnsemble,
    ClonedEvidential,
    ClonedNbsr,
)
from nbsr_core.domains.navigation.memories import FrameMemories, ManyAnswersMemory
from nbsr_core.domains.navigation.world import VIEW
from nbsr_core.domains.references import EvidentialTerms, Members, Thinning
from nbsr_core.domains.tabular import WHERE_ENABLED, DensityOptions, WalkOptions, class_owners
from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning.references.dropout import ThinnedDropout
from nbsr_core.learning.references.ensemble import Heads
from nbsr_core.model.experts import ExpertSpec
from nbsr_core.model.memory import FrameMemory, Judged, MemoryClassifier, NBSRMem
from nbsr_core.model.network import NBSR
from nbsr_core.model.routers import RouterSpec
from nbsr_core.options.specs import ObjectiveWeights, RoutingMode, check_choice

TAXONOMY = {
    "Cruising": {"Straight": ["up"], "Reverse": ["down"]},
    "Evasion": {"Evade left": ["left"], "Evade right": ["right"]},
}


@dataclass(frozen=True)
class EncoderOptions:
    """The CNN that looks at one frame: two convolutions and a linear layer, without biases as in the paper.

    Attributes:
        channels: of the two convolutions.
        features: size of the linear layer's output.
        bias: whether the layers have biases.
        layer_norm: LayerNorm on the features.
    """

    channels: tuple[int, int] = (32, 64)
    features: int = 128
    bias: bool = False
    layer_norm: bool = True

    def __post_init__(self) -> None:
        if len(self.channels) != 2 or min(*self.channels, self.features) < 1:
            raise InputError(f"encoder needs two channel counts and features, all >= 1, got {self!r}")


@dataclass(frozen=True)
class FrameDensityOptions(DensityOptions):
    """The density factor on evidence: how close a frame is to those of the training; `of` says what is compared.

    Attributes:
        of: the `frame` itself, or the encoder's `features` of it.
    """

    of: Judged = field(default="frame", metadata=WHERE_ENABLED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("of", self.of, Judged)

    def of_frames(self, frames: FrameMemory, signature: Signature) -> DensityFactor | None:
        """The factor for frames of a signature, not fitted."""
        return self.build(signature.num_features if self.of == "frame" else frames.feature_dim)


@dataclass(frozen=True)
class ClassifierOptions:
    """A softmax on the frame's features, or on the memory.

    A density factor scales no evidence here: it says when to halt. `1 - closeness` of the frame stands for the vacuity.
    """

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    density: FrameDensityOptions = field(default_factory=FrameDensityOptions)
    dagger: DaggerOptions = field(default_factory=DaggerOptions)


@dataclass(frozen=True)
class RecurrentClassifierOptions(ClassifierOptions):
    """With a GRU in between.

    Attributes:
        memory: size of the GRU's state.
    """

    memory: int = 128


@dataclass(frozen=True)
class EvidentialOptions(EvidentialTerms, RecurrentClassifierOptions):
    """The CNN-GRU as an evidential network (Sensoy et al., 2018): a Dirichlet belief in one step at every frame."""


@dataclass(frozen=True)
class EnsembleOptions(Members, RecurrentClassifierOptions):
    """A deep ensemble of the CNN-GRU (Lakshminarayanan et al., 2017); each member has eyes and a memory of its own."""


@dataclass(frozen=True)
class DropoutOptions(Thinning, RecurrentClassifierOptions):
    """The CNN-GRU with Monte Carlo dropout (Gal and Ghahramani, 2016) on the memory that the softmax reads."""


def _paper_objective() -> ObjectiveWeights:
    return ObjectiveWeights(concept=0.1, regulariser=0.02, anneal_epochs=10)


@dataclass(frozen=True)
class RoutedOptions(WalkOptions):
    """NBSR over the frame's features; the defaults are the paper's."""

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    experts: ExpertSpec | tuple[ExpertSpec, ...] = field(default_factory=lambda: ExpertSpec(bias=False))
    router: RouterSpec = field(default_factory=lambda: RouterSpec(hidden=(), belief="none"))
    routing: RoutingMode = "softmax"
    density: FrameDensityOptions = field(default_factory=FrameDensityOptions)
    objective: ObjectiveWeights = field(default_factory=_paper_objective)
    dagger: DaggerOptions = field(default_factory=DaggerOptions)


@dataclass(frozen=True)
class RoutedMemoryOptions(RoutedOptions):
    """NBSR-Mem: the same over a GRU's memory.

    Attributes:
        memory: size of the GRU's state.
    """

    memory: int = 128


def frame_memory(encoder: EncoderOptions, signature: Signature, memory: int | None) -> FrameMemory:
    """The part that all four share. Features are the plain output of the linear layer; what squashes them follows."""
    channels, rest = divmod(signature.num_features, VIEW * VIEW)
    if rest:
        raise InputError(f"a frame has a multiple of {VIEW * VIEW} values, got {signature.num_features}")
    first, second = encoder.channels
    cnn = nn.Sequential(
        nn.Conv2d(channels, first, 3, padding=1, bias=encoder.bias),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, bias=encoder.bias),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(second * (VIEW - 2) ** 2, encoder.features, bias=encoder.bias),
    )
    squash = nn.Sequential(nn.ReLU())
    if encoder.layer_norm:
        squash.append(nn.LayerNorm(encoder.features, elementwise_affine=False))
    return FrameMemory(cnn, squash, encoder.features, memory)


def _frames(options: ClassifierOptions, signature: Signature) -> FrameMemory:
    memory = options.memory if isinstance(options, RecurrentClassifierOptions) else None
    return frame_memory(options.encoder, signature, memory)


def _classifier(
    options: ClassifierOptions,
    signature: Signature,
    frames: FrameMemory,
    head: nn.Module | None = None,
) -> MemoryClassifier:
    """Frames and a head on their memory: a linear one, or one that gives several answers."""
    density, judged = options.density.of_frames(frames, signature), options.density.of
    if head is None:
        return MemoryClassifier(frames, signature.num_classes, density, judged)
    return ManyAnswersMemory(frames, signature.num_classes, density, judged, head)


def _build_classifier(options: ClassifierOptions, signature: Signature) -> ClonedClassifier:
    return ClonedClassifier(_classifier(options, signature, _frames(options, signature)), options.dagger)


def _build_evidential(options: EvidentialOptions, signature: Signature) -> ClonedEvidential:
    model = _classifier(options, signature, _frames(options, signature))
    return ClonedEvidential(model, options.dagger, penalty=options.penalty, anneal_epochs=options.anneal_epochs)


def _build_ensemble(options: EnsembleOptions, signature: Signature) -> ClonedEnsemble:
    members = [_frames(options, signature) for _ in range(options.members)]
    heads = Heads(nn.Linear(member.oracle_dim, signature.num_classes) for member in members)
    split = nn.Unflatten(-1, (options.members, members[0].oracle_dim))
    model = _classifier(options, signature, FrameMemories(members), nn.Sequential(split, heads))
    return ClonedEnsemble(model, options.dagger, members=options.members)


def _build_dropout(options: DropoutOptions, signature: Signature) -> ClonedDropout:
    frames = _frames(options, signature)
    dropout = ThinnedDropout(frames.oracle_dim, options.rate, options.passes, place=0)
    linear = nn.Linear(frames.oracle_dim, signature.num_classes)
    model = _classifier(options, signature, frames, nn.Sequential(dropout, linear))
    return ClonedDropout(model, options.dagger)


def _build_routed(options: RoutedOptions, signature: Signature) -> ClonedNbsr:
    memory = options.memory if isinstance(options, RoutedMemoryOptions) else None
    frames = frame_memory(options.encoder, signature, memory)
    graph = options.graph.build(DecisionGraph.taxonomy(TAXONOMY))
    walk = NBSR(nn.Identity(), graph, signature.num_classes, frames.oracle_dim, **options.of_walk)
    model = NBSRMem(frames, walk, options.density.of_frames(frames, signature), options.density.of)
    return ClonedNbsr(model, options.objective, class_owners(graph, options, signature), options.dagger)


MODELS = {
    "nbsr_mem": ModelKind("nbsr", RoutedMemoryOptions, _build_routed),
    "nbsr": ModelKind("nbsr", RoutedOptions, _build_routed),
    "cnn_gru": ModelKind("baseline", RecurrentClassifierOptions, _build_classifier),
    "cnn": ModelKind("baseline", ClassifierOptions, _build_classifier),
    "evidential": ModelKind("baseline", EvidentialOptions, _build_evidential),
    "ensemble": ModelKind("baseline", EnsembleOptions, _build_ensemble),
    "mc_dropout": ModelKind("baseline", DropoutOptions, _build_dropout),
}
