"""The paper's keyframe task: four frames of a corridor, a cue in the first, a wall in the last, amnesia between.

Frames are abstract, not walked through. The appendix names four channels (floor, agent, left cue, right cue) and uses
the fourth both for the right cue and for the alien "never present in training"; here the alien has a channel of its
own. Without noise there are three distinct sequences in all, so that a test set of 1,000 tests three things; with
noise on every channel, the alien's included, each frame is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.domains.navigation.world import VIEW

STEPS = 4
CHANNELS = ("floor", "agent", "left cue", "right cue", "alien")
UP, LEFT, RIGHT = 0, 2, 3
CENTRE, AHEAD = (2, 2), (1, 2)
LEFT_SIGN, RIGHT_SIGN = (2, 0), (2, 4)

Encounter = Literal["overlay", "replacing"]


@dataclass(frozen=True, eq=False)
class Keyframes:
    """Sequences of four frames, and what the expert does at each."""

    x: Float[Tensor, "N 4 5 5 5"]
    y: Int[Tensor, "N 4"]


def keyframes(count: int, generator: torch.Generator, complex_share: float = 0.7) -> Keyframes:
    """Noise-free sequences: straight on where nothing was shown, else the turn that the first frame's sign said."""
    complex_ = torch.rand(count, generator=generator) < complex_share
    goes_left = torch.rand(count, generator=generator) < 0.5
    x = torch.zeros(count, STEPS, len(CHANNELS), VIEW, VIEW)
    x[:, :, 0] = 1.0
    x[:, :, 1, CENTRE[0], CENTRE[1]] = 1.0
    x[complex_ & goes_left, 0, 2, LEFT_SIGN[0], LEFT_SIGN[1]] = 1.0
    x[complex_ & ~goes_left, 0, 3, RIGHT_SIGN[0], RIGHT_SIGN[1]] = 1.0
    x[complex_, -1, 0, AHEAD[0], AHEAD[1]] = 0.0
    y = torch.full((count, STEPS), UP)
    y[complex_ & goes_left, -1] = LEFT
    y[complex_ & ~goes_left, -1] = RIGHT
    return Keyframes(x, y)


def add_noise(x: Float[Tensor, "*batch"], generator: torch.Generator, deviation: float) -> Float[Tensor, "*batch"]:
    """Gaussian noise on every value of every channel."""
    return x + deviation * torch.randn(x.shape, generator=generator) if deviation else x


def meet_alien(
    x: Float[Tensor, "N 4 5 5 5"], generator: torch.Generator, encounter: Encounter, brightness: float
) -> tuple[Float[Tensor, "N 4 5 5 5"], Int[Tensor, " N"]]:
    """Put an alien ahead of the agent in one frame of each sequence; returns the sequences and which frame it is.

    `overlay` leaves all else as it was; `replacing` takes away what stood in that cell (floor or wall) and the cues.
    """
    x, rows = x.clone(), torch.arange(len(x))
    when = torch.randint(0, STEPS, (len(x),), generator=generator)
    if encounter == "replacing":
        x[rows, when, 0, AHEAD[0], AHEAD[1]] = 0.0
        x[rows, when, 2:4] = 0.0
    x[rows, when, CHANNELS.index("alien"), AHEAD[0], AHEAD[1]] += brightness
    return x, when
