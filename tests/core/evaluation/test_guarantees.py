"""Promises that validation samples allow are kept on samples to come, for answers of any model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nbsr_core.evaluation.guarantees import OF_GUARANTEES, guarantee_figures
from nbsr_core.learning.learners import Answers
from nbsr_core.options.specs import EvaluationOptions

RESPLITS, ROWS = 100, 400


def answers(seed: int, sharpness: float) -> tuple[Answers, Answers]:
    """Validation and test samples of a model that is too sure of itself by `sharpness`."""
    torch.manual_seed(seed)  # of the sets
    generator = torch.Generator().manual_seed(seed)
    logits = 4.0 * torch.randn(2 * ROWS, 6, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    probs = (sharpness * logits).softmax(-1)

    def part(rows: slice) -> Answers:
        return Answers(probs[rows], probs[rows], labels[rows])

    return part(slice(ROWS)), part(slice(ROWS, None))


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
def test_sets_cover_and_errors_stay_below_the_bound_on_a_hundred_resplits(sharpness: float) -> None:
    options = EvaluationOptions(set_level=0.9, max_error=0.2, max_error_chance=0.05)
    covered, errors = torch.zeros(RESPLITS), []
    for seed in range(RESPLITS):
        found = guarantee_figures(*answers(seed, sharpness), options)
        covered[seed] = found["set_coverage"]
        if "controlled_error" in found:
            # The bound is on the error to be expected; what 400 rows show of it varies by this much around it.
            spread = (0.2 * 0.8 / (ROWS * found["controlled_coverage"])) ** 0.5
            errors.append(found["controlled_error"] - 2 * spread)
    # Each coverage is that of ROWS samples under a limit from ROWS others: twice the binomial variance.
    assert float(covered.mean()) == pytest.approx(0.9, abs=3 * (2 * 0.9 * 0.1 / ROWS / RESPLITS) ** 0.5)
    assert sum(error > 0.2 for error in errors) <= 5
    assert len(errors) > 90, "and somebody is answered"


def test_all_figures_are_there_where_somebody_is_answered_and_two_less_where_nobody_is() -> None:
    valid, test = answers(0, 1.0)
    assert set(guarantee_figures(valid, test, EvaluationOptions(max_error=0.3))) == set(OF_GUARANTEES)
    wrong = Answers(valid.probs, valid.raw, other_than(valid.probs.argmax(1)))
    nobody = guarantee_figures(wrong, test, EvaluationOptions(max_error=0.01))
    assert set(OF_GUARANTEES) - set(nobody) == {"controlled_doubt", "controlled_error"}
    assert nobody["controlled_coverage"] == 0


def other_than(labels: Tensor) -> Tensor:
    return (labels + 1) % 6
