"""A difference counts where neither seeds nor samples nor the number of comparisons explain it, and says on what."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_answers import flags, results
from nbsr_platform.report.comparing import compare
from nbsr_platform.report.differences import Asked, Difference, Line, compared, difference, holm
from nbsr_platform.report.html_page import page
from nbsr_platform.report.resampling import judged, means_of, over_drawn_seeds, resampled_means, resamples_for
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.verdicts import answer

probabilities = st.floats(0, 1, allow_subnormal=False)


class TestHolm:
    def test_cases_by_hand(self) -> None:
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert holm([0.02]) == [0.02]
        assert holm([0.5, 0.6]) == [1.0, 1.0]
        assert holm([0.01, 0.01, 0.01]) == pytest.approx([0.03] * 3)
        assert holm([]) == []

    @given(st.lists(probabilities, min_size=1, max_size=7))
    def test_it_is_bonferroni_in_every_part_of_the_family(self, values: list[float]) -> None:
        """Closed testing: a hypothesis falls if, in every subset that it is in, Bonferroni's test falls."""
        places = range(len(values))
        subsets = [chosen for size in range(1, len(values) + 1) for chosen in combinations(places, size)]
        for place, corrected in zip(places, holm(values), strict=True):
            tests = [min(1.0, len(s) * min(values[i] for i in s)) for s in subsets if place in s]
            assert corrected == pytest.approx(max(tests), abs=1e-12)

    @given(st.lists(probabilities, min_size=1, max_size=20), st.floats(0.001, 0.5))
    def test_it_decides_as_the_steps_from_the_smallest_on(self, values: list[float], level: float) -> None:
        order = sorted(range(len(values)), key=lambda place: values[place])
        fallen: set[int] = set()
        for step, place in enumerate(order):
            if values[place] * (len(values) - step) >= level:
                break
            fallen.add(place)
        assert {place for place, p in enumerate(holm(values)) if p < level} == fallen

    @given(st.lists(probabilities, min_size=1, max_size=20))
    def test_nothing_gets_surer_and_the_order_stays(self, values: list[float]) -> None:
        corrected = holm(values)
        assert all(p <= q <= 1 for p, q in zip(values, corrected, strict=True))
        assert all(corrected[i] <= corrected[j] for i, p in enumerate(values) for j, q in enumerate(values) if p < q)


class TestBootstrap:
    def test_two_samples_have_three_means(self) -> None:
        """Exactly: 1/4, 1/2 and 1/4."""
        drawn = resampled_means(np.array([[0.0, 10.0], [1.0, 20.0]]), 40_000)
        assert np.allclose(drawn[:, 1], 10 * drawn[:, 0] + 10), "all columns are averaged over the same drawn rows"
        shares = [(drawn[:, 0] == value).mean() for value in (0, 0.5, 1)]
        assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.01)

    @pytest.mark.parametrize("same_samples", [True, False])
    def test_intervals_are_those_of_drawing_seeds_and_samples_one_by_one(self, same_samples: bool) -> None:
        chance, counts = random.Random(3), [9] * 5 if same_samples else [9, 12, 9, 7, 10]
        gaps = [[chance.gauss(0.1 * seed, 1) for _ in range(count)] for seed, count in enumerate(counts)]

        def one_resample() -> float:
            rows = [chance.random() for _ in range(max(counts))]
            means = []
            for _ in gaps:
                seed = chance.choice(gaps)
                drawn = rows if same_samples else [chance.random() for _ in seed]
                means.append(sum(seed[int(place * len(seed))] for place in drawn) / len(seed))
            return sum(means) / len(means)

        reference = np.array([one_resample() for _ in range(20_000)])
        means = means_of(dict(enumerate(map(np.array, gaps))), 20_000)
        drawn = over_drawn_seeds(np.stack([means[seed] for seed in range(5)], axis=1), same_samples=same_samples)
        shares = [0.025, 0.25, 0.5, 0.75, 0.975]
        assert np.quantile(drawn, shares) == pytest.approx(np.quantile(reference, shares), abs=0.03)
        assert drawn.std() == pytest.approx(reference.std(), rel=0.03)

    def test_samples_that_all_seeds_share_count_once(self) -> None:
        """The same answers for every seed: ten seeds know no more of other samples than one."""
        alone = np.random.default_rng(0).normal(size=200)
        drawn = means_of({"one": alone}, 4000)["one"]
        shared = over_drawn_seeds(np.stack([drawn] * 10, axis=1), same_samples=True)
        assert shared.std() == pytest.approx(alone.std() / np.sqrt(200), rel=0.05)
        apart = over_drawn_seeds(np.stack([drawn] * 10, axis=1), same_samples=False)
        assert apart.std() == pytest.approx(alone.std() / np.sqrt(2000), rel=0.05)

    def test_the_p_value_counts_resamples_beyond_zero(self) -> None:
        drawn = np.array([-1.0, 0.0, *[2.0] * 97])
        assert judged(drawn, 1.9, 10).p == pytest.approx(2 * 3 / 100)
        assert judged(-drawn, -1.9, 10).p == pytest.approx(2 * 3 / 100)
        assert judged(np.zeros(99), 0.0, 10).p == 1.0

    @pytest.mark.parametrize("family", [1, 30, 400])
    def test_there_are_resamples_enough_for_the_smallest_p_to_survive_correction(self, family: int) -> None:
        surest = judged(np.ones(resamples_for(family)), 1.0, 10).p
        assert holm([surest] * family)[0] < 0.05

    def test_columns_of_any_length_are_drawn_alike_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        columns = {name: np.random.default_rng(name).normal(size=20 + name % 2) for name in range(7)}
        whole = means_of(columns, 50)
        monkeypatch.setattr("nbsr_platform.report.resampling.VALUES_AT_ONCE", 45)
        monkeypatch.setattr("nbsr_platform.report.resampling.COUNTS_AT_ONCE", 60)
        parts = means_of(columns, 50)
        assert parts.keys() == whole.keys()
        for name, drawn in whole.items():
            assert len(drawn) == 50
            assert parts[name].mean() == pytest.approx(drawn.mean(), abs=0.2)


def only(study_results: StudyResults, figure: str = "accuracy") -> Difference:
    (gap,) = [gap for gap in study_results.comparisons if gap.figure == figure and gap.line == "nbsr deep"]
    return gap


SEEDS = range(4)


def test_a_difference_that_seeds_and_samples_show_is_decided_and_says_what_it_rests_on() -> None:
    study = results({"nbsr": [flags(20 + s) for s in SEEDS], "mlp": [flags(60 + 2 * s) for s in SEEDS]})
    gap = only(study)
    assert gap.resampled is not None
    assert gap.p is not None
    assert gap.resampled.interval.low > 0
    assert gap.verdict == "better"
    assert gap.rests_on == "4 seeds, 200 samples"
    assert max(gap.p, gap.resampled.p) <= gap.corrected < 0.05  # type: ignore[operator]
    assert only(study, "nll").verdict == "better"
    said = answer(study)
    assert "a difference that neither seeds nor samples explain (corrected p =" in said[1]
    assert "4 seeds, 200 samples" in said[1]
    assert "NBSR is ahead: nbsr deep in accuracy (against mlp), nbsr deep in NLL (against mlp)" in said[2]
    text = page([study], "t")
    assert "4 seeds, 200 samples" in text
    assert "corrected for 2 comparisons (Holm)" in text


def test_the_same_small_difference_in_every_seed_is_not_decided_by_so_few_samples() -> None:
    """One sample of twenty more in every seed: the t-test has no doubt, but another twenty samples might differ."""
    study = results({"nbsr": [flags(4, 20)] * 4, "mlp": [flags(5, 20)] * 4})
    gap = only(study)
    assert gap.p == 0.0
    assert gap.resampled is not None
    assert gap.resampled.p > 0.05
    assert gap.verdict == "undecided"
    for _, result in study.finished:
        del result.tables["samples"]
    assert only(replace(study)).verdict == "better", "as far as seeds can tell"


def test_a_difference_of_other_samples_in_each_seed_is_not_decided_by_seeds_that_disagree() -> None:
    study = results({"nbsr": [flags(n) for n in (10, 90, 20, 80)], "mlp": [flags(60)] * 4})
    gap = only(study)
    assert gap.p is not None
    assert gap.p > 0.05
    assert gap.verdict == "undecided"
    assert "not told apart by these seeds and samples" in answer(study)[1]


def test_a_tie_is_equal_and_counts_in_the_family() -> None:
    study = results({"nbsr": [flags(30, beginning=7 * s) for s in SEEDS], "mlp": [flags(30) for s in SEEDS]})
    gap = only(study)
    assert (gap.verdict, gap.p, gap.corrected) == ("equal", None, 1.0)
    assert gap.text == "+0.00 points (95% +0.00 to +0.00)"
    assert "the same in every seed" in answer(study)[1]
    assert "2 of 2 comparisons are not decided" in answer(study)[2]


def test_one_seed_has_no_verdict_however_many_samples_there_are() -> None:
    study = results({"nbsr": [flags(5, 5000)], "mlp": [flags(900, 5000)]})
    gap = only(study)
    assert (gap.verdict, gap.corrected, gap.resampled) == ("not tested", None, None)
    assert gap.reason == "fewer than 3 common seeds"
    assert gap.rests_on == "1 seed: too few for a test"
    assert "No verdict on any of 2 comparisons" in answer(study)[2]


def test_answers_to_other_samples_are_not_paired() -> None:
    right = {"nbsr": [flags(20 + s) for s in SEEDS], "mlp": [flags(60 + 2 * s) for s in SEEDS]}
    gap = only(results(right, first=lambda model, seed: int(model == "mlp")))
    assert gap.resampled is None
    assert gap.rests_on == "4 seeds"
    assert gap.verdict == "better", "seeds alone decide where samples cannot be asked"


def test_samples_of_its_own_in_each_seed_say_more_than_the_same_ones() -> None:
    right = {"nbsr": [flags(20 + s) for s in SEEDS], "mlp": [flags(30 + s) for s in SEEDS]}
    same, own = (only(results(right, first=first)) for first in (lambda m, s: 0, lambda m, s: s % 3))
    assert same.resampled is not None
    assert own.resampled is not None
    widths = [found.interval.high - found.interval.low for found in (own.resampled, same.resampled)]
    assert widths[0] < 0.8 * widths[1]


def test_the_more_is_compared_the_surer_a_difference_must_be() -> None:
    study = results({"nbsr": [flags(n) for n in (20, 26, 22, 24)], "mlp": [flags(n) for n in (31, 31, 31, 31)]})
    deep, mlp = study.lines
    alone = difference(deep, mlp, "accuracy")
    assert alone is not None
    assert alone.verdict == "better"
    sets = [f"{name}/accuracy" for name in "abcdefghijkl"]
    for _, result in study.finished:
        result.metrics |= dict.fromkeys(sets, result.metrics["test/accuracy"])
    first, *others = compared([Asked(deep, mlp, name) for name in ("accuracy", *sets)])
    assert first is not None
    assert alone.larger_p is not None
    assert first.corrected == pytest.approx(13 * alone.larger_p), "all of them are as sure as each other"
    assert len(others) == 12
    assert first.verdict == "undecided"
    assert first.interval == alone.interval


def test_perplexities_are_resampled_through_the_likelihood() -> None:
    study = results({"nbsr": [flags(20 + s) for s in SEEDS], "mlp": [flags(60 + 2 * s) for s in SEEDS]})
    for _, result in study.finished:
        result.metrics["test/perplexity"] = float(np.exp(result.metrics["test/nll"]))
    deep, mlp = study.lines
    gap = difference(deep, mlp, "perplexity")
    assert gap is not None
    assert gap.resampled is not None
    assert gap.resampled.interval.low < gap.interval.estimate < gap.resampled.interval.high < 0
    assert gap.verdict == "better"


def test_seen_from_the_other_side_it_is_the_same_difference() -> None:
    gap = only(results({"nbsr": [flags(20 + s) for s in SEEDS], "mlp": [flags(60 + 2 * s) for s in SEEDS]}))
    turned = gap.reversed
    assert (turned.line, turned.other, turned.verdict) == ("mlp", "nbsr deep", "worse")
    assert turned.interval.low == -gap.interval.high
    assert turned.resampled is not None
    assert gap.resampled is not None
    assert (turned.resampled.interval.low, turned.resampled.p) == (-gap.resampled.interval.high, gap.resampled.p)
    assert turned.reversed == gap


def test_prices_are_shown_without_a_verdict() -> None:
    study = results({"nbsr": [flags(20 + s) for s in SEEDS], "mlp": [flags(60 + 2 * s) for s in SEEDS]})
    for trial, result in study.finished:
        result.metrics["test/coverage"] = 0.9 + trial.seed / 1000 + (0.05 if trial.label == "nbsr" else 0)
    gap = only(study, "coverage")
    assert (gap.verdict, gap.reason, gap.corrected) == ("not judged", "nobody wins by it alone", None)
    assert "corrected for 2 comparisons" in page([study], "t")


def test_errors_of_the_answered_are_judged_between_those_who_withhold_by_the_same_rule() -> None:
    """Vacuity and confidence withhold other answers; which are worth withholding is asked by confidence of all."""
    study = results({"nbsr": [flags(20 + s) for s in SEEDS], "mlp": [flags(60 + 2 * s) for s in SEEDS]})
    for trial, result in study.finished:
        nbsr = trial.label == "nbsr"
        worse = trial.seed / 1000 + (0.05 if nbsr else 0)
        result.metrics |= {"test/error_answered": 0.1 + worse, "test/augrc": 0.02 + worse}
        result.metrics |= {"test/max_vacuity" if nbsr else "test/max_doubt": 0.5}
    gap = only(study, "error_answered")
    assert (gap.verdict, gap.corrected) == ("not judged", None)
    assert gap.reason == "not treated alike: answers are withheld by vacuity and by confidence"
    assert only(study, "augrc").verdict == "worse"
    for _, result in study.finished:
        result.metrics["test/max_doubt"] = result.metrics.pop("test/max_vacuity", 0.5)
    assert only(replace(study), "error_answered").verdict == "worse"


def doubting(*, density: Mapping[str, object], judged_by: Mapping[str, object]) -> Difference:
    """NBSR with such a density factor against a network that doubts so, about pictures of no known kind."""
    right = [flags(20 + s) for s in SEEDS]
    study = results({"nbsr": right, "mlp": right})
    treated = []
    for trial, result in study.finished:
        nbsr = trial.label == "nbsr"
        result.metrics |= {"ood/x/auroc": 0.99 if nbsr else 0.8 + trial.seed / 100, "ood/x/auroc_confidence": 0.8}
        options = {**trial.options, "density": density} if nbsr else trial.options
        treated.append((replace(trial, options=options, evaluation={**trial.evaluation, **judged_by}), result))
    walks, flat = replace(study, finished=treated).lines
    gap = difference(walks, flat, "ood/x/auroc")
    assert gap is not None
    return gap


MEASURED = {"directions": None, "normalise": True, "power": 0.5}


def test_who_doubts_by_a_distance_is_ahead_only_of_those_who_have_the_same_one_beside_them() -> None:
    density = {"enabled": True, **MEASURED}
    alike = {"doubt": "mahalanobis", "mahalanobis": MEASURED}
    assert doubting(density=density, judged_by=alike).verdict == "better"
    assert doubting(density={"enabled": False}, judged_by={"doubt": "energy"}).verdict == "better"
    otherwise: dict[str, object] = {"doubt": "mahalanobis", "mahalanobis": {**MEASURED, "power": 1.0}}
    for judged_by in ({}, {"doubt": "knn"}, otherwise):
        gap = doubting(density=density, judged_by=judged_by)
        assert gap.verdict == "not judged"
        assert "one doubts by a distance (directions None, normalise True, power 0.5)" in str(gap.reason)


class TestTreatedAlike:
    def two(self, **changed: object) -> tuple[StudyResults, StudyResults]:
        """The same models twice, the second judged with other options."""
        right = {"nbsr": [flags(20 + s) for s in SEEDS], "mlp": [flags(60 + 2 * s) for s in SEEDS]}
        first, second = results({"mlp": right["mlp"]}), results({"mlp": right["nbsr"]})
        other = [(replace(t, evaluation={**t.evaluation, **changed}), result) for t, result in second.finished]
        return first, replace(second, finished=other)

    def test_alike_they_get_a_verdict(self) -> None:
        (pair,) = compare(*([one] for one in self.two(audits=3, etas=[-1.0])))
        assert {line.verdict for line in pair.beside} == {"better"}
        assert not any("not treated alike" in words for words in pair.how)

    @pytest.mark.parametrize(("changed", "before"), [({"calibrate": False}, True), ({"max_vacuity": 0.5}, None)])
    def test_where_something_else_was_fitted_after_training_there_is_none_and_the_reason_is_said(
        self, changed: dict[str, object], before: object
    ) -> None:
        (pair,) = compare(*([one] for one in self.two(**changed)))
        ((name, value),) = changed.items()
        for line in pair.beside:
            assert line.verdict == "not judged"
            assert line.to_json()["reason"] == f"not treated alike: evaluation.{name} is {value!r} and {before!r}"
            assert line.to_json()["difference"] != 0, "it is compared all the same"
        (said,) = [words for words in pair.how if "not treated alike" in words]
        assert f"evaluation.{name}" in said
        assert f"evaluation.{name}" in page(self.two(), "t", compared=[pair])

    def test_thresholds_of_exits_matter_to_walks_that_may_exit_only(self) -> None:
        first, second = self.two(eta=-3.0)
        deep = [replace(line, name="deep") for line in second.lines]
        assert {gap.unlike for gap in compared([Asked(deep[0], first.lines[0], "accuracy")]) if gap} == {None}
        fast = Line("fast", "fast", "nbsr", second.groups[0])
        for _, result in second.finished:
            result.metrics["fast/accuracy"] = result.metrics["test/accuracy"]
        gap = difference(fast, first.lines[0], "accuracy")
        assert gap is not None
        assert gap.unlike == "evaluation.eta is -3.0 and None"
