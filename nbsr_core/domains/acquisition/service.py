"""A buying model as others use it: what is known of a case goes in; what it means and what to buy next comes out.

Nobody has all panels of a case before the model was asked which ones are worth their price. So a row holds the free
features and the panels that were bought; the answer rests on these, and names the next panel and its price, or says
that it is time to stop. Whoever buys what it says and asks again goes the way that the model was judged by.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from nbsr_core.belief.calibration import calibrated
from nbsr_core.domains.acquisition.learners import AcquisitionLearner
from nbsr_core.domains.domain import Signature
from nbsr_core.domains.service import Column, Questions, Said, Service, doubted
from nbsr_core.domains.table.data import encoding_in
from nbsr_core.domains.table.service import NOTE, texts_of
from nbsr_core.errors import InputError
from nbsr_core.learning.learners import Learner
from nbsr_core.model.acquisition import ROUNDING, Known, doubt_of
from nbsr_core.model.network import evaluating


class NextPanel(Service):
    """A panel is bought where all its columns have values, and not where all are empty or left out."""

    learner: AcquisitionLearner
    takes_budget = True
    extra: Sequence[Column] = (
        Column("bought", "text"),
        Column("spent"),
        Column("stop", "truth"),
        Column("next_panel", "text"),
        Column("next_cost"),
    )

    def __init__(self, learner: Learner, class_names: Sequence[str], feature_names: Sequence[str]) -> None:
        if not isinstance(learner, AcquisitionLearner):
            raise InputError(f"only learners that buy panels say what to buy next, got {type(learner).__name__}")
        super().__init__(learner, class_names, feature_names)

    @property
    def inputs(self) -> tuple[Column, ...]:
        free = self.learner.model.panels.free_columns
        always = range(len(self.feature_names)) if self.learner.peeks else free
        return tuple(Column(name, required=place in always) for place, name in enumerate(self.feature_names))

    @torch.no_grad()
    def say(self, asked: Questions) -> Said:
        given, x = self._given(asked.numbers), asked.numbers.nan_to_num()
        with evaluating(self.learner.model):
            known, order = self._buy(x, given, asked.budget)
            rows, parts = zip(*self._by_purchases(known, order, x, asked), strict=True)
        return Said.concat(parts).rows(torch.cat(rows).argsort())

    def _given(self, x: Float[Tensor, "N F"]) -> Bool[Tensor, "N panels"]:
        """Which panels each row has."""
        panels, there = self.learner.model.panels, ~x.isnan()
        whole = torch.stack([there[:, columns].all(1) for columns in map(list, panels.columns)], dim=1)
        some = torch.stack([there[:, columns].any(1) for columns in map(list, panels.columns)], dim=1)
        torn = (some & ~whole).nonzero().tolist()
        if torn:
            row, panel = torn[0]
            own = panels.columns[panel]
            empty = [self.feature_names[column] for column in own if not there[row, column]]
            raise InputError(
                f"there are some values of {panels.names[panel]!r}, but not {empty[0]!r} "
                f"({len(empty)} of {len(own)} are missing): give the whole panel, or none of it"
            )
        return whole

    def check_budget(self, budget: float) -> None:
        """It must pay one panel at least, and be no larger than the budgets that the model has learned for."""
        model = self.learner.model
        if math.isnan(budget):
            raise InputError("budget must be a number, got nan")
        model.panels.checked_steps(budget)
        if model.budget is not None and budget > model.budget + ROUNDING:
            raise InputError(f"budget: the model was built for budgets up to {model.budget:g}, got {budget:g}")

    def _buy(
        self, x: Float[Tensor, "N F"], given: Bool[Tensor, "N panels"], budget: float | None
    ) -> tuple[Known, list[list[int]]]:
        """What is known with the panels that are given, counted in the order in which the policy would have them."""
        model, policy = self.learner.model, self.learner.policy(x)
        known, order = model.start(x, budget), [list[int]() for _ in range(len(x))]
        for _ in range(int(given.sum(1).max())):
            left = given & (known.bought == 0)
            row = left.any(1).nonzero().squeeze(1)
            panel = policy(known).masked_fill(~left, -math.inf)[row].argmax(-1)
            then = model.bought_also(known.rows(row), x[row], panel)
            pairs = ((getattr(known, part.name), getattr(then, part.name)) for part in fields(Known))
            known = Known(*(before.index_copy(0, row, after) for before, after in pairs))
            for place, bought in zip(row.tolist(), panel.tolist(), strict=True):
                order[place].append(bought)
        return known, order

    def _by_purchases(
        self, known: Known, order: list[list[int]], x: Float[Tensor, "N F"], asked: Questions
    ) -> Iterator[tuple[Tensor, Said]]:
        """Rows with the same number of panels together: they share a temperature, and whether they may stop."""
        model, names = self.learner.model, np.array([*self.learner.model.panels.names, ""], dtype=object)
        costs = np.array([*model.costs.tolist(), np.nan])
        scores, closed = torch.zeros_like(known.bought), model.closed(known)
        if not bool(closed.all()):
            scores = self.learner.policy(x)(known).masked_fill(closed, -math.inf)
        counts = known.bought.sum(1).long()
        for count in counts.unique().tolist():
            row = (counts == count).nonzero().squeeze(1)
            belief = known.alpha[row]
            if count and bool(model.calibration.fitted):
                # More panels than the budgets of the study allow: as with the most that they do.
                belief = calibrated(belief, model.calibration.temperature[min(count, model.steps) - 1])
            vacuity = (model.prior.sum() / belief.sum(-1)).double()
            content = closed[row].all(1)
            if count and asked.eta is not None:
                content |= doubt_of(model.stop, belief) < asked.eta
            probs = belief / belief.sum(-1, keepdim=True)
            # Before the first panel there is no evidence at all: whatever the label, it is a guess.
            limit = 1.0 if asked.max_vacuity is None else asked.max_vacuity
            unknown = (vacuity > limit) | doubted(probs, asked.max_doubt) if count else torch.ones_like(content)
            following = torch.where(content, len(model.panels), scores[row].argmax(-1)).numpy()
            bought = [order[place] for place in row.tolist()]
            extra = {
                "bought": np.array([", ".join(names[panels]) for panels in bought], dtype=object),
                "spent": np.array([costs[panels].sum() for panels in bought]),
                "stop": content.numpy(),
                "next_panel": names[following],
                "next_cost": costs[following],
            }
            yield row, Said(probs, torch.full((len(row),), float(count)).double(), vacuity, unknown, extra)


class NextColumns(NextPanel):
    """The same for the cells of a table: a panel is bought where any of its cells is filled.

    Its empty cells are then missing values. `NA` fills a cell: the panel was bought, and this value is not known.
    """

    extra = (*NextPanel.extra, Column(NOTE, "text"))

    def __init__(self, learner: Learner, signature: Signature) -> None:
        super().__init__(learner, signature.class_names, signature.feature_names)
        self.encoding = encoding_in(signature.structure)

    @property
    def inputs(self) -> tuple[Column, ...]:
        free = set(self.learner.model.panels.free_columns)
        always = self.learner.peeks
        return tuple(Column(c.name, "value", required=always or c.start in free) for c in self.encoding.columns)

    def example(self) -> dict[str, Any]:
        """Nothing bought, nothing known."""
        return {column.name: "" for column in self.inputs if column.required}

    def say(self, asked: Questions) -> Said:
        nothing = [""] * len(asked)
        cells = {c.name: texts_of(c.name, asked.values.get(c.name, nothing)) for c in self.encoding.columns}
        numbers, notes = self.encoding.encode(cells, self._unseen(cells))
        said = super().say(replace(asked, numbers=torch.from_numpy(numbers)))
        return replace(said, extra={**said.extra, NOTE: np.array(notes, dtype=object)})

    def _unseen(self, cells: Mapping[str, Sequence[str]]) -> dict[str, NDArray[np.bool_]]:
        """For each column with a price, the rows whose panel was not bought: all its cells are empty."""
        unseen: dict[str, NDArray[np.bool_]] = {}
        for panel in map(set, self.learner.model.panels.columns):
            own = [column.name for column in self.encoding.columns if column.start in panel]
            empty: NDArray[np.bool_] = np.all([[not cell for cell in cells[name]] for name in own], axis=0)
            unseen |= dict.fromkeys(own, empty)
        return unseen
