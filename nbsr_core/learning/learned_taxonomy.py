"""A taxonomy that is learned from data before training: classes that are hard to tell apart share a group.

A linear model is fitted to the training rows; what it takes for what on the validation rows says how alike two classes
are, and average linkage joins the most alike first (Yan et al., "HD-CNN", ICCV 2015, group classes likewise). One
dendrogram is cut at every level, so groups are nested. All of it follows from the data alone, without chance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning.config import TrainingConfig
from nbsr_core.learning.learners import Execution, NbsrLearner
from nbsr_core.learning.splits import Splits
from nbsr_core.learning.trainer import EpochRecord
from nbsr_core.model.network import NBSR
from nbsr_core.options.specs import ObjectiveWeights

MOST_PROBED = 10_000
"""Training rows that the linear model is fitted to: more tell it little about which classes are alike."""

PROBE_STEPS = 100
GRAPH = "learned_graph"
NAMED = 3


@dataclass(frozen=True)
class LearnedTaxonomy:
    """How classes are put into groups: `depth` levels, with `width` groups below each node on average."""

    class_names: Sequence[str]
    depth: int
    width: int
    generalist: bool

    def before_training(self) -> DecisionGraph:
        """A graph of the same size, classes in the order of their names: what a model has before it saw any data."""
        classes = np.arange(len(self.class_names))
        cuts = [classes * size // len(classes) for size in self._sizes()]
        return self._graph(cuts)

    def learn(self, splits: Splits) -> DecisionGraph:
        """The graph that the data suggests."""
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import squareform

        alike = confusions(splits)
        distance = 1.0 - (alike + alike.T) / 2
        np.fill_diagonal(distance, 0.0)
        tree = linkage(squareform(distance, checks=False), method="average")
        return self._graph([fcluster(tree, size, criterion="maxclust") for size in self._sizes()])

    def _sizes(self) -> list[int]:
        """How many groups each level has; levels that would only repeat the one above are left out."""
        classes = len(self.class_names)
        return sorted({min(self.width**level, classes) for level in range(1, self.depth + 1)})

    def _graph(self, cuts: Sequence[Any]) -> DecisionGraph:
        graph = DecisionGraph.taxonomy(self._nested(np.arange(len(self.class_names)), cuts, ""))
        return graph.with_generalist() if self.generalist else graph

    def _nested(self, members: Any, cuts: Sequence[Any], above: str) -> Any:
        if not cuts:
            return [self.class_names[k] for k in members]
        groups = dict.fromkeys(cuts[0][members].tolist())  # in the order of their first classes
        found = {}
        for number, group in enumerate(groups, 1):
            own = members[cuts[0][members] == group]
            place = f"{above}{number}"
            found[f"{place}: {self._words(own)}"] = self._nested(own, cuts[1:], f"{place}.")
        return found

    def _words(self, members: Any) -> str:
        named = ", ".join(self.class_names[k] for k in members[:NAMED])
        return named if len(members) <= NAMED else f"{named} and {len(members) - NAMED} more"


def confusions(splits: Splits) -> Float[np.ndarray, "K K"]:
    """How much a linear model believes in each class (column) on validation rows of each class (row).

    Of a class without validation rows, its training rows are asked; of one without any, nothing is known.
    """
    if splits.train.x.ndim != 2 or not splits.train.x.is_floating_point():
        raise InputError("graph.shape: a taxonomy is learned only where inputs are one vector of numbers")
    classes = splits.num_classes
    probe = _probe(splits.train.x, splits.train.y, classes)
    found = np.zeros((classes, classes))
    for split in (splits.train, splits.valid):  # what validation says counts
        said = probe(split.x).numpy()
        for k in split.y.unique().tolist():
            found[k] = said[(split.y == k).numpy()].mean(0)
    return found


def _probe(x: Float[Tensor, "N F"], y: Int[Tensor, " N"], classes: int) -> Callable[[Tensor], Tensor]:
    """Multinomial logistic regression with a little weight decay, in float64, from zero: no chance in it."""
    rows = torch.arange(min(len(x), MOST_PROBED)) * len(x) // min(len(x), MOST_PROBED)
    x, y = x[rows].double(), y[rows]
    mean, spread = x.mean(0), x.std(0, unbiased=False).clamp_min(1e-6)
    weight = torch.zeros(classes, x.shape[1] + 1, dtype=torch.float64, requires_grad=True)

    def logits(given: Tensor) -> Tensor:
        scaled = (given.double() - mean) / spread
        return scaled @ weight[:, :-1].T + weight[:, -1]

    optimizer = torch.optim.LBFGS([weight], max_iter=PROBE_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(logits(x), y) + 1e-3 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)

    def say(given: Tensor) -> Tensor:
        with torch.no_grad():
            return logits(given).softmax(-1)

    return say


class TaxonomyLearner(NbsrLearner):
    """NBSR on a learned taxonomy: the graph is the first thing that it learns, and is stored with its weights."""

    def __init__(self, module: NBSR, objective: ObjectiveWeights, taxonomy: LearnedTaxonomy) -> None:
        super().__init__(module, objective)
        self.taxonomy = taxonomy
        self._use(module.graph)

    def train(self, splits: Splits, config: TrainingConfig, seed: int, execution: Execution) -> Iterator[EpochRecord]:
        self._use(self.taxonomy.learn(splits))
        yield from super().train(splits, config, seed, execution)

    def _use(self, graph: DecisionGraph) -> None:
        if graph != self.model.graph:
            self.model.change_graph(graph)
        names = self.taxonomy.class_names
        self.admissible = torch.tensor(graph.admissible(len(names), names))

    def state(self) -> dict[str, Any]:
        return {**super().state(), GRAPH: json.dumps(self.model.graph.to_dict())}

    def load_state(self, state: dict[str, Any]) -> None:
        weights = dict(state)
        self._use(DecisionGraph.from_dict(json.loads(weights.pop(GRAPH))))
        super().load_state(weights)
