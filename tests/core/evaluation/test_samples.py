"""Answers to single test samples survive being packed, are few bytes, and agree with the figures of their trial."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import Toy, ToyData

from nbsr_core import metrics
from nbsr_core.domains.domain import Signature
from nbsr_core.errors import InputError
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions, evaluate_classification
from nbsr_core.evaluation.samples import MOST_SAMPLES, sample_row, unpack
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Split, Splits


def predictions(samples: int, classes: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = (3 * torch.randn(samples, classes, generator=generator)).softmax(-1)
    return probs, torch.randint(classes, (samples,), generator=generator)


@given(samples=st.integers(1, 70), classes=st.integers(2, 6), seed=st.integers(0, 99))
def test_what_is_packed_comes_back(samples: int, classes: int, seed: int) -> None:
    probs, y = predictions(samples, classes, seed)
    early = torch.arange(samples) % 3 == 0
    row = json.loads(json.dumps(sample_row("test", "fast", probs, y, early)))
    found = unpack(row)
    assert found.right.tolist() == [int(p.argmax()) == int(label) for p, label in zip(probs, y, strict=True)]
    exact = [-math.log(float(p[label])) for p, label in zip(probs, y, strict=True)]
    assert found.nll == pytest.approx(exact, rel=1e-3, abs=1e-4)
    assert found.early is not None
    assert found.early.tolist() == early.tolist()
    assert (row["set"], row["use"], row["count"], found.of) == ("test", "fast", samples, samples)


def test_a_true_class_of_no_probability_is_a_finite_surprise() -> None:
    found = unpack(sample_row("test", "", torch.tensor([[1.0, 0.0]]), torch.tensor([1])))
    assert found.nll == pytest.approx([metrics.nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))], rel=1e-3)
    assert found.early is None


def test_ten_thousand_samples_are_some_tens_of_kilobytes() -> None:
    text = json.dumps(sample_row("test", "", *predictions(10_000)))
    assert len(text) < 30_000


def test_of_a_very_large_set_evenly_spaced_samples_are_kept_and_the_row_says_so() -> None:
    samples = 2 * MOST_SAMPLES + 10_000
    probs, y = predictions(samples)
    row = sample_row("noise_draws", "", probs, y)
    found = unpack(row)
    assert (row["count"], row["of"], found.of) == (MOST_SAMPLES, samples, samples)
    step = samples / MOST_SAMPLES
    kept = [math.floor(place * step) for place in range(MOST_SAMPLES)]
    assert found.right.tolist() == (probs.argmax(1) == y)[kept].tolist()


def test_the_checksum_tells_whether_two_models_were_asked_about_the_same_samples() -> None:
    probs, y = predictions(40)
    other = sample_row("test", "", probs.flip(0), y)
    assert sample_row("test", "fast", probs, y)["labels"] == other["labels"]
    assert sample_row("test", "", probs, y.flip(0))["labels"] != other["labels"]


@pytest.mark.parametrize(
    "change",
    [
        {"right": "no base64!"},
        {"right": "AAAA"},
        {"nll": "AAAA"},
        {"nll": None},
        {"count": 39},
        {"count": 0},
        {"labels": ...},
        {"nll": sample_row("x", "", torch.full((40, 2), 0.5), torch.zeros(40, dtype=torch.int64))["right"]},
    ],
)
def test_a_row_of_something_else_is_refused(change: dict[str, object]) -> None:
    row = {**sample_row("test", "", *predictions(40)), **change}
    with pytest.raises(InputError, match="not a row of samples"):
        unpack({name: value for name, value in row.items() if value is not ...})


def learned(kind: str) -> tuple[Evaluation, Learner, Splits]:
    """A model with a second test set; NBSR lets half of the walks end at depth 1."""
    domain = Toy()
    splits = domain.load(ToyData(), 0)
    splits.extra["far"] = Split(2 * splits.test.x, splits.test.y)
    torch.manual_seed(0)
    signature = Signature.of(splits)
    learner = domain.models[kind].build(domain.models[kind].options(), signature)
    eta = float(learner.trace(splits.test.x).entropy[1].median()) if isinstance(learner, NbsrLearner) else None
    return evaluate_classification(learner, splits, EvaluationOptions(eta=eta)), learner, splits


@pytest.mark.parametrize("kind", ["nbsr", "mlp"])
def test_each_labelled_test_set_is_kept_for_each_use_and_agrees_with_its_figures(kind: str) -> None:
    evaluation, _, _ = learned(kind)
    rows = {(row["set"], row["use"]): unpack(row) for row in evaluation.tables["samples"]}
    of_walks = {("test", "fast"), ("far", "fast"), ("test", "depth1")}
    assert rows.keys() == {("test", ""), ("far", ""), *(of_walks if kind == "nbsr" else ())}
    for (data, use), answers in rows.items():
        where = use if data == "test" and use else f"{data}/{use}".rstrip("/")
        assert answers.right.mean() == pytest.approx(evaluation.metrics[f"{where}/accuracy"])
        assert answers.nll.mean() == pytest.approx(evaluation.metrics[f"{where}/nll"], rel=1e-3)


def test_whose_walk_ended_at_depth_1_is_kept_with_early_exits() -> None:
    evaluation, learner, splits = learned("nbsr")
    assert isinstance(learner, NbsrLearner)
    (fast,) = [row for row in evaluation.tables["samples"] if (row["set"], row["use"]) == ("test", "fast")]
    early = unpack(fast).early
    assert early is not None
    depth = learner.trace(splits.test.x).exit_depth(evaluation.metrics["fast/eta"])
    assert np.array_equal(early, (depth == 1).numpy())
    assert 0 < early.sum() < len(early), "some end there, and some go on"
