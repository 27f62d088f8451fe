"""What references need beside the CNN-GRU: frame memories side by side, and heads with several answers to a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from nbsr_core.belief.density import DensityFactor
from nbsr_core.model.memory import FrameMemory, Judged, MemoryClassifier, Recollection, State


class SideBySide(nn.Module):
    """What each member makes of the same frames, one after another in a row."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, frames: Float[Tensor, "N ..."]) -> Float[Tensor, "N features"]:
        return torch.cat([member(frames) for member in self.members], -1)


class OwnParts(nn.Module):
    """Each member on its own part of the features, all of one size."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, features: Float[Tensor, "... features"]) -> Float[Tensor, "... features"]:
        parts = features.chunk(len(self.members), -1)
        return torch.cat([member(part) for member, part in zip(self.members, parts, strict=True)], -1)


class FrameMemories(FrameMemory):
    """Members that know nothing of each other; features, oracles and memories of all stand side by side.

    Args:
        members: M of the same sizes, from different first weights. Their memory is one state [1, B, M m].
    """

    def __init__(self, members: Sequence[FrameMemory]) -> None:
        backbones, squashes = SideBySide(each.backbone for each in members), OwnParts(each.squash for each in members)
        super().__init__(backbones, squashes, sum(each.feature_dim for each in members), None)
        self.grus = nn.ModuleList(each.gru for each in members if each.gru is not None)
        self.oracle_dim = sum(each.oracle_dim for each in members)

    def forward(
        self, x: Float[Tensor, "B T ..."], seen: Bool[Tensor, "B T"] | None = None, state: State | None = None
    ) -> Recollection:
        known = super().forward(x, seen)
        if not len(self.grus):
            return known
        states = [None] * len(self.grus) if state is None else state.chunk(len(self.grus), -1)
        parts = zip(self.grus, known.oracle.chunk(len(self.grus), -1), states, strict=True)
        oracles, after = zip(*(gru(part, before) for gru, part, before in parts), strict=True)
        return Recollection(known.features, torch.cat(oracles, -1), torch.cat(after, -1))


class ManyAnswersMemory(MemoryClassifier):
    """The same classifier with a head that gives several answers to each step: of members, or of thinned networks.

    Args:
        head: from oracles [N, d] to outputs of which the last dimension are the classes.
    """

    def __init__(
        self, frames: FrameMemory, num_classes: int, density: DensityFactor | None, judged: Judged, head: nn.Module
    ) -> None:
        super().__init__(frames, num_classes, density, judged)
        self.add_module("head", head)  # in the place of the linear one

    def forward(self, x: Float[Tensor, "B T ..."], seen: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "... K"]:
        """All outputs for every step (only those `seen`), those of an episode side by side."""
        oracle: Tensor = self.frames(x, seen).oracle
        outputs: Tensor = self.head(oracle.flatten(0, 1) if seen is None else oracle[seen])
        return outputs
