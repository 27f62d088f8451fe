"""What a search proposed, and which of it is worth a second look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Proposal:
    """One point that a search tried: its number, what became of it, its parameters and objectives.

    Attributes:
        feasible: whether it keeps all constraints of the search.
    """

    number: int
    state: str
    parameters: Mapping[str, Any]
    values: Sequence[float]
    key: str
    feasible: bool = True


def promising(members: Sequence[Proposal], directions: Sequence[str], most: int) -> list[Proposal]:
    """At most so many members of a Pareto set that stand for all of it, in the order of their numbers.

    The best in each objective come first; then always the one that is furthest from those that are chosen, with every
    objective scaled to its range. Nobody's taste is in it, and the same search gives the same choice.
    """
    if len(members) <= most:
        return list(members)
    signs = np.array([-1.0 if direction == "maximize" else 1.0 for direction in directions])
    values = np.array([proposal.values for proposal in members]) * signs  # [members, objectives], less is better
    span = np.ptp(values, axis=0)
    scaled = (values - values.min(axis=0)) / np.where(span > 0, span, 1.0)
    chosen = list(dict.fromkeys(int(column.argmin()) for column in scaled.T))[:most]
    while len(chosen) < most:
        gaps = np.linalg.norm(scaled[:, None] - scaled[chosen], axis=-1).min(axis=1)
        gaps[chosen] = -1.0
        chosen.append(int(gaps.argmax()))
    return [members[index] for index in sorted(chosen)]
