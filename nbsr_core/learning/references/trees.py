"""Trees by scikit-learn, kept as plain arrays: a single decision tree, and boosted ones on histograms.

Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees", 1984 (CART); Ke et al., "LightGBM: A Highly
Efficient Gradient Boosting Decision Tree", NeurIPS 2017, which scikit-learn's boosting on histograms follows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.learning.learners import TRACE_CHUNK
from nbsr_core.learning.references.at_once import FittedAtOnce, joined, label_columns, weights_of
from nbsr_core.learning.references.forest import Forest, Tree
from nbsr_core.learning.splits import Split


class SklearnTrees(FittedAtOnce):
    """Trees that scikit-learn fits and that are walked here, so that nothing of scikit-learn's is stored.

    Args:
        num_classes: K.
        as_rows: makes rows of numbers [N, F] of samples that are none, for training and answers alike.
        parameters: of scikit-learn's class.
    """

    def __init__(self, num_classes: int, as_rows: Callable[[Tensor], Tensor] | None = None, **parameters: Any) -> None:
        self.num_classes, self.as_rows, self.parameters = num_classes, as_rows, parameters
        self.forest: Forest | None = None
        self.classes = torch.arange(num_classes)

    @abstractmethod
    def of_seen(self, forest: Forest, x: Float[Tensor, "N F"]) -> Float[Tensor, "N seen"]:
        """Probabilities of the classes that were among the training rows."""

    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        forest = self.forest
        assert forest is not None, "it answers once it was trained or loaded"
        seen = torch.cat([self.of_seen(forest, self._rows(part)) for part in x.split(TRACE_CHUNK)])
        return label_columns(seen, self.classes, self.num_classes)

    def _rows(self, x: Tensor) -> Float[Tensor, "N F"]:
        return x if self.as_rows is None else self.as_rows(x)

    def _table(self, draws: Sequence[Split]) -> Split:
        """All draws as one table of numbers."""
        return joined([replace(draw, x=self._rows(draw.x)) for draw in draws])

    def state(self) -> dict[str, Any]:
        assert self.forest is not None, "there is something to store once it was trained"
        return {**self.forest.state, "classes": self.classes}

    def load_state(self, state: dict[str, Any]) -> None:
        self.forest = Forest(**{item.name: state[item.name] for item in fields(Forest)})
        self.classes = state["classes"]

    @property
    def size(self) -> int:
        """Nodes of all trees."""
        return 0 if self.forest is None else len(self.forest.feature)


class Cart(SklearnTrees):
    """One decision tree (`DecisionTreeClassifier`); a leaf says how often its training rows had each class."""

    def fit(self, draws: Sequence[Split], seed: int) -> None:
        rows = self._table(draws)
        from sklearn.tree import DecisionTreeClassifier  # slow to import, and only those who fit need it

        model = DecisionTreeClassifier(random_state=seed, **self.parameters)
        model.fit(rows.x.numpy(), rows.y.numpy(), weights_of(rows))
        tree = model.tree_
        shares = tree.value[:, 0] / tree.value[:, 0].sum(1, keepdims=True)
        leaf = tree.children_left == -1
        self.forest = Forest.of(
            [Tree(leaf, tree.feature, tree.threshold, tree.children_left, tree.children_right, shares)]
        )
        self.classes = torch.from_numpy(model.classes_.astype(np.int64))

    def of_seen(self, forest: Forest, x: Float[Tensor, "N F"]) -> Float[Tensor, "N seen"]:
        return forest.answers(x, slice(None))[:, 0]


class HistBoosting(SklearnTrees):
    """Boosted trees on histograms (`HistGradientBoostingClassifier`), without its early stopping: all rounds count."""

    def __init__(self, num_classes: int, as_rows: Callable[[Tensor], Tensor] | None = None, **parameters: Any) -> None:
        super().__init__(num_classes, as_rows, **parameters)
        self.start = torch.zeros(num_classes, dtype=torch.float64)

    def fit(self, draws: Sequence[Split], seed: int) -> None:
        rows = self._table(draws)
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(random_state=seed, early_stopping=False, **self.parameters)
        model.fit(rows.x.numpy(), rows.y.numpy(), weights_of(rows))
        # scikit-learn offers no public way to the nodes of these trees; a test compares our walk with its answers.
        nodes = [grown.nodes for one_round in model._predictors for grown in one_round]
        self.forest = Forest.of(
            [
                Tree(
                    tree["is_leaf"] > 0,
                    tree["feature_idx"],
                    tree["num_threshold"],
                    tree["left"],
                    tree["right"],
                    tree["value"][:, None],
                )
                for tree in nodes
            ]
        )
        self.start = torch.from_numpy(np.array(model._baseline_prediction, dtype=np.float64).reshape(-1))
        self.classes = torch.from_numpy(model.classes_.astype(np.int64))

    def of_seen(self, forest: Forest, x: Float[Tensor, "N F"]) -> Float[Tensor, "N seen"]:
        per_round = len(self.start)
        logits = self.start.expand(len(x), -1).clone()
        for first in range(0, len(forest.roots), per_round):
            logits += forest.answers(x, slice(first, first + per_round)).squeeze(-1)
        if per_round == 1:  # two classes share one tree per round: the odds of the second
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        return logits.softmax(-1)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "start": self.start}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.start = state["start"]
