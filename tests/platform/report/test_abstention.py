"""'I don't know': the threshold comes from the validation split alone, and figures say what it costs and brings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import Toy, ToyData

from nbsr_core.domains.domain import Signature
from nbsr_core.evaluation.abstention import ANSWERED, threshold
from nbsr_core.evaluation.evaluation import EvaluationOptions, classification_figures, evaluate_classification
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Splits


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=60))
def test_the_threshold_is_the_smallest_that_answers_as_many_as_asked(values: list[float]) -> None:
    doubt = torch.tensor(values, dtype=torch.float64)
    limit = threshold(doubt)
    assert float((doubt <= limit).double().mean()) >= ANSWERED
    smaller = doubt[doubt < limit]
    if len(smaller):
        assert float((doubt <= smaller.max()).double().mean()) < ANSWERED


def learned(kind: str) -> tuple[Learner, Splits]:
    domain = Toy()
    splits = domain.load(ToyData(), 0)
    torch.manual_seed(0)
    options = domain.models[kind].options()
    return domain.models[kind].build(options, Signature.of(splits)), splits


def test_coverage_and_error_are_those_of_the_threshold_chosen_on_validation() -> None:
    learner, splits = learned("nbsr")
    assert isinstance(learner, NbsrLearner)
    found = evaluate_classification(learner, splits, EvaluationOptions()).metrics
    for prefix, eta in (("test", None), ("fast", found.get("fast/eta", math.inf))):
        limit = found[f"{prefix}/max_vacuity"]
        valid = learner.trace(splits.valid.x).exit(eta, limit)
        assert limit in valid.vacuity
        assert float((~valid.abstained).double().mean()) >= ANSWERED
        said = learner.trace(splits.test.x).exit(eta, limit)
        assert found[f"{prefix}/coverage"] == pytest.approx(float((~said.abstained).double().mean()))
        wrong = (said.label != splits.test.y)[~said.abstained]
        assert found[f"{prefix}/error_answered"] == pytest.approx(float(wrong.double().mean()))


@pytest.mark.parametrize("kind", ["nbsr", "mlp"])
def test_the_test_split_has_no_say_in_the_threshold(kind: str) -> None:
    learner, splits = learned(kind)
    other = replace(splits, test=replace(splits.test, x=100 * splits.test.x))
    before, after = (evaluate_classification(learner, each, EvaluationOptions()).metrics for each in (splits, other))
    assert before["test/coverage"] != after["test/coverage"]
    for name in ("test/max_vacuity", "fast/max_vacuity"):
        assert before.get(name) == after.get(name)
    assert ("test/max_vacuity" in before) == (kind == "nbsr")


def test_a_model_without_vacuity_goes_by_confidence_wherever_abstention_is_not_switched_off() -> None:
    learner, splits = learned("mlp")
    chosen, by_hand, never = (
        evaluate_classification(learner, splits, EvaluationOptions(max_vacuity=limit)).metrics
        for limit in (None, 0.5, 1.0)
    )
    assert by_hand == chosen
    assert by_hand["test/max_doubt"] in 1 - learner.probabilities(splits.valid.x).amax(-1)
    assert not [name for name in never if name.endswith(("/coverage", "/max_doubt"))]
    for limit, found in ((None, chosen), (0.5, by_hand), (1.0, never)):
        options = EvaluationOptions(max_vacuity=limit, calibrate=False)
        declared = classification_figures(learner, tuple(splits.extra), options)
        nobody_is_sure = {"test/controlled_doubt", "test/controlled_error"}  # of a model that was not trained
        assert declared - nobody_is_sure == found.keys()


def test_one_switches_it_off_and_a_number_sets_it() -> None:
    learner, splits = learned("nbsr")
    never = evaluate_classification(learner, splits, EvaluationOptions(max_vacuity=1.0))
    assert not [name for name in never.metrics if name.endswith(("/coverage", "/max_vacuity"))]
    assert all(audit["verdict"] != "abstained" for audit in never.audits)
    by_hand = evaluate_classification(learner, splits, EvaluationOptions(max_vacuity=1e-9))
    assert by_hand.metrics["test/coverage"] == 0
    assert "test/error_answered" not in by_hand.metrics
    chosen = evaluate_classification(learner, splits, EvaluationOptions())
    shared = never.metrics.keys()
    assert {name: chosen.metrics[name] for name in shared} == never.metrics, "no other figure changes"
