"""Metrics against scikit-learn, scipy and cases small enough to work out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.errors import InputError
from nbsr_core.metrics import intervals

scores = st.lists(st.sampled_from([-math.inf, -1.5, 0.0, 0.25, 0.5, 1.0, 7.0]), min_size=1, max_size=30)


def predictions(samples: int, classes: int, seed: int, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    """Probabilities, and labels drawn from exactly these: perfectly calibrated by construction."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.softmax(sharpness * torch.randn(samples, classes, generator=generator), dim=1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(1)


def two_classes(confidence: list[float], correct: list[bool]) -> tuple[Tensor, Tensor]:
    """Binary predictions of class 0 with the given confidences (at least 0.5), right or wrong as told."""
    first = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([first, 1 - first], dim=1), torch.tensor([0 if right else 1 for right in correct])


@st.composite
def beliefs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Rows of counts over their sum: many ties, zeros and certainties."""
    classes = draw(st.integers(2, 5))
    row = st.lists(st.integers(0, 5), min_size=classes, max_size=classes).filter(any)
    counts = torch.tensor(draw(st.lists(row, min_size=1, max_size=40)), dtype=torch.float64)
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=len(counts), max_size=len(counts)))
    return counts / counts.sum(1, keepdim=True), torch.tensor(labels)


def binned_by_hand(probs: Tensor, labels: Tensor, bins: int) -> list[tuple[int, float, float]]:
    """Count, mean confidence and accuracy of each bin, sample by sample and in plain Python."""
    members: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        bin_ = next((m for m in range(bins) if confidence <= (m + 1) / bins), bins - 1)
        members[bin_].append((confidence, row.index(confidence) == label))
    return [
        (len(bin_), fmean(c for c, _ in bin_), fmean(r for _, r in bin_)) if bin_ else (0, math.nan, math.nan)
        for bin_ in members
    ]


# --- classification ---


@pytest.mark.parametrize("classes", [2, 3, 41])
def test_agrees_with_scikit_learn(classes: int) -> None:
    probs, labels = predictions(400, classes, seed=classes)
    every_class = list(range(classes))
    exact = probs.double().numpy()
    assert metrics.accuracy(probs, labels) == sk.accuracy_score(labels, exact.argmax(1))
    exact = exact / exact.sum(1, keepdims=True)
    assert metrics.nll(probs, labels) == pytest.approx(sk.log_loss(labels, exact, labels=every_class), rel=1e-6)
    reference = sk.brier_score_loss(labels, exact, labels=every_class, scale_by_half=False)
    assert metrics.brier(probs, labels) == pytest.approx(reference, rel=1e-6)


def test_confusion_agrees_with_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, true = torch.randint(5, (2, 300), generator=generator)
    ours = metrics.confusion(predicted, true, num_classes=6)
    assert ours.tolist() == sk.confusion_matrix(true, predicted, labels=range(6)).tolist()


def test_certain_and_wrong_has_a_finite_nll_and_the_worst_brier() -> None:
    probs, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert metrics.nll(probs, labels) == pytest.approx(-math.log(metrics.PROBABILITY_FLOOR))
    assert metrics.brier(probs, labels) == 2.0


def test_ece_of_a_case_worked_out_by_hand() -> None:
    probs, labels = two_classes([0.55, 0.65, 0.62, 0.95, 1.0], [True, False, True, True, False])
    # bins (0.5, 0.6]: |1 - 0.55| once; (0.6, 0.7]: |0.5 - 0.635| twice; (0.9, 1.0]: |0.5 - 0.975| twice
    assert metrics.ece(probs, labels) == pytest.approx((0.45 + 2 * 0.135 + 2 * 0.475) / 5)


def test_certainty_shares_the_last_bin() -> None:
    probs, labels = two_classes([1.0, 0.95, 1.0], [True, True, False])
    diagram = metrics.reliability(probs, labels, bins=10)
    assert diagram.count.tolist() == [0] * 9 + [3]
    assert diagram.gap == pytest.approx(2.95 / 3 - 2 / 3)


@pytest.mark.parametrize(("confidence", "bin_"), [(0.5, 4), (0.5 + 1e-9, 5), (0.7, 6), (0.9, 8), (1.0, 9)])
def test_an_edge_belongs_to_the_bin_below(confidence: float, bin_: int) -> None:
    probs, labels = two_classes([confidence], [True])
    assert metrics.reliability(probs, labels, bins=10).count.argmax() == bin_


@given(beliefs(), st.integers(1, 12))
def test_bins_are_those_of_a_plain_loop(given_beliefs: tuple[Tensor, Tensor], bins: int) -> None:
    probs, labels = given_beliefs
    diagram = metrics.reliability(probs, labels, bins)
    ours = zip(diagram.count.tolist(), diagram.confidence.tolist(), diagram.accuracy.tolist(), strict=True)
    expected = binned_by_hand(probs, labels, bins)
    for got, wanted in zip(ours, expected, strict=True):
        assert got == pytest.approx(wanted, nan_ok=True)
    by_hand = sum(n * abs(a - c) for n, c, a in expected if n) / len(labels)
    assert metrics.ece(probs, labels, bins) == pytest.approx(by_hand)
    assert diagram.edges.tolist() == pytest.approx([m / bins for m in range(bins + 1)])


def test_adaptive_bins_hold_equally_many() -> None:
    probs, labels = predictions(103, 3, seed=1)
    diagram = metrics.reliability(probs, labels, bins=10, equal_mass=True)
    assert set(diagram.count.tolist()) == {10, 11}
    order = probs.double().amax(1).argsort()
    right = (probs.argmax(1) == labels).double()
    gaps = []
    for members in np.split(order.numpy(), np.cumsum(diagram.count.numpy())[:-1]):
        gaps += [abs(right[members].mean() - probs.double().amax(1)[members].mean()) * len(members)]
    assert metrics.adaptive_ece(probs, labels) == pytest.approx(sum(gap.item() for gap in gaps) / 103)


@given(beliefs(), st.integers(1, 12), st.randoms(use_true_random=False))
def test_calibration_error_ignores_the_order_of_samples(
    given_beliefs: tuple[Tensor, Tensor], bins: int, random: object
) -> None:
    probs, labels = given_beliefs
    order = torch.tensor(random.sample(range(len(labels)), len(labels)))  # type: ignore[attr-defined]
    for error in (metrics.ece, metrics.adaptive_ece):
        shuffled = error(probs[order], labels[order], bins)
        assert error(probs, labels, bins) == pytest.approx(shuffled, abs=1e-12)
        assert 0 <= shuffled <= 1


def test_adaptive_sees_errors_that_cancel_within_a_wide_bin() -> None:
    probs, labels = two_classes([0.91] * 10 + [0.99] * 10, [True] * 10 + [True] * 9 + [False])
    assert metrics.ece(probs, labels) == pytest.approx(0.0)
    assert metrics.adaptive_ece(probs, labels, bins=2) == pytest.approx(0.09)


def test_calibrated_streams_have_vanishing_error() -> None:
    for error in (metrics.ece, metrics.adaptive_ece):
        few, many = (error(*predictions(samples, 5, seed=3)) for samples in (300, 200_000))
        assert many < 0.005 < few


def test_what_every_model_logs() -> None:
    probs, labels = predictions(500, 4, seed=5)
    logged = metrics.classification_metrics(probs, labels)
    assert logged == {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "adaptive_ece": metrics.adaptive_ece(probs, labels),
        "brier": metrics.brier(probs, labels),
        "mean_confidence": pytest.approx(probs.amax(1).mean().item()),
    }
    assert all(type(value) is float for value in logged.values())


# --- out-of-distribution scores, selective risk ---


@given(scores, scores)
def test_auroc_and_fpr95_agree_with_scikit_learn(known: list[float], unknown: list[float]) -> None:
    ours = torch.tensor(known), torch.tensor(unknown)
    truth = [1] * len(known) + [0] * len(unknown)
    ranks = stats.rankdata(known + unknown)  # scikit-learn takes no infinities; only the order counts
    assert metrics.auroc(*ours) == pytest.approx(sk.roc_auc_score(truth, ranks))
    false_positive, true_positive, _ = sk.roc_curve(truth, ranks, drop_intermediate=False)
    assert metrics.fpr95(*ours) == pytest.approx(false_positive[np.argmax(true_positive >= 0.95 - 1e-12)])


@pytest.mark.parametrize(("samples", "left_out"), [(19, 0), (20, 1), (39, 1), (40, 2), (100, 5)])
def test_fpr95_leaves_out_no_more_than_a_twentieth_of_the_known(samples: int, left_out: int) -> None:
    known = torch.arange(samples).float()
    just_admitted, just_refused = known[left_out, None], known[left_out, None] - 0.5
    assert (metrics.fpr95(known, just_admitted), metrics.fpr95(known, just_refused)) == (1.0, 0.0)


def test_higher_scores_mean_in_distribution() -> None:
    known, unknown = torch.linspace(1, 2, 40), torch.linspace(-1, 0, 30)
    assert (metrics.auroc(known, unknown), metrics.auroc(unknown, known)) == (1.0, 0.0)
    assert (metrics.fpr95(known, unknown), metrics.fpr95(unknown, known)) == (0.0, 1.0)


def test_risk_coverage_of_a_case_worked_out_by_hand() -> None:
    curve = metrics.risk_coverage(torch.tensor([0.6, 0.9, 0.6, 0.8]), torch.tensor([True, True, False, False]))
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1.5 / 3, 2 / 4])
    assert curve.aurc == pytest.approx(1.5 / 4)


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.7, 0.9]), st.booleans()), min_size=1, max_size=30))
def test_aurc_lies_between_the_best_and_the_worst_order(pairs: list[tuple[float, bool]]) -> None:
    confidence = torch.tensor([c for c, _ in pairs])
    correct = torch.tensor([right for _, right in pairs])
    right_first = correct.float()
    best = metrics.risk_coverage(right_first + torch.linspace(0, 0.1, len(pairs)), correct).aurc
    worst = metrics.risk_coverage(-right_first + torch.linspace(0, 0.1, len(pairs)), correct).aurc
    curve = metrics.risk_coverage(confidence, correct)
    assert 0 <= best <= curve.aurc + 1e-12
    assert curve.aurc <= worst + 1e-12 <= 1 + 1e-9
    assert curve.risk[-1].item() == pytest.approx((~correct).double().mean().item())
    flat = metrics.risk_coverage(torch.full_like(confidence, 0.3), correct)
    assert flat.aurc == pytest.approx(curve.risk[-1].item())


ANSWERS = st.lists(st.tuples(st.sampled_from([-math.inf, 0.2, 0.5, 0.7, 0.9]), st.booleans()), min_size=1, max_size=30)


def unzipped(pairs: list[tuple[float, bool]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([score for score, _ in pairs]), torch.tensor([right for _, right in pairs])


def test_equal_confidences_give_the_expectation_over_random_orders() -> None:
    """All orders of the equal ones, sample by sample: the mean of both areas over them."""
    confidence = [0.9, 0.5, 0.5, 0.5, 0.5, 0.1]
    correct = [True, False, True, True, False, False]
    risks, generalised = [], []
    for order in permutations(range(6)):
        if [confidence[i] for i in order] == confidence:
            mistakes = [sum(not correct[i] for i in order[:taken]) for taken in range(7)]
            risks.append(fmean(mistakes[taken] / taken for taken in range(1, 7)))
            generalised.append(fmean((mistakes[taken] + mistakes[taken + 1]) / 2 / 6 for taken in range(6)))
    found = metrics.ranking_metrics(torch.tensor(confidence), torch.tensor(correct))
    assert len(risks) == 24
    assert found == {"aurc": pytest.approx(fmean(risks)), "augrc": pytest.approx(fmean(generalised))}
    assert tuple(found) == metrics.OF_RANKING
    assert all(type(value) is float for value in found.values())


@given(ANSWERS)
def test_augrc_is_what_accuracy_and_auroc_make_it(pairs: list[tuple[float, bool]]) -> None:
    """Traub et al. (2024): (1 - AUROC) acc (1 - acc) + (1 - acc)² / 2."""
    confidence, correct = unzipped(pairs)
    share = correct.double().mean().item()
    both = 0 < share < 1
    separation = metrics.auroc(confidence[correct], confidence[~correct]) if both else math.nan
    expected = (1 - share) ** 2 / 2 + ((1 - separation) * share * (1 - share) if both else 0)
    curve = metrics.risk_coverage(confidence, correct)
    assert curve.augrc == pytest.approx(expected)
    assert curve.generalised_risk.tolist() == pytest.approx((curve.risk * curve.coverage).tolist())


@given(st.integers(0, 20), st.integers(0, 20))
def test_areas_of_the_best_the_worst_and_no_ranking(right: int, wrong: int) -> None:
    samples = right + wrong
    if samples == 0:
        return
    correct = torch.tensor([True] * right + [False] * wrong)
    error = wrong / samples
    best, worst, none = (
        metrics.risk_coverage(confidence, correct)
        for confidence in (correct.float(), -correct.float(), torch.ones(samples))
    )
    assert best.augrc == pytest.approx(error**2 / 2), "1/2 if all are wrong, 0 if all are right"
    assert worst.augrc == pytest.approx(error - error**2 / 2)
    assert none.augrc == pytest.approx(error / 2)
    assert none.aurc == pytest.approx(error)


@given(ANSWERS, st.sampled_from([lambda c: 3 * c - 7, torch.exp, torch.atan, lambda c: torch.sign(c) * c**2]))
def test_only_the_order_of_the_confidence_counts(
    pairs: list[tuple[float, bool]], rising: Callable[[Tensor], Tensor]
) -> None:
    confidence, correct = unzipped(pairs)
    found = metrics.ranking_metrics(confidence, correct)
    assert metrics.ranking_metrics(rising(confidence.double()), correct) == found
    reordered = torch.arange(len(correct)).flip(0)
    assert metrics.ranking_metrics(confidence[reordered], correct[reordered]) == pytest.approx(found)


# --- intervals ---


def test_bootstrap_covers_the_true_mean_about_as_often_as_promised() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(400, 50, generator=generator).exp().double()
    intervals = [metrics.mean_interval(row, resamples=400, level=0.9, seed=i) for i, row in enumerate(samples)]
    truth = math.exp(0.5)
    assert 0.82 < np.mean([interval.low <= truth <= interval.high for interval in intervals]) < 0.94


def test_bootstrap_agrees_with_scipy() -> None:
    values = torch.randn(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = metrics.bootstrap_interval(torch.median, values, resamples=4000)
    reference = stats.bootstrap(
        (values.numpy(),), lambda v: np.sort(v)[(len(v) - 1) // 2], vectorized=False, n_resamples=4000,
        method="percentile", rng=0,
    ).confidence_interval  # fmt: skip
    assert ours.estimate == values.median().item()
    assert (ours.low, ours.high) == pytest.approx((reference.low, reference.high), abs=0.02)


def test_the_fast_mean_is_the_general_bootstrap_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.rand(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    monkeypatch.setattr(intervals, "_INDICES_AT_ONCE", 60 * 7)
    general = metrics.bootstrap_interval(torch.mean, values, resamples=100, seed=4)
    fast = metrics.mean_interval(values, resamples=100, seed=4)
    assert (fast.estimate, fast.low, fast.high) == pytest.approx((general.estimate, general.low, general.high))
    assert metrics.mean_interval(values, resamples=100, seed=4) == fast
    assert metrics.mean_interval(values, resamples=100, seed=5) != fast


def test_bootstrap_keeps_rows_of_several_arrays_together() -> None:
    probs, labels = predictions(80, 3, seed=6)
    certain = torch.nn.functional.one_hot(labels, 3).float()
    always_right = metrics.bootstrap_interval(metrics.accuracy, certain, labels, resamples=50)
    assert always_right == metrics.Interval(1.0, 1.0, 1.0)
    drawn = metrics.bootstrap_interval(metrics.ece, probs, labels, resamples=50)
    assert drawn.estimate == metrics.ece(probs, labels)
    assert drawn.low < drawn.high


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=8), st.sampled_from([0.5, 0.9, 0.95]))
def test_seed_interval_is_students(values: list[float], level: float) -> None:
    ours = metrics.seed_interval(values, level)
    error = stats.sem(values)
    low, high = stats.t.interval(level, len(values) - 1, np.mean(values), error) if error else (np.mean(values),) * 2
    assert (ours.estimate, ours.low, ours.high) == pytest.approx((np.mean(values), low, high), abs=1e-9)


def test_a_single_sample_has_an_estimate_and_no_bounds() -> None:
    one = torch.tensor([0.75])
    for interval in (
        metrics.seed_interval([0.75]),
        metrics.mean_interval(one, resamples=5),
        metrics.bootstrap_interval(torch.mean, one, resamples=5),
    ):
        assert interval.estimate == 0.75
        assert math.isnan(interval.low)
        assert math.isnan(interval.high)


# --- bad input ---

ON_PROBABILITIES = [
    metrics.accuracy,
    metrics.nll,
    metrics.brier,
    metrics.ece,
    metrics.adaptive_ece,
    metrics.reliability,
    metrics.classification_metrics,
    metrics.conformal_sets,
]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("metric", ON_PROBABILITIES, ids=lambda metric: metric.__name__)
@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        ([[0.5, 0.4]], [0], "sample 0 sum to 0.9; 1 ± 0.001 expected"),
        ([[0.5, 0.5], [3.0, 41.0]], [0, 1], "sample 1 sum to 44"),
        ([[0.5, math.nan]], [0], "hold nan; probabilities"),
        ([[0.5, math.inf]], [0], "sum to inf"),
        ([[1.5, -0.5]], [0], "hold -0.5; probabilities"),
        ([[0.5, 0.5]], [2], "from 2 to 2; expected within 0 .. 1"),
        ([[0.5, 0.5]], [-1], "from -1 to -1; expected within 0 .. 1"),
        ([[0.5, 0.5]], [0, 1], r"shape \(2,\); expected \(1,\)"),
        ([[0.5, 0.5]], [0.0], "dtype torch.float32; an integer type expected"),
        ([[0.5, 0.5]], [True], "dtype torch.bool; an integer type expected"),
        ([0.5, 0.5], [0, 1], r"shape \(2,\); expected floats \[N, K\]"),
        ([[0, 1]], [1], r"torch.int64 of shape \(1, 2\); expected floats"),
    ],
)
def test_bad_predictions_are_named(
    metric: Callable[[Tensor, Tensor], object], probs: list[float], labels: list[int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        metric(torch.tensor(probs), torch.tensor(labels))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.ece(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)), "at least one"),
        (lambda: metrics.ece(*predictions(5, 2, 0), bins=0), "bins is 0; at least 1"),
        (lambda: metrics.confusion(torch.tensor([0, 3]), torch.tensor([0, 1]), 3), "from 0 to 3; expected"),
        (lambda: metrics.confusion(torch.tensor([0]), torch.tensor([0, 1]), 3), r"\(1,\); expected \(2,\)"),
        (lambda: metrics.auroc(torch.tensor([]), torch.ones(2)), r"in_scores is .*\(0,\)"),
        (lambda: metrics.auroc(torch.ones(2), torch.tensor([math.nan])), "out_scores holds 1 NaN"),
        (lambda: metrics.fpr95(torch.ones(2, 2), torch.ones(2)), r"in_scores is .*\(2, 2\)"),
        (lambda: metrics.fpr95(torch.ones(2), torch.ones(2).long()), "out_scores is torch.int64"),
        (lambda: metrics.risk_coverage(torch.ones(2), torch.tensor([True])), r"\(1,\); expected .*\(2,\)"),
        (lambda: metrics.risk_coverage(torch.ones(1), torch.ones(1)), "float32 .* expected torch.bool"),
        (lambda: metrics.mean_interval(torch.ones(3), level=95.0), "level is 95.0; a share"),
        (lambda: metrics.mean_interval(torch.ones(3), resamples=0), "resamples is 0"),
        (lambda: metrics.bootstrap_interval(torch.mean), r"arrays have \[\] samples"),
        (lambda: metrics.bootstrap_interval(torch.mean, torch.ones(0)), r"arrays have \[0\] samples"),
        (lambda: metrics.bootstrap_interval(sum, torch.ones(2), torch.ones(3)), r"have \[2, 3\] samples"),
        (lambda: metrics.seed_interval([]), r"values is \[\]; one finite"),
        (lambda: metrics.seed_interval([0.5, math.nan]), r"values is \[0.5, nan\]; one finite"),
        (lambda: metrics.seed_interval([0.5, 0.6], level=1.0), "level is 1.0"),
    ],
)
def test_other_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@given(beliefs())
def test_dtype_of_the_input_changes_nothing_but_rounding(given_beliefs: tuple[Tensor, Tensor]) -> None:
    probs, labels = given_beliefs
    for smaller in (torch.float32, torch.float16):
        rounded = probs.to(smaller).requires_grad_()
        assert metrics.brier(rounded, labels.to(torch.int32)) == pytest.approx(metrics.brier(probs, labels), abs=2e-3)
