"""TabM: many members in one network, which share all weights but a scaling of each layer's inputs and outputs.

Gorishniy, Kotelnikov and Babenko, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling", ICLR
2025. The layers are the authors' own (their package `tabm`); the training is the one that all networks here get, so
that it sees the same noise and can be stopped and resumed. `pytabkit` would train TabM in a way of its own, and imports
torchmetrics, which fails beside a torchvision that was built for another torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from nbsr_core._extras import extra
from nbsr_core.learning.learners import Inside
from nbsr_core.learning.references.ensemble import ManyAnswers, mean_log_probabilities
from nbsr_core.learning.references.flat import flat_network

EXTRA = "tabm"


def shared_layers(inputs: int, hidden: Sequence[int], members: int, dropout: float) -> nn.Sequential:
    """Dense ReLU layers, `s_m * (W (r_m * h)) + b_m` for member m: the backbone, from [B, inputs] to [B, M, d].

    Only the first scaling `r_m` starts at random signs, all others at 1: the members begin as the same network on
    inputs of different signs.

    Args:
        inputs: number of features.
        hidden: sizes of the layers.
        members: M, how many share the weights.
        dropout: share of each layer's outputs that is dropped in training.
    """
    with extra(EXTRA):
        from tabm import EnsembleView, LinearBatchEnsemble

    layers: list[nn.Module] = [EnsembleView(k=members)]
    for number, size in enumerate(hidden):
        start = ("random-signs", "ones") if number == 0 else "ones"
        layers += [LinearBatchEnsemble(inputs, size, k=members, scaling_init=start), nn.ReLU(), nn.Dropout(dropout)]
        inputs = size
    return nn.Sequential(*layers)


def own_heads(inputs: int, outputs: int, members: int) -> nn.Module:
    """A linear head for each member, which share nothing: from [B, M, inputs] to [B, M, outputs]."""
    with extra(EXTRA):
        from tabm import LinearEnsemble

    heads: nn.Module = LinearEnsemble(inputs, outputs, k=members)
    return heads


class TabM(ManyAnswers):
    """Members that share a network, trained with the mean of their cross-entropies.

    Args:
        num_features: size of the input.
        num_classes: K.
        hidden: sizes of the shared layers.
        members: how many answers are averaged.
        dropout: share of each layer's outputs that is dropped in training; in use nothing is.
        first: what inputs go through before the layers.
    """

    packages = ("tabm",)

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        hidden: Sequence[int],
        *,
        members: int = 32,
        dropout: float = 0.1,
        first: Sequence[nn.Module] = (),
    ) -> None:
        backbone = nn.Sequential(*first, *shared_layers(num_features, hidden, members, dropout))
        super().__init__(flat_network(backbone, own_heads(hidden[-1], num_classes, members)))

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        nll = self.members_nll(module, x, y)
        return {"loss": nll, "nll": nll}

    def inside(self, x: Tensor) -> Inside:
        """The features before the heads, on average over the members, and the logarithm of the mean probabilities.

        Side by side, as an ensemble of five has them, they would be thousands.
        """
        backbone = self.module.get_submodule("backbone")

        def logits(part: Tensor) -> Float[Tensor, "B K"]:
            return mean_log_probabilities(self.module(part))

        return Inside(self.by_chunks(lambda part: backbone(part).mean(1), x), self.by_chunks(logits, x))
