"""Behavioural cloning through time: each step of an episode is a classification, the gradient goes back over all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nbsr_core.domains.navigation.dagger import DaggerOptions, EpisodeBatches
from nbsr_core.domains.navigation.rollout import Decision, run_episodes
from nbsr_core.domains.navigation.tasks import NavigationSplits
from nbsr_core.domains.navigation.world import VIEW
from nbsr_core.learning import Batches, TrainingConfig
from nbsr_core.learning.learners import Answers, Classifier, Execution, TorchLearner, answers_of_walks, ignored_by_walk
from nbsr_core.learning.objectives import weighted_terms
from nbsr_core.learning.references.dropout import McDropout
from nbsr_core.learning.references.ensemble import Ensemble
from nbsr_core.learning.references.evidential import EvidentialClassifier
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.memory import ClassifiedStep, FrameJudge, MemoryClassifier, NBSRMem
from nbsr_core.model.network import evaluating
from nbsr_core.options.specs import ObjectiveWeights
from nbsr_core.trace.belief_trace import BeliefTrace

# Episodes that are looked at together when a whole split is judged.
CHUNK = 512


def as_episodes(x: Tensor) -> Float[Tensor, "N T C view view"]:
    """Frames as episodes; rows of plain numbers (a table of single frames) are episodes of one step."""
    return x.reshape(len(x), -1, x.shape[1] // VIEW**2, VIEW, VIEW) if x.ndim == 2 else x


class CloningLearner(TorchLearner):
    """A policy trained on episodes: `x` is [N, T, C, 5, 5], `y` is [N, T] with -1 after an episode's end."""

    module: FrameJudge

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

    @property
    @abstractmethod
    def knows_vacuity(self) -> bool:
        """Whether it halts by `max_vacuity`; others have a threshold of their own, see `halting_limit`."""

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
    def step_probabilities(
        self, x: Float[Tensor, "N T C view view"], seen: Bool[Tensor, "N T"]
    ) -> Float[Tensor, "steps K"]:
        """Probabilities of every seen step before calibration, those of an episode side by side."""

    @abstractmethod
    def decide(
        self, frames: Float[Tensor, "N C view view"], state: Any, eta: float | None, max_vacuity: float | None
    ) -> tuple[Decision, Any]:
        """One step in use, see `rollout.Policy`."""

    @torch.no_grad()
    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "steps K"]:
        """Class probabilities of every step of every episode at full effort, one row per step."""
        episodes = as_episodes(x)
        return self._of_split(episodes, torch.ones(episodes.shape[:2], dtype=torch.bool))

    @torch.no_grad()
    def _of_split(self, x: Tensor, seen: Tensor) -> Float[Tensor, "steps K"]:
        parts = zip(x.split(CHUNK), seen.split(CHUNK), strict=True)
        return torch.cat([self.step_probabilities(frames, there) for frames, there in parts])

    def answers(self, split: Split) -> Answers:
        """For every step that an episode really has, beside the expert's action."""
        raw = self._of_split(split.x, split.y >= 0)
        return Answers(self._calibrated(raw), raw, self.labels(split.y))

    def labels(self, y: Int[Tensor, "N T"]) -> Int[Tensor, " steps"]:
        """The expert's action at every step that an episode really has."""
        return y[y >= 0]

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device


class OfSeenSteps(nn.Module):
    """A policy's module, or a wrapping of it, that is asked about the seen steps of a batch alone."""

    def __init__(self, module: nn.Module, seen: Bool[Tensor, "N T"]) -> None:
        super().__init__()
        self.module, self.seen = module, seen

    def forward(self, x: Float[Tensor, "N T C view view"]) -> Tensor:
        said: Tensor = self.module(x, self.seen)
        return said


class ClonedClassifier(CloningLearner, Classifier):
    """CNN and CNN-GRU: cross-entropy at every step. They halt where their doubt is above a limit, as NBSR does.

    With a density factor the doubt of a step is `1 - closeness` of its frame, and the limit is `max_vacuity`: the same
    factor, fitted by the same code, takes NBSR's evidence away and its vacuity to 1 where it falls to 0. Without one
    the doubt is `1 - confidence`, and the limit follows from the validation steps (`evaluation.halting_limit`).
    """

    has_features = False  # frames are judged by a density factor, not by detectors

    def __init__(self, module: MemoryClassifier, dagger: DaggerOptions, **of_kind: Any) -> None:
        super().__init__(module, dagger, **of_kind)
        self.model = module

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        return super().loss(OfSeenSteps(module, y >= 0), x, y, epoch)

    def step_probabilities(
        self, x: Float[Tensor, "N T C view view"], seen: Bool[Tensor, "N T"]
    ) -> Float[Tensor, "steps K"]:
        with evaluating(self.model):
            return self.probabilities_of(self.model(x.to(self.device), seen.to(self.device))).cpu()

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
        with evaluating(self.model), torch.inference_mode():
            known = self.model.frames(frames.unsqueeze(1), None, state)
            raw = self.probabilities_of(self.model.head(known.oracle[:, 0]))
            closeness = self.model.closeness(frames, known.features[:, 0])
        probs = self._calibrated(raw.cpu())
        return ClassifiedStep(probs, None if closeness is None else closeness.cpu()), known.state

    @torch.no_grad()
    def classify(self, x: Float[Tensor, "N T C view view"], seen: Bool[Tensor, "N T"]) -> ClassifiedStep:
        """The same for every seen step of whole episodes, one row per step."""
        probs, closeness = self._calibrated(self._of_split(x, seen)), None
        if self.model.density is not None and self.model.density.fitted:
            closeness = self.by_chunks(self._closeness, x[seen])
        return ClassifiedStep(probs, closeness)

    def doubts(self, x: Float[Tensor, "N T C view view"], seen: Bool[Tensor, "N T"]) -> Float[Tensor, " steps"]:
        """What is compared with the limit above which it halts, for every seen step."""
        return self._doubt(self.classify(x, seen))

    def _closeness(self, frames: Float[Tensor, "N C view view"]) -> Float[Tensor, " N"]:
        found = self.model.closeness(frames)
        assert found is not None
        return found

    def _doubt(self, said: ClassifiedStep) -> Float[Tensor, " steps"]:
        if self.model.density is None:
            return 1 - said.probs.amax(-1)
        # As long as the factor is not fitted, nothing is doubted: NBSR's evidence is whole then.
        return said.probs.new_zeros(len(said.probs)) if said.closeness is None else 1 - said.closeness

    @property
    def knows_vacuity(self) -> bool:
        return self.model.density is not None


class ClonedEvidential(ClonedClassifier, EvidentialClassifier):
    """An evidential policy."""


class ClonedEnsemble(ClonedClassifier, Ensemble):
    """A deep ensemble of policies; each remembers for itself."""


class ClonedDropout(ClonedClassifier, McDropout):
    """A policy with Monte Carlo dropout."""

    at_once = CHUNK


class ClonedNbsr(CloningLearner):
    """NBSR with or without memory: the objective at every step."""

    family = "nbsr"
    walks = True
    knows_vacuity = True

    def __init__(
        self,
        module: NBSRMem,
        objective: ObjectiveWeights,
        admissible: Bool[Tensor, "nodes K"] | None,
        dagger: DaggerOptions,
    ) -> None:
        super().__init__(module, dagger)
        self.model, self.objective, self.admissible = module, objective, admissible

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        seen = y >= 0
        admissible = None if self.admissible is None else self.admissible.to(y.device)
        return weighted_terms(self.objective, module(x, seen), y[seen], epoch=epoch, admissible=admissible)

    @property
    def terms(self) -> tuple[str, ...]:
        return self.objective.terms

    def calibrate(self, split: Split) -> None:
        """One temperature per depth, from every step that an episode really has."""
        self.use_temperatures(())
        seen = split.y >= 0
        self.model.walk.calibrate(self.trace(split.x, seen), split.y[seen])
        self.temperatures = self.model.walk.calibration.found

    def use_temperatures(self, temperatures: Sequence[float]) -> None:
        super().use_temperatures(temperatures)
        self.model.walk.calibration.use(temperatures)

    @torch.no_grad()
    def trace(self, x: Float[Tensor, "N T C view view"], seen: Bool[Tensor, "N T"]) -> BeliefTrace:
        """The walks behind every seen step, one row per step."""
        parts = zip(x.split(CHUNK), seen.split(CHUNK), strict=True)
        with evaluating(self.model):
            walks = [self.model(frames.to(self.device), there.to(self.device)).detach() for frames, there in parts]
        return BeliefTrace.concat(walks)

    def step_probabilities(
        self, x: Float[Tensor, "N T C view view"], seen: Bool[Tensor, "N T"]
    ) -> Float[Tensor, "steps K"]:
        return self.trace(x, seen).raw_probabilities().cpu()

    def probabilities(self, x: Tensor) -> Float[Tensor, "steps K"]:
        episodes = as_episodes(x)
        return self.trace(episodes, torch.ones(episodes.shape[:2], dtype=torch.bool)).probabilities().cpu()

    def answers(self, split: Split) -> Answers:
        seen = split.y >= 0
        return answers_of_walks(self.trace(split.x, seen), split.y[seen])

    def decide(
        self, frames: Float[Tensor, "N C view view"], state: Any, eta: float | None, max_vacuity: float | None
    ) -> tuple[Decision, Any]:
        with evaluating(self.model):
            said, state = self.model.step(frames.to(self.device), state, eta=eta, max_vacuity=max_vacuity)
        return Decision(said.label.cpu(), said.abstained.cpu(), said.depth.cpu()), state

    @property
    def ignores(self) -> dict[str, str]:
        unread = ("evaluation.max_nll_loss", "evaluation.audits", "evaluation.prune")
        not_judged = dict.fromkeys(unread, "navigation does not look at it")
        return super().ignores | ignored_by_walk(self.model.walk) | not_judged


def _steps(split: Split) -> tuple[Float[Tensor, "steps C view view"], Int[Tensor, " steps"]]:
    """All frames that were really seen, and the expert's action there."""
    seen = split.y >= 0
    return split.x[seen], split.y[seen]
