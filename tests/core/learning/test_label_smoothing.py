"""Smoothed labels: the same likelihood for every model, and models without one say that they ignore it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_runs import SHORT, data, make_model

import nbsr_core as nbsr
from nbsr_core.domains.vision.models import Mixture, MixtureLearner, MixtureOptions
from nbsr_core.learning import seed_everything
from nbsr_core.learning.learners import Classifier, Execution, NbsrLearner, TorchLearner
from nbsr_core.learning.objectives import weighted_terms
from nbsr_core.learning.references.early_exit import EarlyExit, ExitHeads
from nbsr_core.learning.references.ensemble import Ensemble, side_by_side
from nbsr_core.learning.references.evidential import EvidentialClassifier
from nbsr_core.learning.references.flat import flat_network
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.stages import Stages
from nbsr_core.options.specs import ObjectiveWeights

SMOOTHING = 0.2


def smoothed_nll(log_probs: Tensor, y: Tensor) -> Tensor:
    """By hand: 80% of the label, and 20% spread over all three classes."""
    own = log_probs[torch.arange(len(y)), y]
    return -(0.8 * own + 0.2 * log_probs.mean(-1)).mean()


def learners() -> dict[str, TorchLearner]:
    seed_everything(0)
    stages = Stages([nn.Linear(6, 5), nn.Linear(5, 4)])
    return {
        "flat": Classifier(flat_network(nn.Linear(6, 8), nn.Linear(8, 3))),
        "moe": MixtureLearner(Mixture(nn.Linear(6, 8), 8, 3, MixtureOptions()), balance=0.0),
        "ensemble": Ensemble(side_by_side((nn.Linear(6, 8), nn.Linear(8, 3)) for _ in range(2)), members=2),
        "early_exit": EarlyExit(stages, ExitHeads((5, 4), 3)),
    }


@pytest.mark.parametrize("name", learners())
def test_likelihoods_are_those_of_smoothed_labels(name: str) -> None:
    learner, (x, y) = learners()[name], data()
    out = learner.module(x)
    logits = out[0] if isinstance(out, tuple) else out
    logits = logits if logits.ndim == 3 else logits.unsqueeze(1)
    each = [smoothed_nll(part.log_softmax(-1), y).item() for part in logits.unbind(1)]
    learner.label_smoothing = SMOOTHING
    terms = learner.loss(learner.module, x, y, 0)
    assert terms["loss"].item() == pytest.approx(sum(each), rel=1e-5)
    assert "training.label_smoothing" not in learner.ignores


def test_every_depth_of_a_walk_is_smoothed_and_routers_are_not() -> None:
    model, (x, y) = make_model(depth=2).eval(), data()
    objective = ObjectiveWeights(every_depth=0.5, balance=0.1)
    trace = model(x)
    terms = weighted_terms(objective, trace, y, smoothing=SMOOTHING)
    plain = weighted_terms(objective, trace, y)
    last, before = (trace.beliefs[depth] for depth in (2, 1))
    assert terms["nll"].item() == pytest.approx(smoothed_nll((last / last.sum(-1, keepdim=True)).log(), y).item())
    halfway = smoothed_nll((before / before.sum(-1, keepdim=True)).log(), y)
    assert terms["every_depth"].item() == pytest.approx(0.5 * halfway.item())
    assert terms["balance"] == plain["balance"]
    assert plain["nll"].item() == pytest.approx(F.nll_loss((last / last.sum(-1, keepdim=True)).log(), y).item())


def test_a_training_takes_it_from_its_options() -> None:
    x, y = data()
    rows = Split(x, y)
    splits = Splits(rows, rows, rows, ("a", "b", "c"), tuple("abcdef"), "toy", synthetic=True)
    config = replace(SHORT, epochs=60, learning_rate=0.05)
    surest = {}
    for smoothing in (0.0, SMOOTHING):
        for name, learner in {
            "flat": learners()["flat"],
            "nbsr": NbsrLearner(make_model(), ObjectiveWeights()),
        }.items():
            list(learner.train(splits, replace(config, label_smoothing=smoothing), 0, Execution()))
            surest[name, smoothing] = float(learner.probabilities(x).max())
    for name in ("flat", "nbsr"):
        assert surest[name, SMOOTHING] < surest[name, 0.0], name


def test_losses_that_are_no_likelihood_of_labels_say_that_they_ignore_it() -> None:
    learner = EvidentialClassifier(flat_network(nn.Linear(6, 8), nn.Linear(8, 3)))
    assert "training.label_smoothing" in learner.ignores
    (x, y), before = data(), None
    for learner.label_smoothing in (0.0, SMOOTHING):
        loss = learner.loss(learner.module, x, y, 3)["loss"]
        assert before is None or torch.equal(loss, before)
        before = loss


def test_bad_values() -> None:
    with pytest.raises(nbsr.InputError, match=r"training\.label_smoothing must be in \[0, 1\), got 1\.0"):
        replace(SHORT, label_smoothing=1.0)


def test_logits_in_bfloat16_lose_nothing_more_in_the_loss() -> None:
    logits = torch.randn(8, 3).bfloat16()
    assert learners()["flat"].cross_entropy(logits, torch.zeros(8, dtype=torch.long)).dtype == torch.float32
    precise = learners()["flat"].cross_entropy(logits.double(), torch.zeros(8, dtype=torch.long))
    assert precise.dtype == torch.float64
