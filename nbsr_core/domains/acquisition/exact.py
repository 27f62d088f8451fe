"""What is possible where the distribution is known: exact posteriors, exact greedy, exact dynamic programming.

Nothing here learns. A CUBE is a mixture over (context, class) in which every feature is one of three normal densities,
so that posteriors are sums, and the information that a feature has about the class is an integral in one dimension.
`Table` is a small joint distribution of a class and a few discrete panels, over which all plans can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.domains.acquisition import cubes
from nbsr_core.domains.acquisition.cubes import CLASSES, CONTEXT_DEVIATION, NOISE_DEVIATION, NOISE_MEAN, Cube
from nbsr_core.errors import InputError
from nbsr_core.learning.splits import Splits

# Rows whose gains are integrated at once; the step of the integral in deviations of the narrowest density.
CHUNK, STEP = 250, 0.75
# Rows of a test split on which references are judged: they take seconds, not milliseconds.
JUDGED = 1000
# Gains that differ by less are equal: ties go to the panel that comes first, on every machine.
TIE = 1e-4


class CubePosterior:
    """Exact posteriors of a CUBE's class, and what each panel would tell about it.

    Args:
        cube: the family of tables.
        x: rows of it, as `Cube.rows` gives them.
    """

    def __init__(self, cube: Cube, x: Float[Tensor, "N F"]) -> None:
        self.cube, self.contexts = cube, cube.contexts
        start = self.contexts if self.contexts > 1 else 0
        if x.shape[1] != start + cube.num_features:
            raise InputError(f"rows must have {start + cube.num_features} columns, got {x.shape[1]}")
        means = torch.tensor([0.0, 1.0, NOISE_MEAN], dtype=torch.float64)
        spreads = torch.tensor([cube.deviation, cube.deviation, NOISE_DEVIATION], dtype=torch.float64)
        kind = torch.nn.functional.one_hot(cube.shows, 3)  # contexts, classes, features, densities
        self.kind = kind.to(torch.float32)
        density = _log_normal(x[:, start:, None].double(), means, spreads)
        features = torch.einsum("nfd,cyfd->nfcy", density, kind.double())
        told = torch.zeros(len(x), 0, self.contexts, CLASSES, dtype=torch.float64)
        if start:
            one_hot = torch.eye(start, dtype=torch.float64)
            spread = torch.tensor(CONTEXT_DEVIATION, dtype=torch.float64)
            shown = _log_normal(x[:, None, :start].double(), one_hot, spread).sum(-1)
            told = shown[:, None, :, None].expand(-1, 1, -1, CLASSES)
        self.likelihood = torch.cat([told, features], dim=1)
        """Of each panel under each context and class, as logarithms."""
        step = STEP * float(spreads.min())
        grid = torch.arange(-4 * 0.3 - 0.5, 1.5 + 4 * 0.3, step, dtype=torch.float64)
        self.grid = _log_normal(grid[:, None], means, spreads).exp().float().T * step

    def joint(self, bought: Float[Tensor, "N panels"]) -> Float[Tensor, "N contexts classes"]:
        """Probability of each context with each class, given what was bought."""
        logits = torch.einsum("np,npcy->ncy", bought.double(), self.likelihood)
        found: Tensor = logits.flatten(1).softmax(1).unflatten(1, (self.contexts, CLASSES))
        return found

    def classes(self, bought: Float[Tensor, "N panels"]) -> Float[Tensor, "N classes"]:
        """Probability of each class, given what was bought: no model can know more."""
        return self.joint(bought).sum(1)

    def gains(self, bought: Float[Tensor, "N panels"]) -> Float[Tensor, "N panels"]:
        """Expected information about the class in each panel, in nats, given what was bought.

        The context counts as free of noise: its one-hot values are fourteen deviations apart.
        """
        parts = [self._gains(part.float()) for part in self.joint(bought).split(CHUNK)]
        return torch.cat(parts)

    def _gains(self, joint: Float[Tensor, "n contexts classes"]) -> Float[Tensor, "n panels"]:
        weight = torch.einsum("ncy,cyfd->nfyd", joint, self.kind)
        both = weight @ self.grid  # probability of each class with each small interval of the feature
        classes = torch.special.entr(joint.sum(1)).sum(-1)
        # I = H(y) + H(x) - H(x, y); what the width of the intervals adds to both of the latter cancels
        found: Tensor = (
            classes[:, None] + torch.special.entr(both.sum(2)).sum(-1) - torch.special.entr(both).sum((2, 3))
        )
        if self.contexts > 1:
            contexts = torch.special.entr(joint.sum(2)).sum(-1)
            told = classes + contexts - torch.special.entr(joint).sum((1, 2))
            found = torch.cat([told[:, None], found], dim=1)
        return found


@torch.no_grad()
def cube_reference(
    cube: Cube, x: Float[Tensor, "N F"], y: Int[Tensor, " N"], budgets: Sequence[float], *, context_first: bool = False
) -> dict[float, float]:
    """Accuracy at each budget of the policy that buys what tells most about the class for its price.

    It is given the true posteriors, for its choice and for its answer. With `context_first` it buys the context, then
    goes on in the same way: one purchase planned, which no greedy policy makes.
    """
    if context_first and cube.contexts == 1:
        raise InputError("there is no context to buy first: the table has only one")
    posterior, prices = CubePosterior(cube, x), torch.tensor([price for _, price in cube.panels.values()])
    found: dict[float, float] = {}
    equal = len(set(prices.tolist())) == 1
    bought, left = torch.zeros(len(x), len(prices)), torch.zeros(len(x))
    for budget in sorted(budgets):
        if not equal:  # what cannot be afforded changes the way, so each budget has its own
            bought, left = torch.zeros(len(x), len(prices)), torch.zeros(len(x))
        left = budget - bought @ prices
        while True:
            closed = (bought > 0) | (prices > left[:, None] + 1e-6)
            row = (~closed.all(1)).nonzero().squeeze(1)
            if len(row) == 0:
                break
            if context_first and not bool(bought.any()):
                panel = torch.zeros_like(row)
            else:
                rate = (posterior.gains(bought) / prices).masked_fill(closed, -math.inf)
                best = rate.amax(1, keepdim=True)
                panel = (rate >= best - TIE).to(torch.int8).argmax(1)[row]
            bought[row, panel] = 1.0
            left[row] -= prices[panel]
        found[budget] = float((posterior.classes(bought).argmax(1) == y).double().mean())
    return found


def exact_figures(splits: Splits) -> dict[str, float]:
    """Accuracy at each budget with exact posteriors, of tables that are drawn: nobody who buys one by one does better
    at each step. `budget/<B>/accuracy` is with the context first where there is one, `greedy/budget/<B>/accuracy`
    without. Judged on the first rows of the test split; nothing for tables that are read.
    """
    drawn, budgets = splits.structure.get("drawn"), tuple(splits.structure.get("budgets", ()))
    if drawn is None or not budgets:
        return {}
    key = (drawn["source"], float(drawn["deviation"]), budgets, splits.test.x[:1].numpy().tobytes(), len(splits.test))
    if key not in _FOUND:  # models that are judged one after another share their test rows
        cube = getattr(cubes, drawn["source"])(drawn["deviation"])
        x, y = splits.test.x[:JUDGED].cpu(), splits.test.y[:JUDGED].cpu()
        greedy = cube_reference(cube, x, y, budgets)
        best = cube_reference(cube, x, y, budgets, context_first=True) if cube.contexts > 1 else greedy
        _FOUND[key] = {f"budget/{budget:g}/accuracy": found for budget, found in best.items()}
        if cube.contexts > 1:
            _FOUND[key] |= {f"greedy/budget/{budget:g}/accuracy": found for budget, found in greedy.items()}
    return dict(_FOUND[key])


_FOUND: dict[tuple[object, ...], dict[str, float]] = {}


def _log_normal(x: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / spread).square() - (spread * math.sqrt(2 * math.pi)).log()


@dataclass(frozen=True, eq=False)
class Table:
    """A class and a few discrete panels whose joint distribution is known.

    Attributes:
        probability: of each combination of values, one axis per panel and the class last.
        prices: whole numbers, one per panel.
    """

    probability: Float[Tensor, ...]
    prices: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.probability.ndim != len(self.prices) + 1:
            raise InputError(
                f"{len(self.prices)} prices need as many axes and one for the class, got {self.probability.ndim} axes"
            )
        if not all(isinstance(price, int) and price > 0 for price in self.prices):
            raise InputError(f"prices must be whole numbers > 0, got {list(self.prices)}")
        if bool((self.probability < 0).any()) or not math.isclose(float(self.probability.sum()), 1.0, abs_tol=1e-9):
            raise InputError("probabilities must be >= 0 and add up to 1")

    @cached_property
    def mass(self) -> Tensor:
        """Probability of each class with each state: an axis has one place more, for "not bought yet", its last."""
        found = self.probability
        for axis in range(len(self.prices)):
            found = torch.cat([found, found.sum(axis, keepdim=True)], dim=axis)
        return found

    def best(self, budget: int) -> float:
        """Accuracy of the best of all policies that spend at most the budget.

        Values are kept as probability of the state times expected accuracy in it: then what a purchase is worth is the
        sum over its outcomes, along an axis.
        """
        worth = [self.mass.amax(-1)]
        for money in range(1, budget + 1):
            found = worth[0]
            for axis, price in enumerate(self.prices):
                if price <= money:
                    later = worth[money - price]
                    known = later.narrow(axis, 0, later.shape[axis] - 1).sum(axis, keepdim=True)
                    size = later.shape[axis]
                    index = torch.tensor([size - 1], device=later.device)
                    better = torch.maximum(found.index_select(axis, index), known)
                    found = found.index_copy(axis, index, better)
            worth.append(found)
        return float(worth[budget][(-1,) * len(self.prices)])

    def greedy(self, budget: int) -> float:
        """Accuracy of exact greedy: what tells most about the class for its price, while there is money for it."""
        return self._greedy(self.mass, (-1,) * len(self.prices), budget)

    def _greedy(self, mass: Tensor, state: tuple[int, ...], money: int) -> float:
        here = mass[state]
        open_ = [axis for axis, price in enumerate(self.prices) if state[axis] == -1 and price <= money]
        if not open_ or float(here.sum()) == 0.0:
            return float(here.max())
        rates = []
        for axis in open_:
            after = torch.stack([mass[_with(state, axis, value)] for value in range(mass.shape[axis] - 1)])
            entropy = torch.special.entr(after / after.sum(1, keepdim=True).clamp_min(1e-300)).sum(1)
            rates.append(-float((entropy * after.sum(1)).sum()) / self.prices[axis])
        before = float(torch.special.entr(here / here.sum()).sum() * here.sum())
        rates = [rate + before / self.prices[axis] for rate, axis in zip(rates, open_, strict=True)]
        axis = open_[next(i for i, rate in enumerate(rates) if rate >= max(rates) - 1e-12)]
        values = range(mass.shape[axis] - 1)
        return sum(self._greedy(mass, _with(state, axis, value), money - self.prices[axis]) for value in values)

    def rows(self, number: int, seed: int) -> tuple[Int[Tensor, "N panels"], Int[Tensor, " N"]]:
        """Rows drawn from the distribution: the value of each panel, and the class."""
        flat = self.probability.flatten()
        drawn = torch.multinomial(flat, number, replacement=True, generator=torch.Generator().manual_seed(seed))
        values = torch.stack(torch.unravel_index(drawn, self.probability.shape), dim=1)
        return values[:, :-1], values[:, -1]


def _with(state: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*state[:axis], value, *state[axis + 1 :])


def signpost(contexts: int = 3, features: int = 2, noise: float = 0.05) -> Table:
    """A small CUBE-NM: a panel that names the block to look at, and blocks of which that one alone shows the class.

    Each of `contexts` blocks has `features` bits that spell one of `2 ** features` classes, each bit wrong with
    probability `noise`; the bits of all other blocks are tossed. All prices are 1.
    """
    panels, classes = 1 + contexts * features, 2**features
    found = torch.zeros(contexts, *(2,) * (panels - 1), classes, dtype=torch.float64)
    for place in torch.cartesian_prod(*(torch.arange(size) for size in found.shape)).tolist():
        context, *bits, label = place
        own = bits[context * features : (context + 1) * features]
        wrong = sum(bit != (label >> k) & 1 for k, bit in enumerate(own))
        chance = noise**wrong * (1 - noise) ** (features - wrong) * 0.5 ** (panels - 1 - features)
        found[tuple(place)] = chance / (contexts * classes)
    return Table(found, (1,) * panels)
