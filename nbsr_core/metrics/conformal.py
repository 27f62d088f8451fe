"""Sets of classes that hold the true one as often as promised, whatever the model: split conformal prediction.

The score of a class is the probability of all classes that the model finds more probable (adaptive prediction sets;
Romano, Sesia and Candès, 2020). Validation samples say how large the score of a true class may be, and a set holds the
classes up to that limit: one class where the model is sure, several where it is not. If samples to come are drawn like
the validation samples, their sets hold the true class with a probability of at least the level, however wrong the
probabilities are. A better model needs smaller sets for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core._checks import whole_number
from nbsr_core.errors import InputError
from nbsr_core.metrics.checks import checked, checked_probs, checked_share

OF_CONFORMAL = ("set_coverage", "set_size", "empty_sets", "singleton_sets")

_OF_VALIDATION, _OF_SETS = 0, 1  # streams of random numbers: those of the sets know nothing of the validation samples'


@dataclass(frozen=True)
class ConformalSets:
    """The rule that makes sets of classes, see `conformal_sets`.

    Attributes:
        level: how often a set holds the true class, at least.
        limit: the largest score of a class that is in a set; infinite where all classes are.
        classes: how many there are.
        samples: how many validation samples the limit was learned from.
        seed: of the random numbers; None for sets without chance.
    """

    level: float
    limit: float
    classes: int
    samples: int
    seed: int | None = None

    @property
    def supported(self) -> bool:
        """Whether the validation samples are enough for the level; where they are not, all sets are full.

        The level 0.9 takes 9 samples, 0.99 takes 99: fewer cannot rule out that the next score is above all of theirs.
        """
        return self.limit < inf

    def sets(self, probs: Float[Tensor, "N K"]) -> Bool[Tensor, "N K"]:
        """Which classes are in the set of each sample. With a seed, equal calls give equal sets."""
        probs = checked_probs(probs)
        if probs.shape[1] != self.classes:
            raise InputError(f"probs have {probs.shape[1]} classes; {self.classes} expected, as in validation")
        return _scores(probs, self.seed, _OF_SETS) <= self.limit

    def figures(self, probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> dict[str, float]:
        """How good the sets of these samples are, by the names of `OF_CONFORMAL`.

        `set_coverage` is the share of the sets that hold the true class: near the level, it shows that the promise is
        kept, and more of it is no merit. `set_size` is the mean number of classes, of which fewer are better.
        """
        probs, labels = checked(probs, labels)
        sets = self.sets(probs)
        size = sets.sum(dim=1)
        return {
            "set_coverage": sets.gather(1, labels[:, None]).double().mean().item(),
            "set_size": size.double().mean().item(),
            "empty_sets": (size == 0).double().mean().item(),
            "singleton_sets": (size == 1).double().mean().item(),
        }


def conformal_sets(
    probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"], level: float = 0.9, *, seed: int | None = None
) -> ConformalSets:
    """Learn from validation samples which classes belong in a set.

    The limit is the ceil((N + 1) level)-th smallest score of a true class: one more than N, because the sample to come
    is as likely to stand at any of the N + 1 places.

    Without a seed (the default) a class counts with the mass above it alone. The most probable class has the score 0,
    so no set is empty, every set holds the model's answer, and the same sample always has the same set: what somebody
    who is shown a set expects. The price is that the sets hold the true class more often than the level asks where the
    answers alone do so already: where 97% of the validation answers are right, sets for the level 0.9 are the answers.

    With a seed a class counts with the mass above it and a random part of its own. Scores are then hardly ever equal,
    and sets hold the true class as often as the level says, up to 1 / (N + 1): models that are all more accurate than
    the level can still be compared by the size of their sets. Some sets are then empty.

    Args:
        probs: of validation samples that the model was not trained on.
        labels: their true classes.
        level: how often a set shall hold the true class.
        seed: of the random numbers, for sets that are exact; None for sets without chance.
    """
    probs, labels = checked(probs, labels)
    level = checked_share(level, "level", 0.9)
    seed = None if seed is None else whole_number("seed", seed, 0)
    samples, classes = probs.shape
    scores = _scores(probs, seed, _OF_VALIDATION).gather(1, labels[:, None]).squeeze(1)
    place = ceil((samples + 1) * Fraction(str(level)))  # as written: 100 * 0.55 is above 55 in floats
    limit = scores.kthvalue(place).values.item() if place <= samples else inf
    return ConformalSets(level, limit, classes, samples, seed)


def _scores(probs: Float[Tensor, "N K"], seed: int | None, stream: int) -> Float[Tensor, "N K"]:
    """The mass of all classes that are more probable, and with a seed a random part of the class's own.

    Equally probable classes have equal scores, with a part of the mass that they have together: the numbers that
    classes happen to have never matter.
    """
    ordered, order = probs.sort(dim=1, descending=True)
    before = torch.nn.functional.pad(ordered.cumsum(dim=1)[:, :-1], (1, 0))
    differs = torch.nn.functional.pad(ordered.diff(dim=1) != 0, (1, 0))
    first = (differs * torch.arange(probs.shape[1])).cummax(dim=1).values  # the place of the first equal class
    scores = before.gather(1, first)
    if seed is not None:
        equals = torch.zeros_like(first).scatter_add(1, first, torch.ones_like(first)).gather(1, first)
        part = torch.from_numpy(np.random.default_rng([seed, stream]).random(len(probs)))
        scores = scores + part[:, None] * (equals * ordered)
    return torch.zeros_like(scores).scatter(1, order, scores)
