"""Pictures in stages: any backbone that names them, the same answers from a walk and from `predict`, and their work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import nbsr_core as nbsr
from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.domains.vision.data import OracleOptions, VisionData, pixel_names
from nbsr_core.domains.vision.models import MODELS, EarlyExitOptions, FlatOptions, NbsrOptions, staged_body
from nbsr_core.errors import InputError
from nbsr_core.evaluation.evaluation import EvaluationOptions
from nbsr_core.learning import TrainingConfig
from nbsr_core.learning.batches import seed_everything
from nbsr_core.learning.learners import Execution, NbsrLearner
from nbsr_core.learning.references.early_exit import EarlyExit

SMALL = BackboneOptions("small", size=16, stages=("5", "11"))
RESNET = BackboneOptions("resnet18", size=32, stages=("layer1", "layer2", "layer3", "layer4"))
DIGITS = Signature([str(digit) for digit in range(10)], pixel_names(8))
# Convolutions of `small` at 16 px by hand: output places times 3 x 3 times channels in times channels out.
FIRST, SECOND = 8 * 8 * 9 * 3 * 16 + 4 * 4 * 9 * 16 * 32, 2 * 2 * 9 * 32 * 64 + 1 * 1 * 9 * 64 * 64


@pytest.mark.parametrize(("options", "sizes"), [(SMALL, (32, 256)), (RESNET, (64, 128, 256, 512))])
def test_the_last_stage_of_a_backbone_is_its_single_oracle(options: BackboneOptions, sizes: tuple[int, ...]) -> None:
    found = []
    for chosen in (options, replace(options, stages=())):
        seed_everything(0)
        found.append(staged_body(chosen, DIGITS))
    (staged, widths), (single, (width,)) = found
    assert widths == sizes
    assert width == sizes[-1]
    x = torch.randint(0, 256, (3, 192), dtype=torch.uint8)
    with torch.no_grad():
        oracles = staged.eval()(x)
        assert [h.shape for h in oracles] == [(3, size) for size in sizes]
        torch.testing.assert_close(oracles[-1], single.eval()(x), rtol=1e-5, atol=1e-6)


def test_many_pictures_are_seen_in_parts_and_each_part_in_full() -> None:
    staged, _ = staged_body(SMALL, DIGITS)
    x = torch.randint(0, 256, (300, 192), dtype=torch.uint8)
    with torch.no_grad():
        whole, part = staged.eval()(x), staged(x[290:])
    for many, few in zip(whole, part, strict=True):
        torch.testing.assert_close(many[290:], few, rtol=1e-5, atol=1e-6)


def test_trained_and_judged() -> None:
    domain = find_domain("vision")
    splits = domain.load(VisionData(subset=400, size=8), 0)
    density = replace(NbsrOptions().density, enabled=True, normalise=True)
    nbsr_options = NbsrOptions(backbone=SMALL, density=density, objective=nbsr.Objective(every_depth=1.0))
    figures = {}
    for name, options in {"nbsr": nbsr_options, "early_exit": EarlyExitOptions(SMALL)}.items():
        seed_everything(0)
        learner = MODELS[name].build(options, Signature.of(splits))
        list(learner.train(splits, TrainingConfig(epochs=2, batch_size=40, learning_rate=3e-3), 0, Execution()))
        evaluation = domain.judge(learner, splits, EvaluationOptions(audits=1, max_accuracy_loss=0.05))
        found = figures[name] = evaluation.metrics
        work = [float(row["mean_macs"] or 0) for row in evaluation.tables["frontier"]]
        assert max(work) == found["test/mean_macs"] >= found["fast/mean_macs"] >= min(work) > 0
        again = MODELS[name].build(options, Signature.of(splits))
        again.load_state(learner.state())
        again.use_temperatures(learner.temperatures)
        torch.testing.assert_close(again.probabilities(splits.test.x), learner.probabilities(splits.test.x))
        if isinstance(learner, NbsrLearner):
            trace, eta = learner.trace(splits.test.x), float(learner.trace(splits.test.x).entropy[1].median()) + 1e-3
            told, read = learner.model.predict(splits.test.x, eta=eta), trace.exit(eta)
            assert torch.equal(told.depth, read.depth)
            torch.testing.assert_close(told.alpha, read.alpha, rtol=1e-3, atol=1e-4)
            assert len(trace.closeness) == 2
        else:
            assert isinstance(learner, EarlyExit)
    assert figures["early_exit"]["test/mean_macs"] == FIRST + SECOND + (32 + 256) * 10
    routers = (32 + 10) * 128 + 128 * 2 + (256 + 10) * 128 + 128 * 2
    assert figures["nbsr"]["test/mean_macs"] == FIRST + SECOND + routers + (32 + 256) * 10


def test_a_flat_network_says_what_it_costs_too() -> None:
    learner = MODELS["flat"].build(FlatOptions(replace(SMALL, stages=())), DIGITS)
    assert learner.macs(torch.zeros(2, 192)) == FIRST + SECOND + 256 * 10


def test_stages_that_cannot_be_had_are_refused() -> None:
    wrong = replace(SMALL, stages=("5", "layer4"))
    with pytest.raises(InputError, match=r"backbone\.stages: Sequential has no submodule 'layer4'"):
        MODELS["nbsr"].build(NbsrOptions(backbone=wrong), DIGITS)
    with pytest.raises(InputError, match=r"backbone\.stages: the model asks its backbone once"):
        MODELS["flat"].build(FlatOptions(SMALL), DIGITS)
    with pytest.raises(InputError, match=r"early_exit needs backbone\.stages"):
        MODELS["early_exit"].build(EarlyExitOptions(replace(SMALL, stages=())), DIGITS)
    with pytest.raises(InputError, match="graph of at least as many levels, got 2: name fewer stages"):
        MODELS["nbsr"].build(NbsrOptions(backbone=replace(SMALL, stages=("2", "5", "11"))), DIGITS)
    with pytest.raises(InputError, match=r"oracle\.stages"):
        OracleOptions("small", "none", stages=("5", "11"))
