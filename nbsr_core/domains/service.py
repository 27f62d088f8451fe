"""How a trained model is asked from outside: one row per question, one row per answer, all columns by name.

A model that is handed on is used by people who know neither tensors nor our splits. A `Service` says which columns it
wants and which it answers with, so that the same words stand in a signature, in an error and in the answer itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.trace.exits import Prediction

Kind = Literal["number", "text", "truth", "value"]
Values = Any  # a column of an answer: a numpy array, one value for each row


@dataclass(frozen=True)
class Column:
    """A column of a question or of an answer; one that is not required may be left out, or be empty in some rows.

    Attributes:
        kind: what its cells hold; a `value` (of questions only) may be a number, a text, a date or nothing at all, and
            the service says what it makes of it.
    """

    name: str
    kind: Kind = "number"
    required: bool = True


@dataclass(frozen=True, eq=False)
class Questions:
    """What was asked, checked and in order.

    Attributes:
        numbers: the columns of numbers, in the order of the service's; NaN where one that is not required is empty.
        texts: the columns of text by name.
        values: the columns of values of any kind by name.
        eta: exit threshold; None walks to the end.
        max_vacuity: vacuity above which the model abstains; None never does.
        max_doubt: the same for `1 - confidence`, of models that know no vacuity.
        budget: what may be spent on a row at most, where a model buys; None is as much as it was built for.
    """

    numbers: Float[Tensor, "N F"]
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    eta: float | None = None
    max_vacuity: float | None = None
    max_doubt: float | None = None
    budget: float | None = None

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, eq=False)
class Said:
    """What a model says of each row; depth and vacuity are NaN for models that know none.

    Attributes:
        extra: further columns by name, as `Service.extra` lists them.
        path: the experts that were asked, in words; None for models that do not walk.
    """

    probs: Float[Tensor, "N K"]
    depth: Float[Tensor, " N"]
    vacuity: Float[Tensor, " N"]
    abstained: Bool[Tensor, " N"]
    extra: Mapping[str, Values] = field(default_factory=dict)
    path: Values | None = None

    @staticmethod
    def of_walk(prediction: Prediction, graph: DecisionGraph) -> Said:
        """Where several ways lead to an expert, the path names the last one alone."""
        ways = np.array([_way(graph, node) for node in range(len(graph))], dtype=object)
        return Said(
            prediction.probs,
            prediction.depth.double(),
            prediction.vacuity.double(),
            prediction.abstained,
            path=ways[prediction.node.cpu().numpy()],
        )

    @staticmethod
    def of_softmax(probs: Float[Tensor, "N K"], max_doubt: float | None = None) -> Said:
        """Of a model that knows no vacuity: it abstains where it is less confident than it was judged to be enough."""
        unknown = torch.full((len(probs),), torch.nan, dtype=torch.float64)
        return Said(probs, unknown, unknown, doubted(probs, max_doubt))

    @staticmethod
    def concat(parts: Sequence[Said]) -> Said:
        """Answers to one batch after another as one."""

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(part, name) for part in parts])

        extra = {name: np.concatenate([part.extra[name] for part in parts]) for name in parts[0].extra}
        paths = [part.path for part in parts if part.path is not None]
        path = np.concatenate(paths) if paths else None
        return Said(joined("probs"), joined("depth"), joined("vacuity"), joined("abstained"), extra, path)

    def rows(self, index: Int[Tensor, " n"]) -> Said:
        """Some of the rows, in this order."""
        extra = {name: values[index.cpu().numpy()] for name, values in self.extra.items()}
        path = None if self.path is None else self.path[index.cpu().numpy()]
        return Said(self.probs[index], self.depth[index], self.vacuity[index], self.abstained[index], extra, path)


def doubted(probs: Float[Tensor, "N K"], max_doubt: float | None) -> Bool[Tensor, " N"]:
    """Whose confidence is too low, compared as `nbsr_core.evaluation.abstention` does; nobody's without a threshold."""
    return (1 - probs.amax(-1)) > (math.inf if max_doubt is None else max_doubt)


def _way(graph: DecisionGraph, node: int) -> str:
    """The names of the experts on the way from the root to a node."""
    names: list[str] = []
    while graph.nodes[node].parents:
        names.append(graph.nodes[node].name)
        if len(graph.nodes[node].parents) > 1:
            names.append("...")
            break
        (node,) = graph.nodes[node].parents
    return " > ".join(reversed(names))


class Service:
    """One column per feature: what most domains need. Domains whose models read something else have one of their own.

    Args:
        learner: the trained model.
        class_names: what it tells apart.
        feature_names: of the data that it was trained on.
    """

    extra: Sequence[Column] = ()
    by_row = True
    """Whether a row is answered by itself, whatever stands before it; a domain of episodes says no."""

    takes_budget = False
    """Whether it may be told how much to spend (`Questions.budget`)."""

    def __init__(self, learner: Learner, class_names: Sequence[str], feature_names: Sequence[str]) -> None:
        self.learner, self.class_names, self.feature_names = learner, tuple(class_names), tuple(feature_names)

    @property
    def inputs(self) -> tuple[Column, ...]:
        """What may be asked; numbers are given to `say` in this order."""
        return tuple(map(Column, self.feature_names))

    @property
    def outputs(self) -> tuple[Column, ...]:
        """The columns of an answer: what it is, how sure, how many experts were asked and which, if it is a guess."""
        return (
            Column("label", "text"),
            *map(Column, ("confidence", "depth", "vacuity")),
            Column("abstained", "truth"),
            Column("path", "text"),
            *self.extra,
            *(Column(f"p({name})") for name in self.class_names),
        )

    def check_budget(self, budget: float) -> None:
        """Raise an `InputError` where it cannot be used with so much money."""

    def example(self) -> dict[str, Any]:
        """A question that makes sense to the model; zeros, since real rows may not be for everybody's eyes."""
        return {column.name: 0.0 for column in self.inputs if column.required}

    def say(self, asked: Questions) -> Said:
        """The answers, for one row or more."""
        if isinstance(self.learner, NbsrLearner):
            model = self.learner.model
            return Said.of_walk(model.predict(asked.numbers, eta=asked.eta, max_vacuity=asked.max_vacuity), model.graph)
        return Said.of_softmax(self.learner.probabilities(asked.numbers), asked.max_doubt)

    def answer(self, asked: Questions) -> dict[str, Values]:
        """The columns of `outputs`, each with a value for every row."""
        if len(asked) == 0:
            empty = {"text": object, "truth": bool, "number": np.float64}
            return {column.name: np.empty(0, dtype=empty[column.kind]) for column in self.outputs}
        said = self.say(asked)
        if said.probs.shape != (len(asked), len(self.class_names)):
            raise InputError(
                f"the model gave probabilities of shape {list(said.probs.shape)} for {len(asked)} rows and "
                f"{len(self.class_names)} classes; its domain needs a service of its own (Domain.service)"
            )
        probs = said.probs.double().cpu()
        confidence, label = probs.max(1)
        found = {
            "label": np.array(self.class_names, dtype=object)[label.numpy()],
            "confidence": confidence.numpy(),
            "depth": said.depth.cpu().numpy(),
            "vacuity": said.vacuity.cpu().numpy(),
            "abstained": said.abstained.cpu().numpy(),
            "path": np.full(len(asked), "", dtype=object) if said.path is None else said.path,
            **said.extra,
            **{f"p({name})": column for name, column in zip(self.class_names, probs.numpy().T, strict=True)},
        }
        return {column.name: found[column.name] for column in self.outputs}
