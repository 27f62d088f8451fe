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
from nbsr_core.errors import InputError
from nbsr_core.evaluation.abstention import threshold
from nbsr_core.evaluation.evaluation import EvaluationOptions, classification_figures, evaluate_classification
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Splits

ANSWERED = EvaluationOptions().answered


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=60), st.sampled_from([0.5, ANSWERED, 1.0]))
def test_the_threshold_is_the_smallest_that_answers_as_many_as_asked(values: list[float], answered: float) -> None:
    doubt = torch.tensor(values, dtype=torch.float64)
    limit = threshold(doubt, answered)
    assert float((doubt <= limit).double().mean()) >= answered
    smaller = doubt[doubt < limit]
    if len(smaller):
        assert float((doubt <= smaller.max()).double().mean()) < answered


@pytest.mark.parametrize("kind", ["nbsr", "mlp"])
def test_a_study_says_which_share_is_answered_for_every_model(kind: str) -> None:
    learner, splits = learned(kind)
    swapped = replace(splits, test=splits.valid)  # what is chosen on these samples is kept on these samples
    judged = [EvaluationOptions(answered=share) for share in (0.5, 1.0)]
    found = [evaluate_classification(learner, swapped, options).metrics for options in judged]
    assert 0.5 <= found[0]["test/coverage"] < 0.6
    assert found[1]["test/coverage"] == 1.0
    for wrong in (0.0, 1.1):
        with pytest.raises(InputError, match=r"answered must lie in \(0, 1\]"):
            EvaluationOptions(answered=wrong)


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
