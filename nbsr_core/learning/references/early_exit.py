"""A flat network that may answer early: a head at each stage, and an exit where its answer is sure enough.

Teerapittayanon, McDanel and Kung, "BranchyNet: Fast Inference via Early Exiting from Deep Neural Networks", ICPR 2016.
It saves effort as NBSR does, by stopping, and has neither routes nor beliefs: each head starts anew from its layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nbsr_core.belief.calibration import calibrated_probabilities, fit_temperature
from nbsr_core.learning.learners import Classifier, Inside
from nbsr_core.learning.references.flat import flat_network
from nbsr_core.learning.splits import Split
from nbsr_core.model.costs import multiply_adds, stage_macs
from nbsr_core.model.network import evaluating
from nbsr_core.model.stages import Stages
from nbsr_core.trace.by_depth import AnswersByDepth


class ExitHeads(nn.Module):
    """A linear head for each stage."""

    def __init__(self, sizes: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(size, num_classes) for size in sizes)

    def forward(self, stages: Sequence[Float[Tensor, "B _"]]) -> Float[Tensor, "B T K"]:
        return torch.stack([head(h) for head, h in zip(self.heads, stages, strict=True)], 1)


class EarlyExit(Classifier):
    """Trained with the sum of all heads' cross-entropies; calibrated head by head.

    Args:
        stages: gives the output of every layer of a backbone, as `Stages` does.
        heads: one for each of them.
    """

    walks = True

    def __init__(self, stages: nn.Module, heads: ExitHeads) -> None:
        super().__init__(flat_network(stages, heads))
        self.stages, self.heads = stages, heads
        self._macs: dict[torch.Size, tuple[float, ...]] = {}  # counted once for inputs of each shape

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        labels = self.labels(y)
        each = [self.cross_entropy(logits, labels) for logits in module(x).unbind(1)]
        return {"loss": torch.stack(each).sum(), "nll": each[-1]}

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss", "nll")

    def by_depth(self, x: Tensor) -> AnswersByDepth:
        """What every head says."""
        said = self.by_chunks(lambda part: self.module(part).softmax(-1), x)
        return AnswersByDepth(said.transpose(0, 1), self.temperatures, self._macs_of_depths(x))

    def _macs_of_depths(self, x: Tensor) -> tuple[float, ...]:
        """Multiply-adds of each stage with its head; none where those of a stage are not known, as of a text."""
        if x.shape[1:] not in self._macs:
            row = x[:1].to(next(self.module.parameters()).device)
            with evaluating(self.module):
                of_stages = stage_macs(self.stages, row) if isinstance(self.stages, Stages) else None
                if of_stages is None:
                    return ()
                of_heads = [multiply_adds(head, h) for head, h in zip(self.heads.heads, self.stages(row), strict=True)]
            self._macs[x.shape[1:]] = tuple(float(a + b) for a, b in zip(of_stages, of_heads, strict=True))
        return self._macs[x.shape[1:]]

    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        return self.by_depth(x).raw_probabilities()

    def _calibrated(self, raw: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        return calibrated_probabilities(raw, self.temperatures[-1]) if self.temperatures else raw

    def calibrate(self, split: Split) -> None:
        """One temperature per head."""
        labels = self.labels(split.y)
        self.use_temperatures([fit_temperature(raw, labels) for raw in self.by_depth(split.x).raw])

    def inside(self, x: Tensor) -> Inside:
        """What the last head reads, and its logits."""
        features = self.by_chunks(lambda part: self.stages(part)[-1], x)
        return Inside(features, self.by_chunks(lambda part: self.module(part)[:, -1], x))

    @property
    def ignores(self) -> dict[str, str]:
        counting = {f"evaluation.{name}" for name in ("eta", "max_accuracy_loss", "max_nll_loss", "etas")}
        return {key: why for key, why in super().ignores.items() if key not in counting}
