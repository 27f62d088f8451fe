"""NBSR-Mem: memory before belief. A GRU gathers what frames showed, and a walk over the decision graph follows each.

The paper's agent sees one frame at a time and must act on what it saw before. The memory is updated *prior* to routing:
`m_t = GRU(f(o_t), m_{t-1})`, and `m_t` is the oracle of an ordinary NBSR walk. So all that is true of a walk (evidence,
exits, audit, calibration) is true of each step of an episode; only the gradient goes further, back through time.

What is unknown is judged on the frame, not on the memory: a density factor scales the evidence of step t by how close
the frame is to those of the training. It looks at the frame itself, or at its plain features `f(o_t)` before anything
squashes them. A memory mixes the frame with its past, its gates saturate, and each layer of a backbone lets go of more
of what did not matter in training, which is just what the unknown consists of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nbsr_core.belief.density import DensityFactor
from nbsr_core.errors import InputError
from nbsr_core.model.network import NBSR
from nbsr_core.options.specs import check_choice
from nbsr_core.trace.belief_trace import BeliefTrace
from nbsr_core.trace.exits import Prediction

State = Float[Tensor, "1 B m"]
FIT_CHUNK = 4096  # frames that go through the backbone together when a density factor is fitted
Judged = Literal["frame", "features"]


@dataclass(frozen=True, eq=False)
class Recollection:
    """What is known after each step of B episodes of T frames.

    Attributes:
        features: of each frame alone, as the backbone gives them; 0 where a frame was not there.
        oracle: what the step is decided on: the memory, or the squashed features where there is none.
        state: the memory after the last step, to go on from; None without memory.
    """

    features: Float[Tensor, "B T f"]
    oracle: Float[Tensor, "B T d"]
    state: State | None


class FrameMemory(nn.Module):
    """Frames to oracle states: a backbone looks at each frame alone, a GRU remembers. Baselines share it.

    Args:
        backbone: frames [N, ...] to features [N, feature_dim]; best the plain output of a linear layer.
        squash: what is done to features before they are remembered (the paper: ReLU and LayerNorm).
        feature_dim: size of the features.
        memory_dim: size of the memory; None for a reactive model that has none.
    """

    def __init__(self, backbone: nn.Module, squash: nn.Module, feature_dim: int, memory_dim: int | None) -> None:
        super().__init__()
        if feature_dim < 1 or (memory_dim is not None and memory_dim < 1):
            raise InputError(f"feature_dim and memory_dim must be at least 1, got {feature_dim} and {memory_dim}")
        self.backbone, self.squash, self.feature_dim = backbone, squash, feature_dim
        self.gru = None if memory_dim is None else nn.GRU(feature_dim, memory_dim, batch_first=True)
        self.oracle_dim = feature_dim if memory_dim is None else memory_dim

    def forward(
        self, x: Float[Tensor, "B T ..."], seen: Bool[Tensor, "B T"] | None = None, state: State | None = None
    ) -> Recollection:
        """Remember frame by frame. Frames that are not `seen` (padding after an episode's end) cost nothing."""
        batch, steps = x.shape[:2]
        if batch == 0 or steps == 0:
            raise InputError(f"frames must come as [episodes, steps, ...], at least one of each; got {list(x.shape)}")
        if seen is None:
            features = self.backbone(x.flatten(0, 1)).view(batch, steps, -1)
        else:
            shown = self.backbone(x[seen])
            features = shown.new_zeros(batch, steps, shown.shape[-1]).masked_scatter(seen.unsqueeze(-1), shown)
        if features.shape[-1] != self.feature_dim:
            raise InputError(f"the backbone must return {self.feature_dim} features, got {features.shape[-1]}")
        oracle: Tensor = self.squash(features)
        if self.gru is not None:
            oracle, state = self.gru(oracle, state)
        return Recollection(features, oracle, state)


class FrameJudge(nn.Module):
    """What NBSR-Mem and its baselines share: frames and memory, and how close a frame is to those of the training.

    Args:
        frames: from frames to oracle states.
        density: says how close a frame is to the training frames, or None.
        judged: what the density factor looks at: all values of a `frame`, or the backbone's `features` of it.
    """

    def __init__(self, frames: FrameMemory, density: DensityFactor | None, judged: Judged) -> None:
        super().__init__()
        check_choice("judged", judged, Judged)
        self.frames, self.density = frames, density
        self.judged: Judged = judged

    @property
    def backbone(self) -> nn.Module:
        """The part that weight decay is meant for (the paper's fourth stabiliser)."""
        return self.frames.backbone

    def closeness(
        self, frames: Float[Tensor, "N ..."], features: Float[Tensor, "N f"] | None = None
    ) -> Float[Tensor, " N"] | None:
        """How close each frame is, in (0, 1]; None where there is no density factor (yet).

        `features` are what the backbone made of the frames, if that is known already.
        """
        if self.density is None or not self.density.fitted:
            return None
        if self.judged == "frame":
            features = frames.flatten(1)
        elif features is None:
            features = self.backbone(frames)
        factor: Tensor = self.density(features.detach())
        return factor

    @torch.no_grad()
    def fit_density(
        self,
        frames: Float[Tensor, "N ..."],
        y: Int[Tensor, " N"],
        fresh: Float[Tensor, "M ..."] | None = None,
    ) -> None:
        """Learn where training frames lie; `fresh` ones, not trained on, say how far new frames do."""
        if self.density is None:
            raise InputError(
                f"this model has no density factor: give {type(self).__name__}(density=DensityFactor(...))"
            )

        def place(shown: Tensor) -> Tensor:
            if self.judged == "frame":
                return shown.flatten(1)
            return torch.cat([self.backbone(part) for part in shown.split(FIT_CHUNK)])

        self.density.fit(place(frames), y, fresh=None if fresh is None else place(fresh))


class NBSRMem(FrameJudge):
    """Neural Bayesian Sequential Routing with memory: a walk for every step of an episode.

    `model(x)` walks all steps of all episodes at once, differentiably through time, and returns one `BeliefTrace` whose
    rows are the steps (those of an episode side by side). `model.step(frames, state)` decides one step in use.

    How routes are trained is the walk's own option: `routing="softmax"` is the paper's deterministic routing through
    time, `"gumbel"` its straight-through sampling.

    Args:
        frames: from frames to oracle states.
        walk: NBSR without a backbone (`nn.Identity()`), over oracle states of `frames.oracle_dim`.
        density: scales the evidence of a step by the closeness of its frame to the training frames, or None.
        judged: what the density factor looks at: all values of a `frame`, or the backbone's `features` of it.

    Examples:
        >>> import torch, nbsr_core as nbsr
        >>> from nbsr_core.model.memory import FrameMemory, NBSRMem
        >>> graph = nbsr.DecisionGraph.uniform(depth=2, width=2)
        >>> walk = nbsr.NBSR(torch.nn.Identity(), graph, num_classes=4, oracle_dim=16, routing="softmax")
        >>> model = NBSRMem(FrameMemory(torch.nn.Linear(10, 8), torch.nn.ReLU(), 8, 16), walk)
        >>> model(torch.randn(3, 5, 10)).probabilities().shape
        torch.Size([15, 4])
        >>> decided, state = model.eval().step(torch.randn(3, 10), None, max_vacuity=0.9)
        >>> decided.label.shape, state.shape
        (torch.Size([3]), torch.Size([1, 3, 16]))
    """

    def __init__(
        self, frames: FrameMemory, walk: NBSR, density: DensityFactor | None = None, judged: Judged = "frame"
    ) -> None:
        super().__init__(frames, density, judged)
        if walk.oracle_dim != frames.oracle_dim:
            raise InputError(f"the walk needs oracle_dim {frames.oracle_dim} like the memory, got {walk.oracle_dim}")
        if walk.density is not None:
            raise InputError("give the density factor to NBSRMem, which judges frames, not to its walk")
        self.walk = walk

    def set_temperature(self, tau: float) -> None:
        """Temperature of the Gumbel-softmax from now on."""
        self.walk.set_temperature(tau)

    def forward(self, x: Float[Tensor, "B T ..."], seen: Bool[Tensor, "B T"] | None = None) -> BeliefTrace:
        """Walk every step (only those `seen`) to full depth."""
        known: Recollection = self.frames(x, seen)
        chosen = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if seen is None else seen
        closeness = self.closeness(x[chosen], known.features[chosen])
        trace: BeliefTrace = self.walk(known.oracle[chosen], closeness=closeness)
        return trace

    @torch.inference_mode()
    def step(
        self,
        frames: Float[Tensor, "B ..."],
        state: State | None,
        *,
        eta: float | None = None,
        max_vacuity: float | None = None,
    ) -> tuple[Prediction, State | None]:
        """Decide one step of B episodes: what to do, at what depth, whether to halt; and the memory for the next."""
        known: Recollection = self.frames(frames.unsqueeze(1), None, state)
        closeness = self.closeness(frames, known.features[:, 0])
        decided = self.walk.predict(known.oracle[:, 0], eta=eta, max_vacuity=max_vacuity, closeness=closeness)
        return decided, known.state


@dataclass(frozen=True, eq=False)
class ClassifiedStep:
    """What a classifier says of one step of N episodes.

    Attributes:
        closeness: of the frames to those of the training; None without a density factor.
    """

    probs: Float[Tensor, "N K"]
    closeness: Float[Tensor, " N"] | None


class MemoryClassifier(FrameJudge):
    """The baseline: the same frames and memory with a linear softmax on top (CNN-GRU; CNN without memory).

    A density factor changes nothing of what it says, since there is no evidence to scale; it says how close frames are.
    """

    def __init__(
        self, frames: FrameMemory, num_classes: int, density: DensityFactor | None = None, judged: Judged = "frame"
    ) -> None:
        super().__init__(frames, density, judged)
        self.head = nn.Linear(frames.oracle_dim, num_classes)

    def forward(self, x: Float[Tensor, "B T ..."], seen: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "N K"]:
        """Logits of every step (only those `seen`), those of an episode side by side."""
        oracle = self.frames(x, seen).oracle
        logits: Tensor = self.head(oracle.flatten(0, 1) if seen is None else oracle[seen])
        return logits

    @torch.inference_mode()
    def step(self, frames: Float[Tensor, "B ..."], state: State | None) -> tuple[ClassifiedStep, State | None]:
        """What it says of one step, and the memory for the next."""
        known: Recollection = self.frames(frames.unsqueeze(1), None, state)
        probs = self.head(known.oracle[:, 0]).softmax(-1)
        return ClassifiedStep(probs, self.closeness(frames, known.features[:, 0])), known.state
