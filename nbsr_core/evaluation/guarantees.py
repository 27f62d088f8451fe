"""What can be promised of a model's answers, by the same rules for every model and, of a walk, at every depth.

Sets of classes that hold the true one as often as asked (`nbsr_core.metrics.conformal`), a doubt up to which answers
are wrong no more often than asked (`nbsr_core.metrics.risk_control`), and how well doubt tells wrong answers from right
ones. All are learned from the validation split. Doubt is 1 - confidence for every model: what they are compared by.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nbsr_core.learning.learners import Answers
from nbsr_core.metrics.conformal import OF_CONFORMAL, conformal_sets
from nbsr_core.metrics.ranking import OF_RANKING, ranking_metrics
from nbsr_core.metrics.risk_control import OF_RISK_CONTROL, control_risk
from nbsr_core.options.specs import EvaluationOptions

OF_GUARANTEES = (*OF_RANKING, *OF_CONFORMAL, "controlled_doubt", *OF_RISK_CONTROL)
"""Names of the figures; the last is missing where nobody is answered, `controlled_doubt` too."""


def guarantee_figures(valid: Answers, test: Answers, options: EvaluationOptions) -> dict[str, float]:
    """How the promises that validation samples allow are kept on the test split.

    Sets have a random part, so that models that are more accurate than the level are still told apart by their size;
    it follows from the seed that was set last, as all that is random in judging does.
    """
    doubt, right = _doubt(test)
    sets = conformal_sets(valid.probs, valid.labels, options.set_level, seed=torch.initial_seed())
    control = control_risk(*_doubt(valid), options.max_error, options.max_error_chance)
    found = {
        **ranking_metrics(1 - doubt, right),
        **sets.figures(test.probs, test.labels),
        **control.figures(doubt, right),
    }
    return found | ({"controlled_doubt": control.threshold} if control.answered else {})


def _doubt(said: Answers) -> tuple[Float[Tensor, " N"], Bool[Tensor, " N"]]:
    """Doubt about each answer, and whether it is right."""
    confidence, label = said.probs.cpu().double().max(-1)
    return 1 - confidence, label == said.labels.cpu()
