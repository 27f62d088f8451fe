"""One sample's walk in words and numbers: who was asked, what they said, how the belief moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from nbsr_core._checks import whole_number
from nbsr_core.errors import InputError


@dataclass(frozen=True, eq=False)
class AuditStep:
    """The visit to one expert.

    Attributes:
        route_probability: how sure the router was of this child (softmax of its logits).
        alternatives: all children of the node before, with their probabilities.
        evidence: what the expert added, [K].
        alpha: the belief after it, calibrated if the model is, [K].
        belief_shift: `KL(Dir(alpha_{t+1}) || Dir(alpha_t))`, in nats.
    """

    depth: int
    node: str
    route_probability: float
    alternatives: dict[str, float]
    evidence: Float[Tensor, " K"]
    alpha: Float[Tensor, " K"]
    belief_shift: float
    entropy: float
    vacuity: float

    @property
    def prediction(self) -> int:
        """The class that the belief favours after this step."""
        return int(self.alpha.argmax())

    @property
    def confidence(self) -> float:
        return float(self.alpha.max() / self.alpha.sum())


@dataclass(frozen=True, eq=False)
class AuditTrail:
    """The whole walk. Raw evidence adds up: `prior + sum of evidence` is the raw belief at the end."""

    prior: Float[Tensor, " K"]
    steps: tuple[AuditStep, ...]
    density: float | None = None

    @property
    def accumulated(self) -> Float[Tensor, " K"]:
        """Prior plus all evidence: the raw final belief."""
        total = self.prior
        for step in self.steps:
            total = total + step.evidence
        return total

    def render(self, class_names: Sequence[str] | None = None, top: int = 3) -> str:
        """The walk as text, with the strongest pieces of evidence of each step."""
        if class_names is not None and len(class_names) != len(self.prior):
            raise InputError(f"class_names must be {len(self.prior)} names, one a class, got {len(class_names)}")

        top = whole_number("top", top, 1)

        def name(index: int) -> str:
            return class_names[index] if class_names is not None else f"class {index}"

        lines = []
        if self.density is not None:
            lines.append(f"closeness to the training data {self.density:.3g} (evidence is scaled by it)")
        for step in self.steps:
            strongest = step.evidence.topk(min(top, len(step.evidence)))
            parts = ", ".join(
                f"{name(i)} +{v:.3g}"
                for v, i in zip(strongest.values.tolist(), strongest.indices.tolist(), strict=True)
            )
            lines.append(
                f"{step.depth}. {step.node}  (route p={step.route_probability:.2f})\n"
                f"     evidence      {parts}\n"
                f"     belief shift  {step.belief_shift:.3g} nats, entropy {step.entropy:.4g}, "
                f"vacuity {step.vacuity:.3g}\n"
                f"     prediction    {name(step.prediction)}  ({step.confidence:.1%})"
            )
        return "\n".join(lines)
