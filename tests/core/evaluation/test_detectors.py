"""Detectors of the unknown: each against its definition, all on the same features, for every model that has some."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from nbsr_core import metrics
from nbsr_core.belief.density import DensityFactor
from nbsr_core.domains.domain import Signature
from nbsr_core.domains.tabular import XGBOOST, BoostedTreesOptions
from nbsr_core.errors import InputError
from nbsr_core.evaluation.detectors import Seen, detectors_of, fit_detectors, look, nearest_neighbours, virtual_logit
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning.learners import Classifier, Inside, Learner, NbsrLearner
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.network import NBSR
from nbsr_core.options.specs import DETECTORS, DistanceSpec, EvaluationOptions, ExpertSpec, ObjectiveWeights

K, D = 3, 6


@pytest.fixture
def splits() -> Splits:
    """Three classes in two of the six directions; the others hardly vary."""
    centres = torch.zeros(K, D)
    centres[:, :2] = 4 * torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])

    def split(count: int) -> Split:
        y = torch.arange(count) % K
        spread = torch.tensor([1.0, 1.0, 0.2, 0.2, 0.2, 0.2])
        return Split(centres[y] + spread * torch.randn(count, D), y)

    return Splits(split(600), split(200), split(200), list("abc"), [f"x{i}" for i in range(D)], "made up", True)


def flat() -> Classifier:
    network = nn.Sequential()
    network.add_module("backbone", nn.Identity())
    network.add_module("head", nn.Linear(D, K))
    return Classifier(network)


def routed() -> NbsrLearner:
    graph = DecisionGraph.layered([2, 2])
    return NbsrLearner(NBSR(nn.Identity(), graph, K, D, experts=ExpertSpec(activation="exp")), ObjectiveWeights())


models = pytest.mark.parametrize("learner", [flat(), routed()], ids=["flat", "nbsr"])


@models
def test_what_is_inside_a_model_makes_its_answer(learner: Learner, splits: Splits) -> None:
    inside = learner.inside(splits.test.x)
    torch.testing.assert_close(inside.logits.softmax(-1), learner.raw_probabilities(splits.test.x))
    assert torch.equal(inside.features, splits.test.x), "the backbone is the identity"


@models
def test_distance_detectors_see_what_lies_outside_the_data(learner: Learner, splits: Splits) -> None:
    """Known classes moved into a direction that the training data does not use: an answer shows little of it."""
    strange = splits.test.x + torch.tensor([0.0, 0.0, 4.0, 0.0, 0.0, 0.0])
    detectors = fit_detectors(learner, splits, EvaluationOptions())
    assert list(detectors) == list(DETECTORS) == detectors_of(learner, DETECTORS)
    found = {
        name: metrics.auroc(score(look(learner, splits.test.x)), score(look(learner, strange)))
        for name, score in detectors.items()
    }
    assert min(found[name] for name in ("mahalanobis", "knn")) > 0.95, found


def test_the_energy_of_nbsr_is_the_logarithm_of_its_precision(splits: Splits) -> None:
    learner = routed()
    energy = fit_detectors(learner, splits, EvaluationOptions(detectors=("energy",)))["energy"]
    precision = learner.trace(splits.test.x).precision[-1]
    torch.testing.assert_close(energy(look(learner, splits.test.x)), precision.log(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("measured", [DistanceSpec(), DistanceSpec(directions=2, normalise=False, power=0.5)])
def test_mahalanobis_is_the_distance_of_a_density_factor_with_the_same_settings(
    splits: Splits, measured: DistanceSpec
) -> None:
    """Outside of a flat network as inside of NBSR's belief, on the same features."""
    options = EvaluationOptions(detectors=("mahalanobis",), mahalanobis=measured)
    density = DensityFactor(D, directions=measured.directions, normalise=measured.normalise, power=measured.power)
    inside = routed()
    inside.model.density = density
    inside.fit_density(splits)
    said = -density.distance(splits.test.x).double()
    for learner in (flat(), inside):
        score = fit_detectors(learner, splits, options)["mahalanobis"]
        assert torch.equal(score(look(learner, splits.test.x)), said)


def test_the_detector_that_models_doubt_by_is_fitted_whether_or_not_it_was_asked_for() -> None:
    assert EvaluationOptions(detectors=("knn",), doubt="vim").all_detectors == ("knn", "vim")
    assert EvaluationOptions(doubt="vim").all_detectors == DETECTORS
    with pytest.raises(InputError, match="power must lie in"):
        DistanceSpec(power=0.0)
    with pytest.raises(InputError, match="directions must be a whole number >= 1 or None, got 0"):
        DistanceSpec(directions=0)


def test_neighbours_are_those_of_a_plain_search() -> None:
    known, asked = torch.randn(70, 5), torch.randn(20, 5)
    score = nearest_neighbours(known, neighbours=7)(look_at(asked))
    unit = known / known.norm(dim=1, keepdim=True)
    for row, said in zip(asked / asked.norm(dim=1, keepdim=True), score.tolist(), strict=True):
        distances = sorted(float((row - other).norm()) for other in unit)
        assert math.sqrt(max(0.0, 2 - 2 * said)) == pytest.approx(distances[6], abs=1e-3)


def test_the_virtual_logit_falls_with_what_the_principal_space_leaves_out() -> None:
    torch.manual_seed(0)
    features = torch.randn(500, 4) * torch.tensor([3.0, 2.0, 0.1, 0.1])
    inside = Inside(features, features[:, :2])
    score = virtual_logit(inside)
    at = torch.zeros(2, 4)
    at[1, 3] = 5.0  # the same logits, but outside
    near, far = score(look_at(at)).tolist()
    residual = (features - features.mean(0))[:, 2:].norm(dim=1)
    weight = float(features[:, :2].max(1).values.sum() / residual.sum())
    assert near - far == pytest.approx(5 * weight, rel=0.1)


def test_a_model_without_features_has_its_confidence_alone(splits: Splits) -> None:
    learner = XGBOOST.build(BoostedTreesOptions(n_estimators=2), Signature.of(splits))
    assert detectors_of(learner, DETECTORS) == ["confidence"]
    with pytest.raises(InputError, match="BoostedTrees has no features"):
        learner.inside(splits.test.x)


def look_at(features: torch.Tensor) -> Seen:
    """Samples whose logits are their first two features."""
    return Seen(features.softmax(-1), Inside(features, features[:, :2]))
