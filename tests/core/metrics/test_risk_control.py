"""Controlled risk: the promise holds as often as it says, and the threshold is that of a plain loop."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.errors import InputError
from nbsr_core.metrics import RiskControl, control_risk

ERRORS = st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.5, 0.9])
DELTAS = st.sampled_from([0.01, 0.1, 0.3, 0.9])


@st.composite
def doubts_and_answers(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Doubts with ties, infinities among them; mistakes frequent or rare."""
    samples = draw(st.integers(1, 200))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    known = np.array([-math.inf, -3.0, 0.0, 0.1, 0.5, 2.0, math.inf])
    doubt = generator.choice(known, samples) if draw(st.booleans()) else generator.normal(size=samples)
    return torch.from_numpy(doubt), torch.from_numpy(generator.random(samples) >= draw(st.sampled_from([0, 0.03, 0.3])))


def naive_answered(doubt: Tensor, correct: Tensor, max_error: float, delta: float) -> int:
    """How many validation samples are answered: threshold by threshold, with the upper bound of Clopper and Pearson."""
    pairs = list(zip(doubt.tolist(), correct.tolist(), strict=True))
    start = min(len(pairs), math.ceil(8 * math.sqrt(len(pairs))))
    best = 0
    for threshold in sorted({score for score, _ in pairs}):
        answers = [right for score, right in pairs if score <= threshold]
        wrong = answers.count(False)
        if len(answers) < start:
            continue
        upper = 1.0 if wrong == len(answers) else stats.beta.ppf(1 - delta, wrong + 1, len(answers) - wrong)
        if upper > max_error:
            break
        best = len(answers)
    return best


@given(doubts_and_answers(), ERRORS, DELTAS)
def test_the_threshold_is_that_of_a_plain_loop(
    validation: tuple[Tensor, Tensor], max_error: float, delta: float
) -> None:
    doubt, correct = validation
    found = control_risk(doubt, correct, max_error, delta)
    answered = found.answers(doubt)
    assert int(answered.sum()) == found.answered == naive_answered(doubt, correct, max_error, delta)
    assert int((~correct[answered]).sum()) == found.wrong
    assert (found.threshold == -math.inf) == (found.answered == 0)
    assert (found.samples, found.max_error, found.delta) == (len(doubt), max_error, delta)


@given(doubts_and_answers(), ERRORS, ERRORS, DELTAS, DELTAS)
def test_who_allows_more_never_gets_fewer_answers(
    validation: tuple[Tensor, Tensor], one: float, other: float, delta: float, other_delta: float
) -> None:
    errors, deltas = sorted((one, other)), sorted((delta, other_delta))
    strict, loose = (control_risk(*validation, *limits) for limits in zip(errors, deltas, strict=True))
    assert strict.threshold <= loose.threshold
    assert strict.answered <= loose.answered


@given(doubts_and_answers(), ERRORS, DELTAS)
def test_only_the_order_of_the_doubt_counts_and_not_that_of_samples(
    validation: tuple[Tensor, Tensor], max_error: float, delta: float
) -> None:
    doubt, correct = validation
    found = control_risk(doubt, correct, max_error, delta)
    backwards = control_risk(doubt.flip(0), correct.flip(0), max_error, delta)
    assert backwards == found
    _, ranks = doubt.unique(return_inverse=True)
    by_rank = control_risk(ranks.double(), correct, max_error, delta)
    assert torch.equal(by_rank.answers(ranks.double()), found.answers(doubt))


# Error of a sample by its doubt, which is uniform within 0 and 1.
ErrorOf = Callable[[np.ndarray], np.ndarray]
KINDS: dict[str, ErrorOf] = {
    "rising": lambda doubt: 0.45 * doubt**2,
    "surely wrong at times": lambda doubt: np.where(doubt < 0.05, 0.3, 0.4 * doubt**2),
    "no ranking, a bit too bad": lambda doubt: np.full_like(doubt, 0.102),
    "waves around the limit": lambda doubt: 0.1 + 0.1 * np.sin(20 * doubt),
}


@pytest.mark.parametrize("steps", [None, 20], ids=["distinct", "equal doubts"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_among_the_answered_is_held_as_often_as_promised(kind: str, steps: int | None) -> None:
    """2000 validation sets; the loosest threshold that is merely good on them is too bold in half of them or more."""
    generator = np.random.default_rng(1)
    samples, max_error, delta, resplits, fine = 400, 0.1, 0.1, 2000, 100_000
    every_doubt = (np.arange(fine) + 0.5) / fine
    true_error = np.append(0, KINDS[kind](every_doubt).cumsum()) / np.append(1, np.arange(1, fine + 1))
    too_bold = merely_good_too_bold = 0
    for _ in range(resplits):
        drawn = generator.random(samples)
        doubt = drawn if steps is None else np.ceil(drawn * steps) / steps
        correct = generator.random(samples) >= KINDS[kind](drawn)
        found = control_risk(torch.from_numpy(doubt), torch.from_numpy(correct), max_error, delta)
        order = doubt.argsort(kind="stable")
        within = np.nonzero((~correct[order]).cumsum() <= max_error * np.arange(1, samples + 1))[0]
        merely_good = doubt[order][within[-1]] if len(within) else 0.0
        too_bold += true_error[round(max(found.threshold, 0) * fine)] > max_error
        merely_good_too_bold += true_error[round(merely_good * fine)] > max_error
    assert too_bold <= stats.binom.isf(1e-3, resplits, delta), "at most delta, but for chance in so many resplits"
    assert merely_good_too_bold > 0.45 * resplits


def selective_guaranteed_risk(correct: np.ndarray, max_error: float, delta: float) -> int:
    """How many of the samples, sorted by doubt, are answered by the search of Geifman and El-Yaniv (2017)."""
    low, high, best = 1, len(correct), 0
    steps = math.ceil(math.log2(len(correct)))
    for _ in range(steps):
        middle = (low + high + 1) // 2
        wrong = int((~correct[:middle]).sum())
        if stats.binom.cdf(wrong, middle, max_error) <= delta / steps:
            low = best = middle
        else:
            high = middle
    return best


def test_it_answers_more_than_a_search_that_shares_delta_among_its_steps() -> None:
    generator = np.random.default_rng(0)
    ours, theirs = [], []
    for samples in (100, 300, 1000):
        for error_of in (lambda d: 0.3 * d**2, lambda d: 0.06 * d**3, lambda d: 0.01 + 0.25 * d**2):
            for max_error in (0.02, 0.05, 0.1):
                for _ in range(20):
                    doubt = np.sort(generator.random(samples))
                    correct = generator.random(samples) >= error_of(doubt)
                    found = control_risk(torch.from_numpy(doubt), torch.from_numpy(correct), max_error)
                    ours.append(found.answered / samples)
                    theirs.append(selective_guaranteed_risk(correct, max_error, 0.1) / samples)
    assert np.mean(ours) > np.mean(theirs) + 0.05


def test_nobody_is_answered_where_the_error_cannot_be_met() -> None:
    doubt = torch.linspace(0, 1, 500)
    hopeless = control_risk(doubt, torch.arange(500) % 2 == 0, 0.1)
    assert hopeless == RiskControl(-math.inf, 0.1, 0.1, samples=500, answered=0, wrong=0)
    assert not bool(hopeless.answers(torch.tensor([-math.inf, 0.0, 1.0])).any())
    assert hopeless.figures(doubt, doubt > 0) == {"controlled_coverage": 0.0}
    too_few = control_risk(doubt[:21], torch.ones(21, dtype=torch.bool), 0.1, 0.1)
    enough = control_risk(doubt[:22], torch.ones(22, dtype=torch.bool), 0.1, 0.1)
    assert (too_few.answered, enough.answered) == (0, 22), "0.9^22 < 0.1 < 0.9^21: even without a single mistake"


def test_a_model_that_is_always_right_answers_everybody_that_is_like_the_validation_samples() -> None:
    found = control_risk(torch.linspace(0, 1, 200), torch.ones(200, dtype=torch.bool), 0.05)
    assert (found.threshold, found.answered, found.wrong) == (1.0, 200, 0)
    figures = found.figures(torch.tensor([0.5, 1.0, 2.0, 0.0]), torch.tensor([True, False, False, True]))
    assert figures == {"controlled_coverage": 0.75, "controlled_error": pytest.approx(1 / 3)}
    assert tuple(figures) == metrics.OF_RISK_CONTROL
    assert all(type(value) is float for value in [*figures.values(), found.threshold])


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: control_risk(torch.ones(2), torch.tensor([True]), 0.1), r"correct is .*\(2,\), like doubt"),
        (lambda: control_risk(torch.tensor([math.nan]), torch.tensor([True]), 0.1), "doubt holds 1 NaN"),
        (lambda: control_risk(torch.ones(0), torch.ones(0, dtype=torch.bool), 0.1), r"doubt is .*\(0,\)"),
        (lambda: control_risk(torch.ones(1), torch.tensor([True]), 5.0), "max_error is 5.0; a share .* such as 0.05"),
        (lambda: control_risk(torch.ones(1), torch.tensor([True]), 0.1, 0.0), "delta is 0.0; a share .* such as 0.1"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
