"""The network that learns fast: what it costs, how it starts, and whitening that follows from training pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.domains.vision.backbones import BackboneOptions, scaling_of, width
from nbsr_core.domains.vision.data import VisionData
from nbsr_core.domains.vision.models import MODELS, EnsembleOptions, FlatOptions, NbsrOptions, Pictures
from nbsr_core.domains.vision.views import scaled
from nbsr_core.domains.vision.whitened import FLOOR, Whitened, Whitening
from nbsr_core.errors import InputError
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution, TorchLearner

WHITENED = BackboneOptions("whitened")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBSR_CACHE", str(tmp_path / "cache"))


def pictures(count: int = 40, size: int = 12) -> Tensor:
    """Smooth in both directions, so that neighbours resemble each other, with other variances for other colours."""
    noise = torch.randn(count, 3, size + 2, size + 2, generator=torch.Generator().manual_seed(1))
    return F.avg_pool2d(noise, 3, stride=1) * torch.tensor([3.0, 2.0, 1.0]).view(3, 1, 1) + 0.5


class TestNetwork:
    def test_multiply_adds_by_hand(self) -> None:
        """Every output value of a convolution costs as many as it has inputs; sides of 32, 31, 15, 7 and 3 px."""
        whiten = 31**2 * 24 * (3 * 4)
        first = 31**2 * 64 * (24 * 9) + 15**2 * 64 * (64 * 9)
        second = 15**2 * 256 * (64 * 9) + 7**2 * 256 * (256 * 9)
        third = 7**2 * 256 * (256 * 9) + 3**2 * 256 * (256 * 9)
        network = Whitened().eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(torch.zeros(1, 3, 32, 32))
        counts = {name: sum(found.values()) / 2 for name, found in counter.get_flop_counts().items()}
        by_part = [counts[f"Whitened.{part}"] for part in ("whiten", "group1", "group2", "group3")]
        assert by_part == [whiten, first, second, third]
        millions = [round(sum(by_part[:parts]) / 1e6, 1) for parts in (2, 3, 4)]
        assert millions == [21.9, 83.9, 118.1]
        assert counts["Global"] == sum(by_part), "nothing else multiplies"

    def test_parts_are_a_chain(self) -> None:
        network = Whitened().eval()
        x = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            h = x
            for part in (network.whiten, network.group1, network.group2, network.group3, network.pool):
                h = part(h)
            assert torch.equal(network(x), h)
        assert [name for name, _ in network.named_children()] == ["whiten", "group1", "group2", "group3", "pool"]
        assert width(network, 32) == 256

    def test_every_layer_starts_with_copies_of_its_inputs(self) -> None:
        network = Whitened()
        x = torch.randn(2, 24, 8, 8)
        with torch.no_grad():
            assert torch.equal(network.group1.first(x)[:, :24], x)
            assert torch.equal(network.group1.second(network.group1.first(x)), network.group1.first(x))
            assert bool((network.group2.first.weight[64:].abs().sum((1, 2, 3)) > 0).all()), "the others are random"

    def test_batch_norms_learn_a_bias_alone_and_follow_the_last_batches(self) -> None:
        network = Whitened()
        norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
        assert len(norms) == 6
        assert {norm.momentum for norm in norms} == {0.4}
        assert all([name for name, _ in norm.named_parameters()] == ["bias"] for norm in norms)
        norm, x = norms[0].train(), 3 * torch.randn(50, 64, 4, 4) + 1
        with torch.no_grad():
            out = norm(x)
        assert torch.allclose(out, F.batch_norm(x, None, None, training=True), atol=1e-5)
        assert norm.running_mean is not None
        assert torch.allclose(norm.running_mean, 0.4 * x.mean((0, 2, 3)), atol=1e-5)

    def test_pictures_must_have_a_pixel_left_in_the_end(self) -> None:
        with pytest.raises(InputError, match=r"backbone\.size must be at least 9 for whitened, got 8"):
            replace(WHITENED, size=8)
        assert width(replace(WHITENED, size=9).build(), 9) == 256


class TestWhitening:
    def test_what_comes_out_is_uncorrelated_and_of_equal_variance(self) -> None:
        whitening, x = Whitening(), 10 * pictures()
        whitening.fit(x)
        out = F.conv2d(x, whitening.filters).transpose(0, 1).flatten(1)
        assert torch.allclose(out[:12].double().cov(correction=0), torch.eye(12).double(), atol=2e-2)
        assert torch.equal(out[12:], -out[:12])

    def test_directions_are_those_of_an_independent_computation(self) -> None:
        whitening, x = Whitening(), pictures(700)  # more than are in memory at once
        whitening.fit(x)
        patches = x.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12).double()
        covariance = (patches - patches.mean(0)).T @ (patches - patches.mean(0)) / len(patches)
        filters = whitening.filters[:12].reshape(12, 12).double()
        back = torch.linalg.inv(filters)
        assert torch.allclose(back @ back.T, covariance + FLOOR * torch.eye(12).double(), atol=1e-4)

    def test_grey_pictures_have_directions_without_variance(self) -> None:
        whitening, x = Whitening(), pictures()[:, :1].expand(-1, 3, -1, -1)
        whitening.fit(x)
        assert bool(torch.isfinite(whitening.filters).all())
        assert float(F.conv2d(x, whitening.filters).abs().max()) < 100

    def test_it_is_fitted_once_and_not_learned(self, tmp_path: Path) -> None:
        network = Whitened()
        network.fit_pictures(pictures())
        filters = network.whiten.filters.clone()
        network.fit_pictures(7 * pictures())
        assert torch.equal(network.whiten.filters, filters)
        assert not any(name.endswith("filters") for name, _ in network.named_parameters())
        torch.save(network.state_dict(), tmp_path / "weights.pt")
        stored = replace(WHITENED, weights=str(tmp_path / "weights.pt")).build()
        assert isinstance(stored, Whitened)
        stored.fit_pictures(7 * pictures())
        assert torch.equal(stored.whiten.filters, filters), "weights that were stored bring their whitening along"


class Watching(nn.Module):
    """A network of one's own that keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Tensor] = []

    def fit_pictures(self, pictures: Tensor) -> None:
        self.shown.append(pictures)

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def test_any_network_may_look_at_training_pictures_as_it_will_see_them() -> None:
    network = Watching()
    module = Pictures(network, 16)
    x = torch.randint(0, 256, (6000, 3, 8, 8), dtype=torch.uint8)
    module.fit(x)
    module.fit(x[:10].flatten(1).float())
    assert torch.equal(network.shown[0], scaling_of(network)(scaled(x[:5000], 16)))
    assert torch.allclose(network.shown[1], network.shown[0][:10], atol=1e-6)
    Pictures(nn.Flatten(), 16).fit(x)  # one that does not care is not asked


SPLITS = VisionData(subset=300, size=16, ood=())
TRAINING = TrainingConfig(epochs=2, batch_size=90, learning_rate=3e-3)


def train(kind: str, options: object, epochs: int = 2, execution: Execution | None = None) -> TorchLearner:
    splits = find_domain("vision").load(SPLITS, 0)
    seed_everything(0)
    learner = MODELS[kind].build(options, Signature.of(splits))
    assert isinstance(learner, TorchLearner)
    list(learner.train(splits, replace(TRAINING, epochs=epochs), 0, execution or Execution()))
    return learner


def whitenings(learner: TorchLearner) -> list[Whitening]:
    return [module for module in learner.module.modules() if isinstance(module, Whitening)]


def test_training_fits_it_and_a_stored_model_needs_no_training_pictures() -> None:
    backbone = replace(WHITENED, size=16)
    splits = find_domain("vision").load(SPLITS, 0)
    for kind, options in (("flat", FlatOptions(backbone)), ("nbsr", NbsrOptions(backbone=backbone))):
        learner = train(kind, options)
        (whitening,) = whitenings(learner)
        assert whitening.fitted
        reference = Whitened()
        reference.fit_pictures(scaling_of(reference)(scaled(splits.train.x, 16)))
        assert torch.equal(whitening.filters, reference.whiten.filters)
        again = MODELS[kind].build(options, Signature.of(splits))
        again.load_state(learner.state())
        assert torch.equal(again.probabilities(splits.test.x), learner.probabilities(splits.test.x))


def test_each_member_of_an_ensemble_has_its_own() -> None:
    learner = train("ensemble", EnsembleOptions(backbone=replace(WHITENED, size=16), members=2), epochs=1)
    assert [bool(whitening.fitted) for whitening in whitenings(learner)] == [True, True]


def test_a_resumed_training_equals_one_that_was_never_stopped(tmp_path: Path) -> None:
    options = FlatOptions(replace(WHITENED, size=16))
    whole = train("flat", options)
    train("flat", options, epochs=1, execution=Execution(checkpoint=tmp_path / "run.pt"))
    resumed = train("flat", options, execution=Execution(checkpoint=tmp_path / "run.pt"))
    one, other = whole.state(), resumed.state()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
