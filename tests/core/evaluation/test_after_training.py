"""Every model is treated alike after training: calibrated by the same code, on the same split, or not at all."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from toys import Toy, ToyData

from nbsr_core import metrics
from nbsr_core.domains.domain import Signature
from nbsr_core.domains.tabular import BoostedTreesOptions, GraphOptions, MlpOptions, NbsrOptions
from nbsr_core.errors import InputError
from nbsr_core.evaluation.after_training import temperatures_in
from nbsr_core.learning import TrainingConfig
from nbsr_core.learning.learners import Execution, Learner
from nbsr_core.learning.splits import Splits
from nbsr_core.options.specs import EvaluationOptions, ExpertSpec

OPTIONS = {
    "nbsr": NbsrOptions(hidden=(16,), experts=ExpertSpec(activation="exp"), graph=GraphOptions(shape="uniform")),
    "mlp": MlpOptions(hidden=(16,)),
    "xgboost": BoostedTreesOptions(n_estimators=5),
}
every_model = pytest.mark.parametrize("kind", OPTIONS)


@pytest.fixture(scope="module")
def splits() -> Splits:
    return Toy().load(ToyData(), 0)


def trained(kind: str, splits: Splits) -> Learner:
    torch.manual_seed(0)
    learner = Toy.models[kind].build(OPTIONS[kind], Signature.of(splits))
    list(learner.train(splits, TrainingConfig(epochs=8, learning_rate=0.02), 0, Execution()))
    return learner


@every_model
def test_calibration_costs_no_accuracy_and_no_likelihood_on_the_split_that_it_is_fitted_on(
    kind: str, splits: Splits
) -> None:
    learner = trained(kind, splits)
    figures = Toy().judge(learner, splits, EvaluationOptions(audits=0)).metrics
    assert figures["valid/nll"] <= figures["valid/nll_raw"] + 1e-6
    said = learner.answers(splits.test)
    assert torch.equal(said.probs.argmax(1), said.raw.argmax(1))
    assert torch.equal(said.probs, learner.probabilities(splits.test.x))
    assert torch.equal(said.raw, learner.raw_probabilities(splits.test.x))
    assert figures["test/ece_raw"] == metrics.ece(said.raw, said.labels)
    assert figures["test/ece"] == metrics.ece(said.probs, said.labels) != figures["test/ece_raw"]


@every_model
def test_without_calibration_figures_before_and_after_are_the_same(kind: str, splits: Splits) -> None:
    learner = trained(kind, splits)
    learner.calibrate(splits.valid)  # somebody did: judging starts from what was learned
    figures = Toy().judge(learner, splits, EvaluationOptions(audits=0, calibrate=False)).metrics
    assert temperatures_in(figures) == learner.temperatures == ()
    raw = {name: value for name, value in figures.items() if name.endswith("_raw")}
    assert raw
    assert all(figures[name.removesuffix("_raw")] == pytest.approx(value, rel=1e-6) for name, value in raw.items())


@every_model
def test_what_was_fitted_comes_back_from_the_figures_of_a_trial(kind: str, splits: Splits) -> None:
    learner = trained(kind, splits)
    state = deepcopy(learner.state())
    figures = Toy().judge(learner, splits, EvaluationOptions(audits=0)).metrics
    again = Toy.models[kind].build(OPTIONS[kind], Signature.of(splits))
    again.load_state(state)
    assert again.temperatures == ()
    assert torch.equal(again.probabilities(splits.test.x), learner.raw_probabilities(splits.test.x))
    again.use_temperatures(temperatures_in(figures))
    assert again.temperatures == learner.temperatures
    assert torch.equal(again.probabilities(splits.test.x), learner.probabilities(splits.test.x))
    again.use_temperatures(())
    assert torch.equal(again.probabilities(splits.test.x), learner.raw_probabilities(splits.test.x))


def test_a_walk_has_a_temperature_per_depth_and_refuses_others(splits: Splits) -> None:
    learner = trained("nbsr", splits)
    learner.calibrate(splits.valid)
    assert len(learner.temperatures) == 2
    with pytest.raises(InputError, match=r"temperatures are \[1.0\]; expected 2 finite numbers > 0, one per depth"):
        learner.use_temperatures([1.0])
