"""An evidential flat network: the outputs are evidence, and the answer is a Dirichlet belief after one step.

Sensoy, Kaplan and Kandemir, "Evidential Deep Learning to Quantify Classification Uncertainty", NeurIPS 2018. It is what
NBSR would be without a walk: one expert, a prior of ones, and the loss of that paper, but for one thing: its penalty on
evidence for wrong classes is divided by the number of classes.

That penalty is a divergence of Dirichlet distributions over K classes, which is a sum over classes: for a little
evidence e for each of them it is close to `K e^2 (pi^2 / 6 - 1) / 2`. The squared error beside it is never above 2,
however many classes there are. With the whole divergence evidence pays for itself with ten classes, for which that
paper chose its weight; with 41 of them, no evidence at all is cheaper, and nothing is learned.
"""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.belief import dirichlet
from nbsr_core.kernels import activate
from nbsr_core.learning.learners import Classifier, Inside
from nbsr_core.options.specs import ExpertSpec

# As in the code of that paper, which cuts outputs at 10: no more evidence than e^10; here it is approached smoothly.
EVIDENCE = ExpertSpec(activation="exp", bound=math.exp(10.0))


def expected_squares(alpha: Float[Tensor, "B K"], y: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """Mean of `E ||onehot(y) - p||^2` for p ~ Dir(alpha): squared error of the mean, plus the variances (eq. 5)."""
    truth = F.one_hot(y, alpha.shape[1]).to(alpha.dtype)
    away = (truth - dirichlet.mean(alpha, validate_args=False)).square()
    return (away + dirichlet.variance(alpha, validate_args=False)).sum(-1).mean()


def misleading_evidence(alpha: Float[Tensor, "B K"], y: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """Mean of `KL(Dir(alpha~) || Dir(1))`, where `alpha~` is the belief without the evidence for the true class."""
    others = alpha.scatter(1, y.unsqueeze(1), 1.0)
    return dirichlet.kl_divergence(others, alpha.new_ones(alpha.shape[1]), validate_args=False).mean()


class EvidentialClassifier(Classifier):
    """A module whose outputs are evidence: `alpha = 1 + exp(output)`, and the probabilities are `alpha / alpha_0`.

    Args:
        module: gives one output per class.
        penalty: weight of `misleading_evidence` for each class, that is, divided by their number; that paper has 10, as
            ten classes with a weight of 1.
        anneal_epochs: over how many epochs that weight grows from 0; 0 starts with all of it.
    """

    smooths_labels = False

    def __init__(self, module: nn.Module, penalty: float = 0.1, anneal_epochs: int = 10) -> None:
        super().__init__(module)
        self.penalty, self.anneal_epochs = penalty, anneal_epochs

    def belief(self, outputs: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """The Dirichlet's `alpha`."""
        return 1.0 + activate(EVIDENCE, outputs)

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        alpha, labels = self.belief(module(x)), self.labels(y)
        ramp = min(1.0, epoch / self.anneal_epochs) if self.anneal_epochs else 1.0
        squares, misleading = expected_squares(alpha, labels), misleading_evidence(alpha, labels)
        misleading = self.penalty / alpha.shape[1] * ramp * misleading
        return {"loss": squares + misleading, "squares": squares, "misleading": misleading}

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss", "squares", "misleading")

    def probabilities_of(self, outputs: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """The mean of the belief."""
        return dirichlet.mean(self.belief(outputs), validate_args=False)

    def inside(self, x: Tensor) -> Inside:
        """The features before the head, and `log alpha`."""
        found = super().inside(x)
        return Inside(found.features, self.belief(found.logits).log())
