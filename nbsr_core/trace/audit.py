"""One sample's walk, measured: who was asked, what they said, how the belief moved. A reader can add it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from nbsr_core._checks import whole_number
from nbsr_core.errors import InputError
from nbsr_core.trace.visit import Amount, Entry, Visit, nats, signed


@dataclass(frozen=True, eq=False)
class AuditStep:
    """The visit to one expert as it was measured, over all classes; `visit` is what people read of it.

    Attributes:
        route_probability: how sure the router was of this child (softmax of its logits).
        alternatives: all children of the node before, with their probabilities.
        before: the raw belief before it: prior plus the evidence of the experts asked so far, [K].
        evidence: what the expert added, [K].
        alpha: the belief after it as the model uses it, calibrated if the model is, [K].
        temperature: the calibration temperature of this depth, None without calibration.
        belief_shift: `KL(Dir(alpha_{t+1}) || Dir(alpha_t))` of the raw beliefs, in nats: how far the evidence moved
            them, whatever calibration makes of either.
        entropy: that of `alpha`, which an early exit compares with eta.
        vacuity: the share of the belief that is still the prior's; the same before and after calibration.
    """

    depth: int
    node: str
    route_probability: float
    alternatives: dict[str, float]
    before: Float[Tensor, " K"]
    evidence: Float[Tensor, " K"]
    alpha: Float[Tensor, " K"]
    temperature: float | None
    belief_shift: float
    entropy: float
    vacuity: float

    @property
    def raw(self) -> Float[Tensor, " K"]:
        """The belief after this step before any calibration."""
        return self.before + self.evidence

    @property
    def precision(self) -> float:
        """alpha_0, all pseudo-counts together."""
        return float(self.raw.double().sum())

    @property
    def prediction(self) -> int:
        """The class that the belief favours after this step."""
        return int(self.alpha.argmax())

    @property
    def confidence(self) -> float:
        """What the model says of it: its calibrated probability if the model is calibrated."""
        return float(self.alpha.max() / self.alpha.sum())

    @property
    def measures(self) -> str:
        """How far the belief moved and how sure it is, in a line."""
        return (
            f"belief shift {signed(self.belief_shift)} nats, vacuity {self.vacuity:.3g}, "
            f"entropy {nats(self.entropy, len(self.alpha))}"
        )

    def ledger(self, class_names: Sequence[str], top: int = 3) -> tuple[Entry, ...]:
        """The classes with the strongest belief and the one with the strongest evidence; the others share a line."""
        raw, count = self.raw.double(), len(self.alpha)
        shown = _largest(self.alpha, top)
        strongest = int(self.evidence.argmax())
        if strongest not in shown:
            shown.append(strongest)
        columns = (self.before.double(), self.evidence.double(), raw, raw / raw.sum(), self.alpha / self.alpha.sum())
        entries = [Entry(class_names[k], *(float(column[k]) for column in columns)) for k in shown]
        listed = set(shown)
        hidden = [k for k in range(count) if k not in listed]
        if hidden:
            name = class_names[hidden[0]] if len(hidden) == 1 else f"{len(hidden)} others"
            entries.append(Entry(name, *(float(column[hidden].sum()) for column in columns)))
        return tuple(entries)

    def visit(self, class_names: Sequence[str], top: int = 3) -> Visit:
        """What people read of it: classes by name, and only those with the strongest belief and evidence."""
        share = self.alpha / self.alpha.sum()
        return Visit(
            depth=self.depth,
            node=self.node,
            route_probability=self.route_probability,
            alternatives=self.alternatives,
            evidence=tuple(Amount(class_names[k], float(self.evidence[k])) for k in _largest(self.evidence, top)),
            belief=tuple(Amount(class_names[k], float(share[k])) for k in _largest(self.alpha, top)),
            ledger=self.ledger(class_names, top),
            precision=self.precision,
            temperature=self.temperature,
            belief_shift=self.belief_shift,
            entropy=self.entropy,
            vacuity=self.vacuity,
            measures=self.measures,
        )


def _largest(values: Float[Tensor, " K"], count: int) -> list[int]:
    """Classes with the largest values, of equal ones the first: the first of all is `argmax`, as in a prediction."""
    return values.argsort(descending=True, stable=True)[:count].tolist()


@dataclass(frozen=True, eq=False)
class AuditTrail:
    """The whole walk. Raw evidence adds up: `prior + sum of evidence` is the raw belief at the end.

    Attributes:
        closeness: factor on the evidence at each stage of the backbone that the walk came to (the last one counts for
            all steps after it); empty without a density factor.
    """

    prior: Float[Tensor, " K"]
    steps: tuple[AuditStep, ...]
    closeness: tuple[float, ...] = ()
    class_names: Sequence[str] | None = None

    @property
    def density(self) -> float | None:
        """The factor at the deepest stage that the walk came to."""
        return self.closeness[-1] if self.closeness else None

    @property
    def accumulated(self) -> Float[Tensor, " K"]:
        """Prior plus all evidence: the raw final belief."""
        total = self.prior
        for step in self.steps:
            total = total + step.evidence
        return total

    def render(self, class_names: Sequence[str] | None = None, top: int = 3) -> str:
        """The walk as text, with the ledger of each step. Names are those that the trail was made with by default."""
        names = checked_names(self.class_names if class_names is None else class_names, len(self.prior))
        top = whole_number("top", top, 1)
        lines = []
        if self.closeness:
            by_stage = ", then ".join(f"{factor:.3g}" for factor in self.closeness)
            lines.append(f"closeness to the training data {by_stage} (evidence is scaled by it)")
        lines.append(f"0. prior: {float(self.prior.sum()):.4g} pseudo-counts over {len(self.prior)} classes, vacuity 1")
        for step in self.steps:
            lines += step.visit(names, top).lines()
        return "\n".join(lines)


def checked_names(class_names: Sequence[str] | None, count: int) -> Sequence[str]:
    """A name for each class; without any, their numbers."""
    if class_names is None:
        return [f"class {index}" for index in range(count)]
    if len(class_names) != count:
        raise InputError(f"class_names must be {count} names, one per class, got {len(class_names)}")
    return class_names
