"""One episode told: where the agent went, whom it asked at each step, what it believed, and where it halted and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nbsr_core.domains.domain import Answer, Question
from nbsr_core.domains.navigation.drawing import animation, episode_svg, map_pixels, view_pixels
from nbsr_core.domains.navigation.evaluation import keyframe_steps
from nbsr_core.domains.navigation.learners import ClonedClassifier, ClonedNbsr, CloningLearner
from nbsr_core.domains.navigation.rollout import run_episodes
from nbsr_core.domains.navigation.tasks import NavigationSplits
from nbsr_core.domains.navigation.world import ACTIONS
from nbsr_core.errors import InputError
from nbsr_core.learning.learners import Learner
from nbsr_core.learning.splits import Splits

HALT = "halt"


@dataclass(frozen=True)
class Stop:
    """One decision.

    Attributes:
        place: row and column on the map; None for keyframes, which have no map.
        does: the action taken, or `halt`.
        expert: what the expert would have done.
        route: experts that were asked, with the router's probability; empty for models that do not route.
        belief: probability of each action where the walk stopped.
        vacuity: share of that belief which is still the prior; None where there is no belief.
        closeness: of the frame to the training frames, where the model judges it.
    """

    step: int
    place: tuple[int, int] | None
    does: str
    expert: str
    route: tuple[tuple[str, float], ...]
    belief: dict[str, float]
    vacuity: float | None
    closeness: float | None

    def line(self) -> str:
        asked = " > ".join(f"{node} {share:.2f}" for node, share in self.route) or "-"
        sure = max(self.belief.values())
        words = f"{self.step:>3}  {self.does:<6} {sure:>6.1%}  {asked}"
        if self.vacuity is not None:
            words += f"  vacuity {self.vacuity:.2f}"
        if self.closeness is not None:
            words += f"  closeness {self.closeness:.2g}"
        return words if self.does in (self.expert, HALT) else f"{words}  (expert: {self.expert})"


@dataclass(frozen=True, eq=False)
class Played:
    """An episode as it went: frames [T, ...], what was done (-1: halted), what the expert would have done, places."""

    title: str
    frames: Tensor
    actions: Tensor
    expert: Tensor
    places: list[tuple[int, int]] | None
    cells: Tensor | None
    outcome: str


def explain_episode(learner: Learner, splits: Splits, question: Question) -> Answer | None:
    """Play one held-out episode and tell it; episodes with an alien follow those without."""
    if not (isinstance(learner, CloningLearner) and isinstance(splits, NavigationSplits)):
        return None
    if question.prompt is not None:
        raise InputError("navigation has no prompt to explain; give an episode")
    number = question.episode if question.episode is not None else question.sample or 0
    play = _play_map if splits.maps else _play_keyframes
    played = play(learner, splits, number, question.eta, question.max_vacuity)
    stops = _stops(learner, played, question)
    text = "\n".join([played.title, *(stop.line() for stop in stops), f"outcome: {played.outcome}"])
    if question.max_vacuity is None:
        text += "\n(this agent never halts)"
    pictures = _pictures(played, stops)
    svg = episode_svg(pictures[-1:] if played.cells is not None else pictures, text.splitlines())
    data = {"title": played.title, "outcome": played.outcome, "steps": [asdict(stop) for stop in stops]}
    if played.cells is not None:
        data["map"] = played.cells.tolist()
    return Answer(text, data, svg, animation(pictures))


def _pick(number: int, sizes: dict[str, int]) -> tuple[str, int]:
    """Which set an episode's number falls into, and its place there."""
    total, rest = sum(sizes.values()), number
    if not 0 <= number < total:
        spans, first = [], 0
        for name, size in sizes.items():
            spans.append(f"{name} {first} to {first + size - 1}")
            first += size
        raise InputError(f"episode must be from 0 to {total - 1} ({', '.join(spans)}), got {number}")
    for name, size in sizes.items():
        if rest < size:
            return name, rest
        rest -= size
    raise AssertionError(number)


def _play_map(
    learner: CloningLearner, splits: NavigationSplits, number: int, eta: float | None, limit: float | None
) -> Played:
    name, index = _pick(number, {name: len(splits.maps[name]) for name in ("test", "alien")})
    maps = splits.maps[name][index : index + 1]
    walked = run_episodes(learner, maps, eta=eta, max_vacuity=limit)
    ends = {
        "reached the goal": walked.on_goal,
        "went through the wrong door": walked.in_trap,
        "crashed into the alien": walked.in_alien,
        "halted": walked.halted,
    }
    outcome = next((words for words, ended in ends.items() if bool(ended)), "lost its way")
    steps = int(walked.steps)
    where = f"held-out map {index}" + (", an alien on the way" if name == "alien" else "")
    return Played(
        title=f"episode {number}: {where}",
        frames=walked.frames[0, :steps],
        actions=walked.actions[0, :steps],
        expert=walked.expert[0, :steps],
        places=[(int(row), int(column)) for row, column in walked.position[0, : steps + 1]],
        cells=maps.cells[0],
        outcome=f"{outcome} after {steps} steps, {int(walked.bumps)} collisions",
    )


def _play_keyframes(
    learner: CloningLearner, splits: NavigationSplits, number: int, eta: float | None, limit: float | None
) -> Played:
    name, index = _pick(number, {"test": len(splits.test), **{n: len(split) for n, split in splits.extra.items()}})
    split = splits.test if name == "test" else splits.extra[name]
    x = split.x[index : index + 1]
    said = keyframe_steps(learner, x, eta, limit)
    halts = said.halted[0].nonzero().flatten().tolist()
    steps = halts[0] + 1 if halts else x.shape[1]
    expert = split.y[index, :steps] if name == "test" else torch.full((steps,), -1)
    actions = said.action[0, :steps].masked_fill(said.halted[0, :steps], -1)
    right = "all actions right" if bool((actions == expert).all()) else "not all actions right"
    outcome = f"halted at frame {steps - 1}" if halts else right if name == "test" else "went on past the alien"
    where = f"held-out sequence {index}" + ("" if name == "test" else f", an alien in frame {int(split.y[index])}")
    return Played(f"episode {number}: {where}", x[0, :steps], actions, expert, None, None, outcome)


def _stops(learner: CloningLearner, played: Played, question: Question) -> list[Stop]:
    episode, steps = played.frames.unsqueeze(0), len(played.frames)
    trace = learner.trace(episode) if isinstance(learner, ClonedNbsr) else None
    if trace is not None:
        said = trace.exit(question.eta, question.max_vacuity)
        probs, closeness, vacuity, depth = said.probs, trace.density, said.vacuity, said.depth
    else:
        assert isinstance(learner, ClonedClassifier)
        classified = learner.classify(episode)
        probs, closeness, vacuity, depth = classified.probs, classified.closeness, None, None
    stops = []
    for step in range(steps):
        asked = () if trace is None or depth is None else trace.audit(step).steps[: int(depth[step])]
        action, expert = int(played.actions[step]), int(played.expert[step])
        stops.append(
            Stop(
                step=step,
                place=None if played.places is None else played.places[step],
                does=HALT if action < 0 else ACTIONS[action],
                expert="-" if expert < 0 else ACTIONS[expert],
                route=tuple((visit.node, visit.route_probability) for visit in asked),
                belief=dict(zip(ACTIONS, probs[step].tolist(), strict=True)),
                vacuity=None if vacuity is None else float(vacuity[step]),
                closeness=None if closeness is None else float(closeness[step]),
            )
        )
    return stops


def _pictures(played: Played, stops: list[Stop]) -> list[NDArray[np.uint8]]:
    """What is to see before each decision, and (on a map) after the last."""
    halted = stops[-1].does == HALT
    if played.cells is None or played.places is None:
        return [view_pixels(frame, halted=stop.does == HALT) for frame, stop in zip(played.frames, stops, strict=True)]
    trails = [played.places[: step + 1] for step in range(len(played.places))]
    return [map_pixels(played.cells, trail, halted=halted and trail is trails[-1]) for trail in trails]
