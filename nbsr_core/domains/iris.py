"""The paper's toy: two features of Iris, one path of two experts, belief that sharpens as it goes.

There is nothing to route (Root -> Mid -> Leaf), so all that shows is how evidence accumulates: the mid expert has a
confidence budget (scaled sigmoid), the leaf has none (softplus), and both ask the same oracle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from nbsr_core.domains.domain import Domain, ModelKind, Signature
from nbsr_core.domains.references import tabular_references
from nbsr_core.domains.tabular import XGBOOST
from nbsr_core.errors import InputError
from nbsr_core.options.specs import ExpertSpec, ObjectiveWeights

if TYPE_CHECKING:  # imported where data is loaded and models are built: options are checked without torch
    from torch import nn

    from nbsr_core.learning.learners import Classifier, NbsrLearner
    from nbsr_core.learning.splits import Split, Splits
    from nbsr_core.model.network import NBSR

# Most that the mid expert may say for one class, against a prior of 1: enough to lean, not to be sure.
MID_BUDGET = 5.0


def load(seed: int = 0) -> Splits:
    """Fisher's Iris (150 real flowers), sepal length and width only, split 90 / 30 / 30 by class."""
    import torch
    from sklearn.datasets import load_iris
    from sklearn.model_selection import train_test_split

    from nbsr_core.learning.splits import Split, Splits

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


def build(splits: Splits, *, oracle_dim: int = 32, mid_budget: float = MID_BUDGET) -> NBSR:
    """The miniature NBSR of the toy experiment, ready for these flowers."""
    from nbsr_core.model.preprocessing import Standardise

    body = _body(splits.train.x.shape[1], oracle_dim)
    for step in body:
        if isinstance(step, Standardise):
            step.fit(splits.train.x)
    return _network(body, splits.num_classes, oracle_dim, mid_budget)


def _body(features: int, oracle_dim: int) -> nn.Sequential:
    from torch import nn

    from nbsr_core.model.preprocessing import Standardise

    return nn.Sequential(
        Standardise(features), nn.Linear(features, oracle_dim), nn.Tanh(), nn.Linear(oracle_dim, oracle_dim), nn.Tanh()
    )


def _network(body: nn.Module, num_classes: int, oracle_dim: int, mid_budget: float) -> NBSR:
    from nbsr_core.graph.decision_graph import DecisionGraph
    from nbsr_core.model.network import NBSR

    return NBSR(
        body,
        DecisionGraph.chain(["Mid-Expert", "Leaf-Expert"]),
        num_classes=num_classes,
        oracle_dim=oracle_dim,
        experts=[ExpertSpec(activation="sigmoid", bound=mid_budget), ExpertSpec(activation="softplus")],
    )


@dataclass(frozen=True)
class IrisData:
    """Iris has no options: the flowers are what they are."""


@dataclass(frozen=True)
class ToyOptions:
    """The toy NBSR: one path, a mid expert with a budget, a leaf without one.

    Attributes:
        oracle_dim: size of the oracle.
        mid_budget: most evidence that the mid expert may give for one class, against a prior of 1.
    """

    oracle_dim: int = 32
    mid_budget: float = MID_BUDGET
    objective: ObjectiveWeights = field(default_factory=lambda: ObjectiveWeights(every_depth=2.0))

    def __post_init__(self) -> None:
        if self.oracle_dim < 1:
            raise InputError(f"oracle_dim must be a whole number >= 1, got {self.oracle_dim}")
        if not self.mid_budget > 0:
            raise InputError(f"mid_budget must be a number > 0, got {self.mid_budget}")


@dataclass(frozen=True)
class FlatOptions:
    """The same body with a softmax on top.

    Attributes:
        oracle_dim: size of the body's output.
    """

    oracle_dim: int = 32


def _build_toy(options: ToyOptions, signature: Signature) -> NbsrLearner:
    from nbsr_core.learning.learners import NbsrLearner

    body = _body(signature.num_features, options.oracle_dim)
    model = _network(body, signature.num_classes, options.oracle_dim, options.mid_budget)
    return NbsrLearner(model, options.objective)


def _build_flat(options: FlatOptions, signature: Signature) -> Classifier:
    from torch import nn

    from nbsr_core.learning.learners import Classifier
    from nbsr_core.learning.references.flat import flat_network

    body = _body(signature.num_features, options.oracle_dim)
    return Classifier(flat_network(body, nn.Linear(options.oracle_dim, signature.num_classes)))


class Iris(Domain):
    """Three species from two features."""

    name = "iris"
    data = IrisData
    models: ClassVar = {
        "nbsr": ModelKind("nbsr", ToyOptions, _build_toy),
        "mlp": ModelKind("baseline", FlatOptions, _build_flat),
        "xgboost": XGBOOST,
        **tabular_references(standardise=True),
    }

    def load(self, data: Any, seed: int) -> Splits:
        return load(seed)
