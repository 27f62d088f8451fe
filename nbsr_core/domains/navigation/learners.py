"""Behavioural cloning through time: each step of an episode is a classification, the gradient goes back over all.

To whoever asks, a split of episodes is a split of steps: probabilities, labels, features and walks have one row for
each step that an episode really has, those of an episode side by side. So steps are judged as the samples of any other
domain are.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nbsr_core.domains.navigation.dagger import DaggerOptions, EpisodeBatches
from nbsr_core.domains.navigation.rollout import Decision, run_episodes
from nbsr_core.domains.navigation.tasks import NavigationSplits
from nbsr_core.domains.navigation.world import VIEW
from nbsr_core.learning import Batches, TrainingConfig
from nbsr_core.learning.learners import Classifier, Execution, Inside, NbsrLearner, TorchLearner
from nbsr_core.learning.references.dropout import McDropout
from nbsr_core.learning.references.ensemble import Ensemble
from nbsr_core.learning.references.evidential import EvidentialClassifier
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.memory import ClassifiedStep, FrameJudge, MemoryClassifier, NBSRMem
from nbsr_core.model.network import NBSR, evaluating
from nbsr_core.options.specs import ObjectiveWeights
from nbsr_core.trace.belief_trace import BeliefTrace

# Episodes that are looked at together when a whole split is judged.
CHUNK = 512


def as_episodes(x: Tensor) -> Float[Tensor, "N T C view view"]:
    """Frames as episodes; rows of plain numbers (a table of single frames) are episodes of one step."""
    return x.reshape(len(x), -1, x.shape[1] // VIEW**2, VIEW, VIEW) if x.ndim == 2 else x


def seen_in(x: Float[Tensor, "N T C view view"]) -> Bool[Tensor, "N T"]:
    """Which frames there were: those after an episode's end are NaN."""
    return ~x[:, :, 0, 0, 0].isnan()


class CloningLearner(TorchLearner):
    """A policy trained on episodes: `x` is [N, T, C, 5, 5], `y` is [N, T], NaN and -1 after an episode's end."""

    module: FrameJudge
    has_features = True

    def __init__(self, module: FrameJudge, dagger: DaggerOptions, **of_kind: Any) -> None:
        super().__init__(module, **of_kind)
        self.dagger = dagger
        self.episodes: EpisodeBatches | None = None

    def batches(self, splits: Splits, config: TrainingConfig, execution: Execution) -> Batches:
        beside = None if execution.checkpoint is None else execution.checkpoint.with_suffix(".episodes")
        maps = splits.maps.get("train") if isinstance(splits, NavigationSplits) else None
        self.episodes = EpisodeBatches(
            splits.train, config.batch_size, config.epochs, self.dagger, self, maps, beside, execution.shard
        )
        return self.episodes

    def grows(self, config: TrainingConfig) -> bool:
        """Not where episodes are gathered: rounds are spread over all epochs."""
        return super().grows(config) and not self.dagger.rounds

    @torch.no_grad()
    def finish(self, splits: Splits) -> None:
        """Fit the density factor, if there is one, to all frames of the training."""
        if self.module.density is None:
            return
        known = [splits.train, *(self.episodes.gathered.values() if self.episodes is not None else ())]
        frames, actions = (torch.cat(parts) for parts in zip(*map(_steps, known), strict=True))
        fresh = _steps(self._fresh(splits))[0]
        with evaluating(self.module):
            self.module.fit_density(*(part.to(self.device) for part in (frames, actions, fresh)))

    def _fresh(self, splits: Splits) -> Split:
        """Frames that were not trained on, as the agent itself meets them: its own ways on the validation maps."""
        if not isinstance(splits, NavigationSplits) or "valid" not in splits.maps:
            return splits.valid
        walked = run_episodes(self, splits.maps["valid"])
        return Split(walked.frames, walked.expert)

    @abstractmethod
    def decide(
        self, frames: Float[Tensor, "N C view view"], state: Any, eta: float | None, max_vacuity: float | None
    ) -> tuple[Decision, Any]:
        """One step in use, see `rollout.Policy`."""

    @abstractmethod
    def doubts(self, x: Float[Tensor, "N T C view view"], eta: float | None = None) -> Float[Tensor, " steps"]:
        """What is compared with the limit above which it halts, for every step."""

    def labels(self, y: Int[Tensor, "N T"]) -> Int[Tensor, " steps"]:
        return y[y >= 0]

    def macs(self, x: Tensor) -> float | None:
        """Not counted: episodes differ in length."""
        return None

    def _oracle(self, x: Tensor) -> Float[Tensor, "steps d"]:
        """What each step is decided on: the memory, or the features of the frame where there is none."""

        def remember(episodes: Tensor) -> Tensor:
            seen = seen_in(episodes)
            oracle: Tensor = self.module.frames(episodes, seen).oracle[seen]
            return oracle

        return torch.cat([self.by_chunks(remember, part) for part in as_episodes(x).split(CHUNK)])

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device


class OfSeenSteps(nn.Module):
    """A policy's module, or a wrapping of it, that is asked about the seen steps of a batch alone."""

    def __init__(self, module: nn.Module, seen: Bool[Tensor, "N T"]) -> None:
        super().__init__()
        self.module, self.seen = module, seen

    def forward(self, x: Float[Tensor, "N T C view view"]) -> Any:
        """Logits, or walks, one row per step."""
        return self.module(x, self.seen)


class ClonedClassifier(CloningLearner, Classifier):
    """CNN and CNN-GRU: cross-entropy at every step. They halt where their doubt is above a limit, as NBSR does.

    With a density factor the doubt of a step is `1 - closeness` of its frame, a vacuity: the same factor, fitted by the
    same code, takes NBSR's evidence away and its vacuity to 1 where it falls to 0. Without one it is `1 - confidence`.
    """

    module: MemoryClassifier

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        return super().loss(OfSeenSteps(module, seen_in(x)), x, y, epoch)

    def inside(self, x: Tensor) -> Inside:
        """What the head reads at every step, and the logits that it makes of it."""
        oracle = self._oracle(x)
        return Inside(oracle, self.by_chunks(self.module.head, oracle))

    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "steps K"]:
        return self.by_chunks(lambda part: self.probabilities_of(self.module.head(part)), self._oracle(x))

    def decide(
        self, frames: Float[Tensor, "N C view view"], state: Any, eta: float | None, max_vacuity: float | None
    ) -> tuple[Decision, Any]:
        said, state = self.step(frames, state)
        action, doubt = said.probs.argmax(-1), self._doubt(said)
        halted = torch.zeros_like(action, dtype=torch.bool) if max_vacuity is None else doubt > max_vacuity
        return Decision(action, halted, torch.zeros_like(action)), state

    def step(self, frames: Float[Tensor, "N C view view"], state: Any) -> tuple[ClassifiedStep, Any]:
        """What it says of one step as it is used, calibrated where it is; and the memory for the next."""
        frames = frames.to(self.device)
        with evaluating(self.module), torch.inference_mode():
            known = self.module.frames(frames.unsqueeze(1), None, state)
            raw = self.probabilities_of(self.module.head(known.oracle[:, 0]))
            closeness = self.module.closeness(frames, known.features[:, 0])
        probs = self._calibrated(raw.cpu())
        return ClassifiedStep(probs, None if closeness is None else closeness.cpu()), known.state

    def classify(self, x: Float[Tensor, "N T C view view"]) -> ClassifiedStep:
        """The same for every step of whole episodes, one row per step."""
        closeness = None
        if self.module.density is not None and self.module.density.fitted:
            closeness = self.by_chunks(self._closeness, x[seen_in(x)])
        return ClassifiedStep(self.probabilities(x), closeness)

    def doubts(self, x: Float[Tensor, "N T C view view"], eta: float | None = None) -> Float[Tensor, " steps"]:
        return self._doubt(self.classify(x))

    def _closeness(self, frames: Float[Tensor, "N C view view"]) -> Float[Tensor, " N"]:
        found = self.module.closeness(frames)
        assert found is not None
        return found

    def _doubt(self, said: ClassifiedStep) -> Float[Tensor, " steps"]:
        if not self.knows_vacuity:
            return 1 - said.probs.amax(-1)
        # As long as the factor is not fitted, nothing is doubted: NBSR's evidence is whole then.
        return said.probs.new_zeros(len(said.probs)) if said.closeness is None else 1 - said.closeness

    @property
    def knows_vacuity(self) -> bool:
        """Whether it halts by a density factor; otherwise by its confidence."""
        return self.module.density is not None

    @property
    def ignores(self) -> dict[str, str]:
        doubt = {"evaluation.doubt": "agents doubt by their density factor or, without one, by their confidence"}
        return super().ignores | doubt


class ClonedEvidential(ClonedClassifier, EvidentialClassifier):
    """An evidential policy."""

    has_features = False  # its frames are judged by the density factor, as those of every policy


class ClonedEnsemble(ClonedClassifier, Ensemble):
    """A deep ensemble of policies; each remembers for itself."""

    has_features = False


class ClonedDropout(ClonedClassifier, McDropout):
    """A policy with Monte Carlo dropout."""

    has_features = False
    at_once = CHUNK


class ClonedNbsr(CloningLearner, NbsrLearner):
    """NBSR with or without memory: the objective at every step. Its walks are those of the steps."""

    module: NBSRMem

    def __init__(
        self,
        module: NBSRMem,
        objective: ObjectiveWeights,
        admissible: Bool[Tensor, "nodes K"] | None,
        dagger: DaggerOptions,
    ) -> None:
        TorchLearner.__init__(self, module)  # not NbsrLearner's: the walk is a part of the module
        self.dagger, self.episodes = dagger, None
        self.objective, self.admissible = objective, admissible

    @property
    def model(self) -> NBSR:
        """The walk that follows the memory."""
        return self.module.walk

    @model.setter
    def model(self, walk: NBSR) -> None:
        self.module.walk = walk

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        return super().loss(OfSeenSteps(module, seen_in(x)), x, y, epoch)

    @torch.no_grad()
    def trace(self, x: Tensor) -> BeliefTrace:
        """The walks behind every step, one row per step."""
        with evaluating(self.module):
            parts = [part.to(self.device) for part in as_episodes(x).split(CHUNK)]
            return BeliefTrace.concat([self.module(part, seen_in(part)).detach() for part in parts])

    def _oracles(self, x: Tensor) -> list[Float[Tensor, "steps _"]]:
        return [self._oracle(x)]

    def doubts(self, x: Float[Tensor, "N T C view view"], eta: float | None = None) -> Float[Tensor, " steps"]:
        """The vacuity where the walk stops."""
        return self.trace(x).exit(eta).vacuity.cpu()

    def decide(
        self, frames: Float[Tensor, "N C view view"], state: Any, eta: float | None, max_vacuity: float | None
    ) -> tuple[Decision, Any]:
        with evaluating(self.module):
            said, state = self.module.step(frames.to(self.device), state, eta=eta, max_vacuity=max_vacuity)
        return Decision(said.label.cpu(), said.abstained.cpu(), said.depth.cpu()), state

    @property
    def ignores(self) -> dict[str, str]:
        return super().ignores | {"evaluation.audits": "whole episodes are told instead, by nbsr explain"}


def _steps(split: Split) -> tuple[Float[Tensor, "steps C view view"], Int[Tensor, " steps"]]:
    """All frames that were really seen, and the expert's action there."""
    seen = split.y >= 0
    return split.x[seen], split.y[seen]
