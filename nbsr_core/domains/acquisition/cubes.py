"""Tables that are drawn rather than read, on which it is known what planning is worth: CUBE and its relatives.

Each of 8 classes has a code of three bits, least significant first. Class y shows its code at the features y, y+1 and
y+2 of a block, with a deviation; every other feature is noise around 0.5 and looks like a bit that could not decide.
So a feature tells something about three classes only, and what to buy next depends on what was seen.

In CUBE-NM there are five such blocks, and only one of them carries the code: which one, says the context, a panel that
tells nothing about the class by itself. Whoever buys what tells most at once does not buy it first, and pays for
features of the wrong blocks. The tasks are those of AFABench (arXiv 2508.14734).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.errors import InputError

CLASSES, BITS, BLOCK = 8, 3, 10
NOISE_MEAN, NOISE_DEVIATION, CONTEXT_DEVIATION = 0.5, 0.3, 0.1


@dataclass(frozen=True)
class Cube:
    """A family of tables: blocks of features, and which of them show the class.

    Attributes:
        carriers: for each context, one list of the features at which blocks with the code begin; one context that
            nobody has to buy where there is only one list.
        num_features: number of columns beside those of the context.
        deviation: of the features that show a bit.
        prices: of the features, one each; the context, a single panel of as many columns as there are contexts,
            costs 1.
        budgets: what the benchmark lets a policy spend.
    """

    carriers: tuple[tuple[int, ...], ...]
    num_features: int
    deviation: float
    prices: tuple[float, ...]
    budgets: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.deviation) and self.deviation > 0):
            raise InputError(f"deviation must be a finite number > 0, got {self.deviation!r}")

    @property
    def contexts(self) -> int:
        """How many contexts there are; with one, there is no context to buy."""
        return len(self.carriers)

    @property
    def panels(self) -> dict[str, tuple[tuple[int, ...], float]]:
        """Columns and price of each panel by its name, the context first."""
        found: dict[str, tuple[tuple[int, ...], float]] = {}
        start = self.contexts if self.contexts > 1 else 0
        if start:
            found["context"] = (tuple(range(start)), 1.0)
        for place, price in enumerate(self.prices):
            found[f"x{place}"] = ((start + place,), price)
        return found

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns."""
        contexts = tuple(f"context_{k}" for k in range(self.contexts)) if self.contexts > 1 else ()
        return (*contexts, *(f"x{place}" for place in range(self.num_features)))

    @property
    def shows(self) -> Int[Tensor, "contexts classes features"]:
        """What a feature is about in each context and class: 0 or 1, the bit that it shows, or 2, noise."""
        found = torch.full((self.contexts, CLASSES, self.num_features), 2)
        for context, starts in enumerate(self.carriers):
            for start in starts:
                for label in range(CLASSES):
                    for bit in range(BITS):
                        found[context, label, start + label + bit] = (label >> bit) & 1
        return found

    def rows(self, number: int, seed: int) -> tuple[Float[Tensor, "N F"], Int[Tensor, " N"]]:
        """Rows and their classes, all drawn from the seed; classes and contexts are alike likely.

        Rows are drawn in turn, so that the first rows of a larger table are not those of a smaller one: give different
        splits different seeds, or draw once and cut.
        """
        if number < 1:
            raise InputError(f"a table needs at least one row, got {number}")
        generator = torch.Generator().manual_seed(seed)
        label = torch.randint(CLASSES, (number,), generator=generator)
        context = torch.randint(self.contexts, (number,), generator=generator)
        kind = self.shows[context, label]
        mean = torch.where(kind < 2, kind.to(torch.float32), NOISE_MEAN)
        spread = torch.where(kind < 2, self.deviation, NOISE_DEVIATION)
        x = mean + spread * torch.randn(number, self.num_features, generator=generator)
        if self.contexts > 1:
            told = torch.nn.functional.one_hot(context, self.contexts).to(torch.float32)
            noise = torch.randn(number, self.contexts, generator=generator)
            x = torch.cat([told + CONTEXT_DEVIATION * noise, x], dim=1)
        return x, label


def cube(deviation: float = 0.1) -> Cube:
    """CUBE: 20 features at price 1, of which the first ten show the code."""
    return Cube(((0,),), 2 * BLOCK, deviation, (1.0,) * (2 * BLOCK), (3.0, 5.0, 10.0))


def cube_nm(deviation: float = 0.1, contexts: int = 5) -> Cube:
    """CUBE-NM (non-myopic): the context, then a block of ten features for each context, all at price 1."""
    if contexts < 2:
        raise InputError(f"CUBE-NM needs at least 2 contexts, got {contexts}")
    carriers = tuple((BLOCK * context,) for context in range(contexts))
    features = BLOCK * contexts
    return Cube(carriers, features, deviation, (1.0,) * features, (3.0, 5.0, 7.0, 10.0, 14.0))


def cube_prices(deviation: float = 0.1) -> Cube:
    """CUBE with two blocks that both show the code: the first at price 1 a feature, the second at 2."""
    prices = (1.0,) * BLOCK + (2.0,) * BLOCK
    return Cube(((0, BLOCK),), 2 * BLOCK, deviation, prices, (2.0, 4.0, 7.0, 10.0, 14.0))
