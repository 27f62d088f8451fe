"""Noise, bias and variance: the estimates against what they estimate, and the shipped study that draws them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.report import StudyResults, page
from nbsr_platform.report.decomposition import TERMS, Decomposed, changes, decompose, jackknife, terms
from nbsr_platform.study.study import Study
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import data_fingerprint, grid

STUDY = Path(__file__).parents[3] / "studies" / "theory" / "bias_variance.yaml"


def predictions(sets: int, seed: int, points: int = 40, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """A truth, and predictions whose logits are shifted (bias) and shaken (variance)."""
    shared, own = np.random.default_rng(0), np.random.default_rng(seed)
    logits = shared.normal(size=(points, classes))
    shaken = 0.5 * logits + 0.6 * own.normal(size=(sets, points, classes))

    def softmax(values: np.ndarray) -> np.ndarray:
        powers = np.exp(values)
        return np.asarray(powers / powers.sum(-1, keepdims=True))

    return softmax(logits), softmax(shaken)


def estimate(sets: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    truth, said = predictions(sets, seed)
    return terms(truth, said), np.stack([terms(truth, np.delete(said, leave, axis=0)) for leave in range(sets)])


def test_the_terms_add_up_and_only_the_paper_leaves_a_rest() -> None:
    truth, said = predictions(7, 1)
    found = dict(zip(TERMS, terms(truth, said), strict=True))
    assert found["noise"] + found["bias"] + found["variance"] + found["rest"] == pytest.approx(found["risk"])
    assert min(found["bias"], found["variance"]) > 0
    perfect = dict(zip(TERMS, terms(truth, np.stack([truth] * 5)), strict=True))
    assert perfect["risk"] == pytest.approx(perfect["noise"])
    assert perfect["bias"] == pytest.approx(0, abs=1e-12)
    assert perfect["variance"] == pytest.approx(0, abs=1e-12)


def test_few_training_sets_estimate_what_many_would_show() -> None:
    truth, said = predictions(20_000, 99)
    limit = dict(zip(TERMS, terms(truth, said), strict=True))
    inside, plain, corrected = 0, [], []
    for seed in range(60):
        whole, without = estimate(8, seed)
        found = dict(zip(TERMS, jackknife(whole, without), strict=True))
        inside += found["variance"].low <= limit["variance"] <= found["variance"].high
        plain.append(whole[1:3])
        corrected.append([found["bias"].estimate, found["variance"].estimate])
    limits = np.array([limit["bias"], limit["variance"]])
    assert (np.abs(np.mean(corrected, axis=0) - limits) < 0.3 * np.abs(np.mean(plain, axis=0) - limits)).all()
    assert inside >= 51, "a 95% interval holds it in about 57 of 60"


def test_an_options_effect_is_averaged_over_the_others() -> None:
    def made(depth: float, width: float, variance: float) -> Decomposed:
        values = np.array([0.3, 0.1, variance, 0.0, 0.4 + variance])
        return Decomposed("m", "deep", {"depth": depth, "width": width}, values, np.stack([values] * 4))

    found = [made(1, 1, 0.1), made(2, 1, 0.2), made(1, 4, 0.3), made(2, 4, 0.6), made(3, 9, 9.0)]
    depth, width = changes(found[:4])
    assert (depth.option, depth.low, depth.high) == ("depth", 1, 2)
    assert depth.intervals["variance"].estimate == pytest.approx(0.2)
    assert width.intervals["variance"].estimate == pytest.approx(0.3)
    assert "variance grows (+0.200" in depth.text
    assert changes([]) == []


def test_the_shipped_study_has_a_known_posterior_and_training_sets_of_its_own() -> None:
    study = Study.load(STUDY)
    domain = study.domain_object
    one, other = domain.load(study.data, 0), domain.load(study.data, 1)
    assert torch.equal(one.test.x, other.test.x)
    assert not torch.equal(one.train.x, other.train.x)
    sample = study.data.draw(40_000, torch.Generator().manual_seed(0))
    posterior = study.data.posterior(sample.x)
    assert torch.allclose(posterior.sum(-1), torch.ones(len(sample), dtype=torch.float64))
    for low in (0.1, 0.4, 0.7):
        near = (posterior[:, 0] > low) & (posterior[:, 0] < low + 0.2)
        assert float((sample.y[near] == 0).double().mean()) == pytest.approx(float(posterior[near, 0].mean()), abs=0.03)


def test_its_report_has_the_decomposition() -> None:
    study = Study.load(STUDY, ["seeds=4", "training.epochs=1", "data.train=40", "data.test=60"])
    study = replace(study, models={label: study.models[label] for label in ("d1w1", "d2w1", "d1w2", "d2w2")})
    finished = []
    for trial in grid(study, data_fingerprint(study)):
        *_, result = run_trial(trial, "cpu")
        assert isinstance(result, TrialResult)
        finished.append((trial, result))
    known = StudyResults(study, finished, wanted=len(finished))
    found = decompose(known)
    assert {(item.name, item.config) for item in found} == {
        (name, c) for name in study.models for c in ("deep", "fast")
    }
    assert found[0].options == {"graph.depth": 1, "graph.width": 1}
    text = page([known], "t")
    assert "data-kind=decomposition" in text
    assert "graph.depth from 1 to 2 (deep): bias " in text
    fewer = replace(known, finished=finished[:8])
    assert decompose(fewer) == [], "two training sets say nothing"
