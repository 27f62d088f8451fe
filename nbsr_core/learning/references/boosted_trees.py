"""Gradient-boosted trees by XGBoost: the tabular baseline that is hard to beat.

Chen and Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core._extras import extra, needs
from nbsr_core.learning.references.at_once import FittedAtOnce, weights_of
from nbsr_core.learning.splits import Split


class BoostedTrees(FittedAtOnce):
    """Gradient-boosted trees (XGBoost), the tabular baseline."""

    packages = ("xgboost",)

    def __init__(self, num_classes: int, *, n_estimators: int = 100, **parameters: Any) -> None:
        needs("xgboost", "trees")
        self.num_classes, self.rounds, self.parameters = num_classes, n_estimators, parameters
        self.booster: Any = None

    def fit(self, draws: Sequence[Split], seed: int) -> None:
        """Each round of boosting sees the next draw, as each epoch of a network does.

        All draws in every round would cost as many times more as there are of them.
        """
        with extra("trees"):
            import xgboost

        settings = {
            "objective": "multi:softprob",
            "num_class": self.num_classes,
            "seed": seed,
            "nthread": torch.get_num_threads(),
            **self.parameters,
        }
        tables = [xgboost.DMatrix(draw.x.numpy(), draw.y.numpy(), weight=weights_of(draw)) for draw in draws]
        self.booster = xgboost.Booster(settings, tables)
        for number in range(self.rounds):
            self.booster.update(tables[number % len(tables)], number)

    def raw_probabilities(self, x: Tensor) -> Float[Tensor, "N K"]:
        with extra("trees"):
            import xgboost

        probs = self.booster.predict(xgboost.DMatrix(x.numpy()))
        probs = np.asarray(probs, dtype=np.float64)
        return torch.from_numpy(probs / probs.sum(1, keepdims=True))

    def importance(self, num_features: int) -> Float[Tensor, " {num_features}"]:
        """Share of each feature in the mean gain of the splits on it, over the whole training set: XGBoost's own."""
        gain = torch.zeros(num_features, dtype=torch.float64)
        for name, value in self.booster.get_score(importance_type="gain").items():
            gain[int(name.removeprefix("f"))] = value
        return gain / gain.sum().clamp_min(torch.finfo(gain.dtype).tiny)

    def state(self) -> dict[str, Any]:
        return {"booster": torch.frombuffer(bytearray(self.booster.save_raw("ubj")), dtype=torch.uint8)}

    def load_state(self, state: dict[str, Any]) -> None:
        with extra("trees"):
            import xgboost

        self.booster = xgboost.Booster(model_file=bytearray(state["booster"].numpy().tobytes()))

    @property
    def size(self) -> int:
        return int(self.booster.trees_to_dataframe().shape[0])
