"""The paper's toy: two features of Iris, one path of two experts, belief that sharpens as it goes.

There is nothing to route (Root -> Mid -> Leaf), so all that shows is how evidence accumulates: the mid expert has a
confidence budget (scaled sigmoid), the leaf has none (softplus), and both ask the same oracle.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from nbsr_core.domains.base import Split, Splits
from nbsr_core.experts import ExpertSpec
from nbsr_core.graph import DecisionGraph
from nbsr_core.network import NBSR

# Most that the mid expert may say for one class, against a prior of 1: enough to lean, not to be sure.
MID_BUDGET = 5.0


def load(seed: int = 0) -> Splits:
    """Fisher's Iris (150 real flowers), sepal length and width only, split 90 / 30 / 30 by class."""
    bunch = load_iris()
    features, labels = bunch.data[:, :2], bunch.target
    rest_x, test_x, rest_y, test_y = train_test_split(
        features, labels, test_size=30, stratify=labels, random_state=seed
    )
    train_x, valid_x, train_y, valid_y = train_test_split(
        rest_x, rest_y, test_size=30, stratify=rest_y, random_state=seed
    )

    def split(x: object, y: object) -> Split:
        return Split(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.int64))

    return Splits(
        train=split(train_x, train_y),
        valid=split(valid_x, valid_y),
        test=split(test_x, test_y),
        class_names=[str(name) for name in bunch.target_names],
        feature_names=[str(name) for name in bunch.feature_names[:2]],
        source="Fisher's Iris (scikit-learn), sepal length and width",
        synthetic=False,
    )


class Standardise(nn.Module):
    """Centre and scale by the training data's own mean and deviation; kept in the model, so that it takes raw input."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("std", x.std(0).clamp_min(1e-6))
        self.mean: Tensor
        self.std: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def build(splits: Splits, *, oracle_dim: int = 32, mid_budget: float = MID_BUDGET) -> NBSR:
    """The miniature NBSR of the toy experiment."""
    backbone = nn.Sequential(
        Standardise(splits.train.x),
        nn.Linear(splits.train.x.shape[1], oracle_dim),
        nn.Tanh(),
        nn.Linear(oracle_dim, oracle_dim),
        nn.Tanh(),
    )
    return NBSR(
        backbone,
        DecisionGraph.chain(["Mid-Expert", "Leaf-Expert"]),
        num_classes=splits.num_classes,
        oracle_dim=oracle_dim,
        experts=[ExpertSpec(activation="sigmoid", bound=mid_budget), ExpertSpec(activation="softplus")],
    )
