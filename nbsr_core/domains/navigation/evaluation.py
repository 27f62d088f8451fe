"""How well an agent does: keyframe by keyframe, or on held-out maps that it really walks; with aliens and without.

Every figure comes twice for NBSR: `test/...` at full depth and `fast/...` with early exits. A halt on a clean map is a
failure like another: whoever halts does not arrive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nbsr_core.belief import dirichlet
from nbsr_core.domains.navigation.learners import ClonedClassifier, ClonedNbsr, CloningLearner
from nbsr_core.domains.navigation.rollout import OF_AN_EPISODE, run_episodes
from nbsr_core.domains.navigation.tasks import NavigationData, NavigationSplits
from nbsr_core.errors import InputError
from nbsr_core.evaluation.abstention import MAX_DOUBT, NEVER, threshold
from nbsr_core.evaluation.after_training import temperature_names
from nbsr_core.evaluation.answers import OF_ANSWERS
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions, routing_agreement
from nbsr_core.evaluation.walk_tables import belief_rows, edge_rows, entropy_rows, usage_rows
from nbsr_core.learning.learners import Answers, Learner
from nbsr_core.learning.splits import Splits
from nbsr_core.metrics.names import ETA, FAST, PARAMETERS, TEST, TO_THE_END, VALID, FigureName, named, place
from nbsr_core.trace.belief_trace import BeliefTrace
from nbsr_core.trace.exits import is_vacuous

Figures = tuple[str, dict[str, float]]  # of a set, by its name

# By how much a step may differ in batches of other sizes: steps that are alike shall not fall on both sides of a limit.
ROUNDING = 1e-6

HALTING_WARNING = "max_vacuity is not set: the agent never halts, whatever it meets"


@dataclass(frozen=True, eq=False)
class Steps:
    """What an agent says to every keyframe: its action, whether it halts instead, and the depth of its walk."""

    action: Int[Tensor, "N T"]
    halted: Bool[Tensor, "N T"]
    depth: Int[Tensor, "N T"]


def evaluate(learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
    """Judge a policy on the held-out part of its task."""
    if not (isinstance(learner, CloningLearner) and isinstance(splits, NavigationSplits)):
        raise InputError(f"navigation judges policies that were cloned for it, got {type(learner).__name__}")
    evaluation = Evaluation()
    for name, split in ((TEST, splits.test), (VALID, splits.valid)):
        evaluation.add_answers(name, learner.answers(split))
    evaluation.metrics[PARAMETERS] = float(learner.size)
    eta = _describe_walks(evaluation, learner, splits, options) if isinstance(learner, ClonedNbsr) else None
    uses: dict[str, float | None] = {TO_THE_END: None} if eta is None else {TO_THE_END: None, FAST: eta}
    if options.max_vacuity is None:
        evaluation.warnings.append(HALTING_WARNING)
    limit = halting_limit(learner, splits, options.max_vacuity)
    if limit is not None and not learner.knows_vacuity:
        evaluation.add(TEST, {MAX_DOUBT: limit})
    judge = _episode_figures if splits.maps else _keyframe_figures
    for use, exits_below in uses.items():
        for name, figures in judge(learner, splits, exits_below, limit):
            evaluation.add(place(name, use), figures)
    return evaluation


def halting_limit(learner: CloningLearner, splits: Splits, max_vacuity: float | None) -> float | None:
    """Above which vacuity, or doubt, an agent halts where `max_vacuity` is set so; None for never.

    A vacuity means nothing to a softmax without a density factor. Where others halt, it halts too, above the doubt at
    which 95% of the validation steps are answered, as all classifiers abstain (`nbsr_core.evaluation.abstention`).
    """
    if max_vacuity is None or not isinstance(learner, ClonedClassifier) or learner.knows_vacuity:
        return max_vacuity
    if max_vacuity == NEVER:
        return None
    return threshold(learner.doubts(splits.valid.x, splits.valid.y >= 0)) + ROUNDING


def navigation_figures(
    data: NavigationData, sets: Sequence[str], learner: Learner, options: EvaluationOptions
) -> set[str]:
    """Names of all figures that `evaluate` may give."""
    walks, moves = isinstance(learner, ClonedNbsr), data.task != "keyframes"
    found = {PARAMETERS, *temperature_names(learner, options), *named(TEST, OF_ANSWERS), *named(VALID, OF_ANSWERS)}
    of_steps = (*(OF_AN_EPISODE if moves else ("success", "halts")), *(("mean_depth",) if walks else ()))
    for use in (TO_THE_END, FAST) if walks else (TO_THE_END,):
        judged = (TEST, "alien") if moves and use else (TEST, VALID, "alien") if moves else (TEST, VALID)
        found = found.union(*(named(place(name, use), of_steps) for name in judged))
        found |= {str(FigureName("halts", name, use)) for name in sets}
    if not (isinstance(learner, CloningLearner) and learner.knows_vacuity) and options.max_vacuity not in (None, NEVER):
        found |= named(TEST, (MAX_DOUBT,))
    if walks:
        found |= named(FAST, ("eta", "exited", *OF_ANSWERS))
        found |= named(TEST, ("vacuity", "routing_agreement"))
    return found


def _episode_figures(
    learner: CloningLearner, splits: NavigationSplits, eta: float | None, limit: float | None
) -> Iterator[Figures]:
    for name in ("test", "valid", "alien") if eta is None else ("test", "alien"):
        walked = run_episodes(learner, splits.maps[name], eta=eta, max_vacuity=limit)
        yield name, walked.figures()


def _keyframe_figures(
    learner: CloningLearner, splits: NavigationSplits, eta: float | None, limit: float | None
) -> Iterator[Figures]:
    for name, split in (("test", splits.test), ("valid", splits.valid)):
        said = keyframe_steps(learner, split.x, eta, limit)
        figures = {
            "success": _share(((said.action == split.y) & ~said.halted).all(1)),
            "halts": _share(said.halted),
        }
        if isinstance(learner, ClonedNbsr):
            figures["mean_depth"] = float(said.depth.double().mean())
        yield name, figures
    for name, split in splits.extra.items():
        said = keyframe_steps(learner, split.x, eta, limit)
        yield name, {"halts": _share(said.halted[torch.arange(len(split)), split.y])}


def keyframe_steps(learner: CloningLearner, x: Tensor, eta: float | None, limit: float | None) -> Steps:
    """All decisions of all sequences; what was seen before a halt is remembered as if the agent had gone on."""
    shape = x.shape[:2]
    if isinstance(learner, ClonedNbsr):
        said = learner.trace(x, torch.ones(shape, dtype=torch.bool)).exit(eta, limit)
        return Steps(*(part.cpu().view(shape) for part in (said.label, said.abstained, said.depth)))
    action = learner.probabilities(x).argmax(-1).view(shape)
    halted = torch.zeros_like(action, dtype=torch.bool)
    if limit is not None and isinstance(learner, ClonedClassifier):
        halted = (learner.doubts(x, torch.ones(shape, dtype=torch.bool)) > limit).view(shape)
    return Steps(action, halted, torch.zeros_like(action))


def _describe_walks(
    evaluation: Evaluation, learner: ClonedNbsr, splits: NavigationSplits, options: EvaluationOptions
) -> float:
    """Tables of the walks behind held-out steps; returns the threshold of the Fast use, chosen on validation steps."""

    def walks(name: str) -> tuple[BeliefTrace, Tensor]:
        split = splits.test if name == "test" else splits.valid
        seen = split.y >= 0
        return learner.trace(split.x, seen), split.y[seen]

    (trace, actions), (valid, valid_actions) = walks("test"), walks("valid")
    walk, eta = learner.model.walk, options.eta
    if eta is None:
        eta = valid.frontier(valid_actions).cheapest(options.max_accuracy_loss)
    elif is_vacuous(eta, walk.prior):
        highest = float(dirichlet.entropy(walk.prior))
        evaluation.warnings.append(f"eta = {eta:g} is no test: the prior's own entropy is {highest:.2f}")
    if math.isfinite(eta):
        evaluation.metrics[ETA] = eta
    stopped = trace.exit(eta)
    said = Answers(stopped.probs, trace.raw_probabilities(stopped.depth), actions)
    evaluation.add_answers(TEST, said, FAST)
    evaluation.add(FAST, {"exited": _share(stopped.depth < trace.length)})
    of_walks = {"vacuity": float((trace.prior.sum() / trace.precision[-1]).mean())}
    if learner.admissible is not None:
        of_walks["routing_agreement"] = routing_agreement(trace, actions, learner.admissible)
    evaluation.add(TEST, of_walks)
    evaluation.tables["frontier"] = list(map(dict, trace.frontier(actions, options.etas).rows()))
    evaluation.tables["belief"] = belief_rows(trace)
    evaluation.tables["entropy"] = entropy_rows({"test": trace})
    evaluation.tables["usage"] = usage_rows(trace)
    evaluation.tables["edges"] = edge_rows(trace)
    return eta


def _share(what: Tensor) -> float:
    return float(what.double().mean())
