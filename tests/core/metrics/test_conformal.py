"""Sets of classes: they hold the true one as often as they promise, and are those of a plain loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.errors import InputError
from nbsr_core.metrics import ConformalSets, conformal_sets

PARTS = 16  # probabilities are sixteenths: sums are exact, ties and zeros frequent
LEVELS = st.sampled_from([0.05, 0.3, 0.5, 0.55, 0.8, 0.9, 0.95])
SEEDS = st.sampled_from([None, 0, 7])


@st.composite
def sixteenths(draw: st.DrawFn, classes: int) -> list[list[float]]:
    cuts = st.lists(st.integers(0, PARTS), min_size=classes - 1, max_size=classes - 1).map(sorted)
    rows = draw(st.lists(cuts, min_size=1, max_size=25))
    return [[(b - a) / PARTS for a, b in zip([0, *row], [*row, PARTS], strict=True)] for row in rows]


@st.composite
def validation_and_test(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of validation samples, their labels, and probabilities of test samples."""
    classes = draw(st.integers(2, 5))
    valid = draw(sixteenths(classes))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=len(valid), max_size=len(valid)))
    test = draw(sixteenths(classes))
    return torch.tensor(valid, dtype=torch.float64), torch.tensor(labels), torch.tensor(test, dtype=torch.float64)


def naive_score(row: list[float], label: int, part: float) -> float:
    above = sum(p for p in row if p > row[label])
    return above + part * sum(p for p in row if p == row[label])


def naive_sets(valid: Tensor, labels: Tensor, test: Tensor, level: float, seed: int | None) -> list[list[bool]]:
    """Sample by sample: as many validation scores as the level asks for are at most the limit."""
    rows, others = valid.tolist(), test.tolist()
    draws = [[0.0] * len(part) if seed is None else np.random.default_rng([seed, stream]).random(len(part)).tolist()
             for stream, part in enumerate((rows, others))]  # fmt: skip
    scores = sorted(
        naive_score(row, label, part) for row, label, part in zip(rows, labels.tolist(), draws[0], strict=True)
    )
    enough = [s for k, s in enumerate(scores, start=1) if Fraction(k, len(scores) + 1) >= Fraction(str(level))]
    limit = enough[0] if enough else math.inf
    return [
        [naive_score(row, label, part) <= limit for label in range(len(row))]
        for row, part in zip(others, draws[1], strict=True)
    ]


@given(validation_and_test(), LEVELS, SEEDS)
def test_sets_are_those_of_a_plain_loop(given_: tuple[Tensor, Tensor, Tensor], level: float, seed: int | None) -> None:
    valid, labels, test = given_
    found = conformal_sets(valid, labels, level, seed=seed)
    expected = naive_sets(valid, labels, test, level, seed)
    assert found.sets(test).tolist() == expected
    wanted = torch.arange(len(test)) % test.shape[1]
    sizes = [sum(row) for row in expected]
    assert found.figures(test, wanted) == pytest.approx(
        {
            "set_coverage": np.mean([row[label] for row, label in zip(expected, wanted.tolist(), strict=True)]),
            "set_size": np.mean(sizes),
            "empty_sets": np.mean([size == 0 for size in sizes]),
            "singleton_sets": np.mean([size == 1 for size in sizes]),
        }
    )


@given(validation_and_test(), LEVELS)
def test_without_a_seed_every_set_holds_the_most_probable_classes(
    given_: tuple[Tensor, Tensor, Tensor], level: float
) -> None:
    valid, labels, test = given_
    sets = conformal_sets(valid, labels, level).sets(test)
    assert bool(sets[test == test.amax(1, keepdim=True)].all())


@given(validation_and_test(), LEVELS, LEVELS, SEEDS)
def test_a_higher_level_never_takes_a_class_away(
    given_: tuple[Tensor, Tensor, Tensor], one: float, other: float, seed: int | None
) -> None:
    valid, labels, test = given_
    low, high = (conformal_sets(valid, labels, level, seed=seed).sets(test) for level in sorted((one, other)))
    assert bool((high | ~low).all())


@given(validation_and_test(), LEVELS, SEEDS, st.randoms(use_true_random=False))
def test_the_numbers_of_classes_do_not_matter(
    given_: tuple[Tensor, Tensor, Tensor], level: float, seed: int | None, random: object
) -> None:
    valid, labels, test = given_
    classes = valid.shape[1]
    order = torch.tensor(random.sample(range(classes), classes))  # type: ignore[attr-defined]
    renumbered = conformal_sets(valid[:, order], order.argsort()[labels], level, seed=seed)
    found = conformal_sets(valid, labels, level, seed=seed)
    assert renumbered == found
    assert torch.equal(renumbered.sets(test[:, order]), found.sets(test)[:, order])


def drawn(samples: int, sharpness: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Labels from known probabilities, and a model that believes in sharper ones than the true: it is overconfident."""
    logits = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(1.5 * logits, dim=1), 1, generator=generator).squeeze(1)
    return torch.softmax(sharpness * logits, dim=1), labels


@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("sharpness", [1.5, 4.0])
def test_coverage_over_resplits_is_the_level(level: float, sharpness: float, seed: int | None) -> None:
    """Given the validation samples, coverage of distinct scores follows Beta(k, N + 1 - k), k = ceil((N + 1) level)."""
    generator = torch.Generator().manual_seed(5)
    resplits, samples, tested = 100, 200, 500
    place = math.ceil((samples + 1) * level)
    law = stats.betabinom(tested, place, samples + 1 - place)
    coverage = []
    for split in range(resplits):
        probs, labels = drawn(samples + tested, sharpness, generator)
        rule = conformal_sets(probs[:samples], labels[:samples], level, seed=None if seed is None else seed + split)
        coverage.append(rule.figures(probs[samples:], labels[samples:])["set_coverage"])
    held = np.array(coverage) * tested
    error = law.std() / math.sqrt(resplits)
    assert held.mean() >= law.mean() - 3 * error
    assert (held >= law.ppf(1e-4)).all(), "each split within its own bound"
    if seed is not None:  # exact: no more than promised either
        assert held.mean() <= law.mean() + 3 * error
        assert (held <= law.isf(1e-4)).all()
        assert law.std() / 1.4 < held.std() < law.std() * 1.4


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_the_limit_of_an_honest_model_is_the_level_itself_even_where_classes_are_equal(level: float) -> None:
    """Its scores with a random part are uniform: the probability of the classes in a set is what it promises."""
    generator = torch.Generator().manual_seed(4)
    kinds = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0], [0.4, 0.3, 0.15, 0.15]], dtype=torch.float64)
    probs = kinds[torch.randint(3, (20_000,), generator=generator)]
    labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    assert conformal_sets(probs, labels, level, seed=0).limit == pytest.approx(level, abs=0.012)


def test_where_answers_alone_are_enough_only_the_seed_compares_models() -> None:
    generator = torch.Generator().manual_seed(2)
    truth = torch.randint(4, (2000,), generator=generator)
    right = torch.rand(2000, generator=generator) < 0.97
    answer = torch.where(right, truth, (truth + 1) % 4)
    probs = 0.02 + 0.92 * torch.nn.functional.one_hot(answer, 4).double()
    plain = conformal_sets(probs[:1000], truth[:1000]).figures(probs[1000:], truth[1000:])
    exact = conformal_sets(probs[:1000], truth[:1000], seed=0).figures(probs[1000:], truth[1000:])
    assert plain["singleton_sets"] == 1
    assert plain["set_coverage"] == pytest.approx(0.97, abs=0.02)
    assert exact["set_coverage"] == pytest.approx(0.9, abs=0.03)
    assert exact["set_size"] < 1
    assert exact["empty_sets"] == pytest.approx(1 - exact["singleton_sets"])


@pytest.mark.parametrize(("level", "least"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.55, 2)])
def test_a_level_that_so_few_samples_cannot_support_gives_full_sets_and_says_so(level: float, least: int) -> None:
    probs, labels = drawn(least, 2.0, torch.Generator().manual_seed(0))
    few, enough = conformal_sets(probs[:-1], labels[:-1], level), conformal_sets(probs, labels, level)
    assert not few.supported
    assert bool(few.sets(probs).all())
    assert few.figures(probs, labels)["set_size"] == 6
    assert enough.supported
    assert enough.limit < 1


def test_a_limit_at_a_level_that_floats_cannot_hold_is_the_one_that_was_written() -> None:
    """0.55 of 100 places is the 55th, although 100 * 0.55 is 55.00000000000001."""
    top = torch.linspace(0.51, 0.99, 99, dtype=torch.float64)
    probs = torch.stack([top, 1 - top], dim=1)
    assert conformal_sets(probs, torch.ones(99, dtype=torch.int64), 0.55).limit == top[54]


def test_a_seed_gives_the_same_sets_again_and_another_seed_others() -> None:
    probs, labels = drawn(300, 2.0, torch.Generator().manual_seed(1))
    first, again, other = (conformal_sets(probs, labels, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert torch.equal(first.sets(probs), again.sets(probs))
    assert not torch.equal(first.sets(probs), other.sets(probs))


def test_figures_have_their_names_and_are_plain_floats_from_any_dtype() -> None:
    probs, labels = drawn(50, 2.0, torch.Generator().manual_seed(3))
    rule = conformal_sets(probs.half().requires_grad_(), labels.to(torch.int32))
    figures = rule.figures(probs.float(), labels)
    assert tuple(figures) == metrics.OF_CONFORMAL
    assert all(type(value) is float for value in [*figures.values(), rule.limit, rule.level])
    assert rule.sets(probs).dtype == torch.bool
    assert rule.sets(probs[:0]).shape == (0, 6)


HALVES = torch.tensor([[0.5, 0.5]])
RULE = ConformalSets(0.9, 0.5, classes=3, samples=20)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: conformal_sets(HALVES, torch.tensor([0]), 90.0), "level is 90.0; a share .* such as 0.9"),
        (lambda: conformal_sets(HALVES, torch.tensor([0]), 1.0), "level is 1.0; a share"),
        (lambda: conformal_sets(HALVES, torch.tensor([0]), seed=-1), "seed must be at least 0, got -1"),
        (lambda: RULE.sets(HALVES), "probs have 2 classes; 3 expected"),
        (lambda: RULE.sets(HALVES * 3), "sample 0 sum to 3"),
        (lambda: RULE.figures(torch.ones(1, 3) / 3, torch.tensor([3])), "from 3 to 3; expected within 0 .. 2"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
