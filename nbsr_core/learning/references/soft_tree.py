"""A soft decision tree: sigmoid gates split the features, and the answer is the exact mixture of all leaves.

Jordan and Jacobs, "Hierarchical Mixtures of Experts and the EM Algorithm", Neural Computation 1994, whose leaves are
linear experts; Frosst and Hinton, "Distilling a Neural Network Into a Soft Decision Tree", 2017, whose leaves are
constant distributions. It routes like NBSR and has no beliefs: all leaves are asked, and no evidence is added up.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.learning.learners import Classifier, Inside
from nbsr_core.learning.references.flat import flat_network


class SoftTree(nn.Module):
    """A full binary tree over features; gate i has the children 2i+1 and 2i+2, level by level.

    Args:
        inputs: d, size of the features.
        num_classes: K.
        depth: levels of gates; there are `2^depth` leaves.
        linear_leaves: a leaf is a softmax of a linear map of the features; otherwise it is one distribution for all.
    """

    def __init__(self, inputs: int, num_classes: int, depth: int, *, linear_leaves: bool) -> None:
        super().__init__()
        self.depth, self.num_classes = depth, num_classes
        self.gates = nn.Linear(inputs, 2**depth - 1)
        self.leaves = nn.Linear(inputs if linear_leaves else 1, 2**depth * num_classes, bias=linear_leaves)
        self.linear_leaves = linear_leaves

    def forward(self, h: Float[Tensor, "B d"]) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B gates"]]:
        """Log-probabilities of the mixture, and every gate's output: its sigmoid is the chance to go right."""
        gates = self.gates(h)
        paths = log_paths(gates, self.depth)[-1]
        said = self.leaves(h if self.linear_leaves else h.new_ones(len(h), 1))
        leaves = said.view(len(h), 2**self.depth, self.num_classes).log_softmax(-1)
        return torch.logsumexp(paths.unsqueeze(-1) + leaves, 1), gates


def log_paths(gates: Float[Tensor, "B gates"], depth: int) -> list[Float[Tensor, "B nodes"]]:
    """Log-probability to come to every node of each level: 1 at the root, 2 below it, ... and the leaves at last."""
    levels = [gates.new_zeros(len(gates), 1)]
    for level in range(depth):
        here = gates[:, 2**level - 1 : 2 ** (level + 1) - 1]
        either = torch.stack([F.logsigmoid(-here), F.logsigmoid(here)], -1)  # left, right
        levels.append((levels[-1].unsqueeze(-1) + either).flatten(1))
    return levels


def balance_penalty(gates: Float[Tensor, "B gates"], depth: int) -> Float[Tensor, ""]:
    """Cross-entropy of each gate's average choice with a fair one, halved with every level (Frosst and Hinton, eq. 5).

    The average counts a sample by its probability to come to the gate.
    """
    total = gates.new_zeros(())
    for level, paths in enumerate(log_paths(gates, depth)[:-1]):
        here, weights = gates[:, 2**level - 1 : 2 ** (level + 1) - 1], paths.softmax(0)
        right, left = (weights * here.sigmoid()).sum(0), (weights * (-here).sigmoid()).sum(0)
        tiny = torch.finfo(gates.dtype).tiny
        total = total - 0.5**level * 0.5 * (right.clamp_min(tiny).log() + left.clamp_min(tiny).log()).sum()
    return total


class SoftTreeClassifier(Classifier):
    """Trained with the likelihood of the mixture and a penalty on gates that send all samples one way.

    Args:
        backbone: gives the features.
        tree: what comes after it.
        balance: weight of the penalty.
    """

    smooths_labels = False

    def __init__(self, backbone: nn.Module, tree: SoftTree, balance: float) -> None:
        super().__init__(flat_network(backbone, tree))
        self.tree, self.balance = tree, balance

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        log_probs, gates = module(x)
        nll = F.nll_loss(log_probs, self.labels(y))
        balance = self.balance * balance_penalty(gates, self.tree.depth)
        return {"loss": nll + balance, "nll": nll, "balance": balance}

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss", "nll", "balance")

    def probabilities_of(self, outputs: tuple[Float[Tensor, "N K"], Float[Tensor, "N gates"]]) -> Float[Tensor, "N K"]:
        """The mixture."""
        return outputs[0].softmax(-1)

    def inside(self, x: Tensor) -> Inside:
        """The features that gates and leaves read, and the log-probabilities of the mixture."""
        features = self.by_chunks(self.module.get_submodule("backbone"), x)
        return Inside(features, self.by_chunks(lambda part: self.tree(part)[0], features))
