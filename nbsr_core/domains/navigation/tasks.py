"""The data of a study: keyframes as in the paper, or maps on which the agent really moves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from nbsr_core.domains.navigation import keyframes, world
from nbsr_core.domains.navigation.maps import demonstrations, obstacle_fields, t_mazes, with_aliens
from nbsr_core.domains.navigation.world import ACTIONS, VIEW, Maps
from nbsr_core.errors import InputError
from nbsr_core.learning.batches import epoch_seed
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import check_choice

Task = Literal["keyframes", "tmaze", "obstacles"]
ENCOUNTERS: tuple[keyframes.Encounter, ...] = ("overlay", "replacing")


@dataclass(frozen=True)
class NavigationData:
    """What to navigate.

    Attributes:
        task: `keyframes` (four frames, nobody moves), `tmaze` or `obstacles` (closed loop on 11x11 maps).
        train: sequences or maps to learn from.
        valid: to choose thresholds on.
        test: held out.
        noise: deviation of the Gaussian noise on keyframes; 0 is the paper's task, with three distinct sequences.
        complex_share: share of keyframe sequences with a turn.
        obstacle_share: share of blocked cells on obstacle maps.
        alien: brightness of an alien in its channel; everything else in a frame is 1.
    """

    task: Task = "keyframes"
    train: int = 5000
    valid: int = 500
    test: int = 1000
    noise: float = 0.0
    complex_share: float = field(
        default=0.7, metadata=counts_when("task is keyframes", lambda data: data.task == "keyframes")
    )
    obstacle_share: float = field(
        default=0.25, metadata=counts_when("task is obstacles", lambda data: data.task == "obstacles")
    )
    alien: float = 1.0

    def __post_init__(self) -> None:
        check_choice("task", self.task, Task)
        for name in ("train", "valid", "test"):
            if getattr(self, name) < 10:
                raise InputError(f"{name} must be a whole number >= 10, got {getattr(self, name)}")
        if not 0 <= self.noise < 10:
            raise InputError(f"noise must lie in [0, 10), got {self.noise}")
        if self.noise and self.task != "keyframes":
            raise InputError(f"noise is for task keyframes, got {self.noise} with task {self.task}")
        if not 0 <= self.complex_share <= 1:
            raise InputError(f"complex_share must lie in [0, 1], got {self.complex_share}")
        if not 0 <= self.obstacle_share < 0.6:
            raise InputError(f"obstacle_share must lie in [0, 0.6), got {self.obstacle_share}")
        if not self.alien > 0:
            raise InputError(f"alien must be a number > 0, got {self.alien}")


@dataclass(frozen=True, eq=False)
class NavigationSplits(Splits):
    """Episodes to learn from, and the maps (if any) of each purpose: `train`, `valid`, `test`, `alien`.

    For keyframes, `extra` holds sequences with an alien: their `y` is the number of the frame that shows it.
    """

    maps: dict[str, Maps] = field(default_factory=dict)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(super().fingerprint().encode())
        for name, maps in self.maps.items():
            digest.update(f"{name} {maps.compass} {maps.alien}".encode())
            digest.update(maps.cells.numpy().tobytes() + maps.start.numpy().tobytes())
        return digest.hexdigest()[:16]


def load(data: NavigationData, seed: int) -> NavigationSplits:
    """Generate everything from the seed, each part from a stream of its own."""
    return _load_keyframes(data, seed) if data.task == "keyframes" else _load_maps(data, seed)


def _stream(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(epoch_seed(seed, 0, f"navigation {purpose}"))


def _load_keyframes(data: NavigationData, seed: int) -> NavigationSplits:
    parts: dict[str, Split] = {}
    for name, count in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        stream = _stream(seed, name)
        drawn = keyframes.keyframes(count, stream, data.complex_share)
        parts[name] = Split(keyframes.add_noise(drawn.x, stream, data.noise), drawn.y)
    extra: dict[str, Split] = {}
    for encounter in ENCOUNTERS:
        stream = _stream(seed, encounter)
        drawn = keyframes.keyframes(data.test, stream, data.complex_share)
        x, when = keyframes.meet_alien(drawn.x, stream, encounter, data.alien)
        extra[f"alien_{encounter}"] = Split(keyframes.add_noise(x, stream, data.noise), when)
    noise = f"Gaussian noise of {data.noise:g} on every channel" if data.noise else "noise-free: 3 distinct sequences"
    return _splits(parts, f"generated keyframes, {noise}", keyframes.CHANNELS, extra=extra)


def _load_maps(data: NavigationData, seed: int) -> NavigationSplits:
    def draw(count: int, purpose: str) -> Maps:
        stream = _stream(seed, purpose)
        return t_mazes(count, stream) if data.task == "tmaze" else obstacle_fields(count, stream, data.obstacle_share)

    maps = {name: draw(getattr(data, name), name) for name in ("train", "valid", "test")}
    maps["alien"] = with_aliens(draw(data.test, "alien"), _stream(seed, "place of aliens"), data.alien)
    episodes = {name: Split(*demonstrations(maps[name])) for name in ("train", "valid", "test")}
    words = "T-mazes" if data.task == "tmaze" else f"fields with {data.obstacle_share:.0%} obstacles"
    return _splits(episodes, f"generated {words}, 11x11, shown through a 5x5 view", world.CHANNELS, maps=maps)


def _splits(parts: dict[str, Split], source: str, channels: tuple[str, ...], **beside: Any) -> NavigationSplits:
    """Episodes of either kind, with what the kind has beside them: `extra` sequences or `maps`."""
    cells = [f"{row},{column}" for row in range(VIEW) for column in range(VIEW)]
    return NavigationSplits(
        parts["train"],
        parts["valid"],
        parts["test"],
        class_names=ACTIONS,
        feature_names=[f"{channel} {cell}" for channel in channels for cell in cells],
        source=source,
        synthetic=True,
        **beside,
    )
