"""How well an agent does: step by step, on whole sequences or maps that it really walks, with aliens and without.

The steps of the expert's held-out ways are classified and judged as the samples of every other domain are: calibration,
conformal sets, withheld answers, walks by depth. Whole sequences are what `success` counts. An agent halts where a
classifier abstains: above a limit that is chosen on validation steps, by the same rule for every model
(`nbsr_core.evaluation.abstention`). A halt on a clean map is a failure like another: whoever halts does not arrive.

Every figure comes twice for NBSR: `test/...` at full depth and `fast/...` with early exits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from nbsr_core import metrics
from nbsr_core.domains.navigation.learners import ClonedClassifier, ClonedNbsr, CloningLearner, seen_in
from nbsr_core.domains.navigation.rollout import OF_AN_EPISODE, run_episodes
from nbsr_core.domains.navigation.tasks import NavigationData, NavigationSplits
from nbsr_core.domains.navigation.world import CHANNELS
from nbsr_core.errors import InputError
from nbsr_core.evaluation.abstention import MAX_DOUBT, NEVER, Use, abstention_figures, threshold
from nbsr_core.evaluation.detectors import detectors_of, fit_detectors, look
from nbsr_core.evaluation.evaluation import (
    Evaluation,
    EvaluationOptions,
    classification_figures,
    evaluate_classification,
    exit_threshold,
)
from nbsr_core.learning.learners import Learner
from nbsr_core.learning.splits import Splits
from nbsr_core.metrics.names import FAST, TEST, TO_THE_END, VALID, named, place

Figures = tuple[str, dict[str, float]]  # of a set, by its name

ALIEN = "alien"
MAX_VACUITY = "max_vacuity"
OF_SEQUENCES = ("success", "right", "halts")
OF_SEPARATION = ("auroc", "fpr95")

# By how much a step may differ in batches of other sizes: steps that are alike shall not fall on both sides of a limit.
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Steps:
    """What an agent says to every keyframe: its action, whether it halts instead, and the depth of its walk."""

    action: Int[Tensor, "N T"]
    halted: Bool[Tensor, "N T"]
    depth: Int[Tensor, "N T"]


@dataclass(frozen=True)
class Policy:
    """A way to use an agent.

    Attributes:
        use: to the end of its walks, or with early exits.
        eta: the threshold of these exits; None for none.
        limit: the vacuity, or doubt, above which it halts; None for never.
    """

    learner: CloningLearner
    use: str
    eta: float | None
    limit: float | None


def evaluate(learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
    """Judge a policy on the held-out part of its task."""
    if not (isinstance(learner, CloningLearner) and isinstance(splits, NavigationSplits)):
        raise InputError(f"navigation judges policies that were cloned for it, got {type(learner).__name__}")
    steps = replace(splits, extra={})  # sequences with an alien have no actions to compare with
    evaluation = evaluate_classification(learner, steps, replace(options, audits=0))
    if isinstance(learner, ClonedClassifier) and learner.knows_vacuity:
        _abstain_by_closeness(evaluation, learner, splits, options)
    _add_separation(evaluation, learner, splits, options)
    judge = _episode_figures if splits.maps else _keyframe_figures
    for use in (TO_THE_END, FAST) if isinstance(learner, ClonedNbsr) else (TO_THE_END,):
        eta = exit_threshold(evaluation.metrics) if use == FAST else None
        policy = Policy(learner, use, eta, _halting_limit(evaluation, use, options))
        for name, figures in judge(policy, splits):
            evaluation.add(place(name, use), figures)
    return evaluation


def navigation_figures(
    data: NavigationData, sets: Sequence[str], learner: Learner, options: EvaluationOptions
) -> set[str]:
    """Names of all figures that `evaluate` may give."""
    walks, moves = isinstance(learner, ClonedNbsr), data.task != "keyframes"
    found = classification_figures(learner, (), options)
    if isinstance(learner, ClonedClassifier) and learner.knows_vacuity and options.max_vacuity != NEVER:
        found = found - named(TEST, (MAX_DOUBT,)) | named(TEST, (MAX_VACUITY,))
    aliens = (ALIEN,) if moves else tuple(sets)
    doubts = ("", *(f"_{detector}" for detector in detectors_of(learner, options.all_detectors)))
    for name in aliens:
        found |= named(name, [f"{figure}{doubt}" for figure in OF_SEPARATION for doubt in doubts])
    of_steps = (*(OF_AN_EPISODE if moves else OF_SEQUENCES), *(("mean_depth",) if walks else ()))
    for use in (TO_THE_END, FAST) if walks else (TO_THE_END,):
        judged = (TEST, ALIEN) if moves and use else (TEST, VALID, ALIEN) if moves else (TEST, VALID)
        found = found.union(*(named(place(name, use), of_steps) for name in judged))
        found = found.union(*(named(place(name, use), ("halts",)) for name in aliens))
    return found


def _abstain_by_closeness(
    evaluation: Evaluation, learner: ClonedClassifier, splits: NavigationSplits, options: EvaluationOptions
) -> None:
    """A classifier with a density factor withholds what it halts at, as NBSR does: by vacuity instead of confidence."""
    if options.max_vacuity == NEVER:
        return
    said = learner.answers(splits.test)
    right = said.probs.argmax(-1) == said.labels
    use = Use(learner.doubts(splits.test.x), right, learner.doubts(splits.valid.x))
    limit = threshold(use.valid, options.answered) if options.max_vacuity is None else options.max_vacuity
    del evaluation.metrics[f"{TEST}/{MAX_DOUBT}"]
    evaluation.add(TEST, {MAX_VACUITY: limit, **abstention_figures(use, limit)})


def _halting_limit(evaluation: Evaluation, use: str, options: EvaluationOptions) -> float | None:
    """Above which vacuity, or doubt, an agent halts; None for never. It is among the figures as it is used."""
    if options.max_vacuity == NEVER:
        return None
    where = place(use=use)
    name = next(name for name in (f"{where}/{MAX_VACUITY}", f"{where}/{MAX_DOUBT}") if name in evaluation.metrics)
    if name.endswith(MAX_DOUBT) or options.max_vacuity is None:
        evaluation.metrics[name] += ROUNDING
    return evaluation.metrics[name]


def _add_separation(
    evaluation: Evaluation, learner: CloningLearner, splits: NavigationSplits, options: EvaluationOptions
) -> None:
    """How well each detector, and the doubt that an agent halts by, tells steps before an alien from clean ones.

    Detectors look at what the last layer reads: the memory, or the features of a frame where there is none. On maps
    steps are those of the agent's own ways, on which it never halts.
    """
    x, aliens = splits.test.x, _aliens(learner, splits)
    if splits.maps:
        x = run_episodes(learner, splits.maps[TEST]).frames
    known, own = look(learner, x), learner.doubts(x)
    detectors = fit_detectors(learner, splits, options)
    for name, (frames, shown) in aliens.items():
        if not bool(shown.any()):  # whoever stays where it is meets nobody
            continue
        unknown = look(learner, frames).rows(shown)
        scores = {"": (-own, -learner.doubts(frames)[shown])}
        scores |= {f"_{detector}": (score(known), score(unknown)) for detector, score in detectors.items()}
        for doubt, (clean, met) in scores.items():
            for figure, compute in (("auroc", metrics.auroc), ("fpr95", metrics.fpr95)):
                evaluation.add(name, {f"{figure}{doubt}": compute(clean.double(), met.double())})


def _aliens(
    learner: CloningLearner, splits: NavigationSplits
) -> dict[str, tuple[Float[Tensor, "N T C view view"], Bool[Tensor, " steps"]]]:
    """By the name of a set: episodes with an alien, and which of their steps show it."""
    if not splits.maps:
        sets = splits.extra.items()
        return {name: (split.x, F.one_hot(split.y, split.x.shape[1]).bool().flatten()) for name, split in sets}
    frames = run_episodes(learner, splits.maps[ALIEN]).frames
    in_view = frames[:, :, CHANNELS.index(ALIEN)].flatten(2).amax(-1) > 0
    return {ALIEN: (frames, in_view[seen_in(frames)])}


def _episode_figures(policy: Policy, splits: NavigationSplits) -> Iterator[Figures]:
    for name in (TEST, VALID, ALIEN) if policy.use == TO_THE_END else (TEST, ALIEN):
        walked = run_episodes(policy.learner, splits.maps[name], eta=policy.eta, max_vacuity=policy.limit)
        yield name, walked.figures()


def _keyframe_figures(policy: Policy, splits: NavigationSplits) -> Iterator[Figures]:
    for name, split in ((TEST, splits.test), (VALID, splits.valid)):
        said = keyframe_steps(policy.learner, split.x, policy.eta, policy.limit)
        right = said.action == split.y
        figures = {
            "success": _share((right & ~said.halted).all(1)),
            "right": _share(right.all(1)),  # what a needless halt takes away from success is no wrong action
            "halts": _share(said.halted),
        }
        if isinstance(policy.learner, ClonedNbsr):
            figures["mean_depth"] = float(said.depth.double().mean())
        yield name, figures
    for name, split in splits.extra.items():
        said = keyframe_steps(policy.learner, split.x, policy.eta, policy.limit)
        yield name, {"halts": _share(said.halted[torch.arange(len(split)), split.y])}


def keyframe_steps(
    learner: CloningLearner, x: Float[Tensor, "N T C view view"], eta: float | None, limit: float | None
) -> Steps:
    """All decisions of all sequences; what was seen before a halt is remembered as if the agent had gone on."""
    shape = x.shape[:2]
    if isinstance(learner, ClonedNbsr):
        said = learner.trace(x).exit(eta, limit)
        return Steps(*(part.cpu().view(shape) for part in (said.label, said.abstained, said.depth)))
    action = learner.probabilities(x).argmax(-1).view(shape)
    halted = torch.zeros_like(action, dtype=torch.bool)
    if limit is not None:
        halted = (learner.doubts(x) > limit).view(shape)
    return Steps(action, halted, torch.zeros_like(action))


def _share(what: Tensor) -> float:
    return float(what.double().mean())
