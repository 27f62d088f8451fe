"""Every domain takes the standard references through the same door, and treats them like its other models."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from typing import Any

import pytest
import torch

from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.domains.navigation.learners import ClonedEnsemble
from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution, Learner
from nbsr_core.learning.splits import Splits
from nbsr_core.options.specs import EvaluationOptions

DATA: dict[str, dict[str, Any]] = {
    "iris": {},
    "vision": {"subset": 60, "size": 8},
    "language": {"train": 100, "test": 20},
    "navigation": {"train": 60, "valid": 40, "test": 40},
}
UNCERTAIN = {"evidential", "ensemble", "mc_dropout"}
OFFERED = {
    "iris": UNCERTAIN | {"soft_tree", "early_exit", "tabm", "cart", "hist_boosting", "xgboost"},
    "vision": UNCERTAIN | {"soft_tree", "cart"},
    "language": UNCERTAIN | {"soft_tree", "early_exit"},
    "navigation": UNCERTAIN,
}
every_reference = pytest.mark.parametrize(
    ("domain", "kind"), [(domain, kind) for domain, kinds in OFFERED.items() for kind in sorted(kinds)]
)
JUDGED = EvaluationOptions(audits=0)


@cache
def splits_of(domain: str) -> Splits:
    found = find_domain(domain)
    return found.load(found.data(**DATA[domain]), 0)


def built(domain: str, kind: str) -> Learner:
    model, options = find_domain(domain).models[kind], dict[str, Any]()
    if domain == "vision" and kind != "cart":
        options["backbone"] = BackboneOptions("small", size=8)
    if kind == "ensemble":
        options["members"] = 2
    seed_everything(0)
    return model.build(model.options(**options), Signature.of(splits_of(domain)))


@every_reference
def test_a_reference_is_trained_stored_calibrated_and_judged_like_the_rest(domain: str, kind: str) -> None:
    found, splits = find_domain(domain), splits_of(domain)
    learner, fresh = built(domain, kind), built(domain, kind)
    list(learner.train(splits, TrainingConfig(epochs=2), 0, Execution()))
    said = learner.answers(splits.test)
    assert said.raw.shape == (len(said.labels), splits.num_classes)
    assert bool((said.raw >= 0).all())
    assert torch.allclose(said.raw.sum(1), torch.ones(len(said.raw), dtype=said.raw.dtype), atol=1e-5)
    fresh.load_state(learner.state())
    assert torch.equal(fresh.answers(splits.test).raw, said.raw)
    if learner.has_features:
        inside = learner.inside(splits.test.x)
        assert len(inside.features) == len(said.raw)
        assert torch.allclose(inside.logits.softmax(-1), said.raw, atol=1e-5)
    figures = found.judge(learner, splits, JUDGED).metrics
    assert learner.temperatures, "it was calibrated"
    assert {"test/accuracy", "test/nll", "test/ece", "test/ece_raw", "valid/nll"} <= figures.keys()
    announced = found.figures(found.data(**DATA[domain]), tuple(splits.extra), learner, JUDGED)
    assert announced is not None
    assert [name for name in figures if not any(fnmatch(name, pattern) for pattern in announced)] == []


@pytest.mark.parametrize("kind", sorted(UNCERTAIN))
def test_a_policy_says_the_same_step_by_step_as_of_whole_episodes(kind: str) -> None:
    splits, learner = splits_of("navigation"), built("navigation", kind)
    list(learner.train(splits, TrainingConfig(epochs=1), 0, Execution()))
    episodes, state, found = splits.test.x[:7], None, []
    for frames in episodes.unbind(1):
        said, state = learner.step(frames, state)  # type: ignore[attr-defined]
        found.append(said.probs)
    assert torch.allclose(torch.stack(found, 1).flatten(0, 1), learner.probabilities(episodes), atol=1e-5)


def test_members_of_an_ensemble_of_policies_remember_for_themselves() -> None:
    """What one member sees and remembers changes nothing of what the other says."""
    learner = built("navigation", "ensemble")
    assert isinstance(learner, ClonedEnsemble)
    x = splits_of("navigation").test.x[:5]
    before = learner.members_probabilities(x)
    with torch.no_grad():
        for name, weights in learner.module.named_parameters():
            if "members.0" in name or "grus.0" in name:
                weights.add_(0.1)
    after = learner.members_probabilities(x)
    assert before.shape == (x.shape[0] * x.shape[1], 2, 4)
    assert torch.equal(before[:, 1], after[:, 1])
    assert not torch.allclose(before[:, 0], after[:, 0])
    assert not torch.allclose(before[:, 0], before[:, 1]), "they started from different weights"


def test_heads_at_each_block_read_the_same_transformer() -> None:
    """The last of all stages is what the transformer itself gives; one token needs no more than its own sentence."""
    from nbsr_core.domains.language.transformer import CausalTransformer, TransformerOptions, TransformerStages

    options = TransformerOptions(dim=8, heads=2, feedforward=16, layers=3)
    plain, stages = CausalTransformer(11, 6, options).eval(), TransformerStages(11, 6, options).eval()
    stages.load_state_dict(plain.state_dict())
    x = torch.tensor([[3, 4, 5, 0], [6, 7, 8, 9]])
    found = stages(x)
    assert [tuple(each.shape) for each in found] == [(7, 8)] * 3
    assert torch.equal(found[-1], plain(x))
    assert not torch.allclose(found[0], found[1])
