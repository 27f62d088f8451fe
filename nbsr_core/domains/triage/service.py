"""Triage as others use it: what is known of a patient goes in; what it means and what to buy next comes out.

Nobody has all panels of a patient before the model was asked which ones are worth their price. So a row holds the free
features and the panels that were bought; the answer rests on these, and names the next panel and its price, or says
that it is time to stop. Whoever buys what it says and asks again goes the way that the model was judged by.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nbsr_core.belief.calibration import calibrated
from nbsr_core.domains.service import Column, Questions, Said, Service
from nbsr_core.domains.triage.learners import TriageLearner
from nbsr_core.errors import InputError
from nbsr_core.learning.learners import Learner
from nbsr_core.model.acquisition import Known, doubt_of
from nbsr_core.model.network import evaluating


class NextPanel(Service):
    """A panel is bought where all its columns have values, and not where all are empty or left out."""

    learner: TriageLearner
    extra: Sequence[Column] = (
        Column("bought", "text"),
        Column("spent"),
        Column("stop", "truth"),
        Column("next_panel", "text"),
        Column("next_cost"),
    )

    def __init__(self, learner: Learner, class_names: Sequence[str], feature_names: Sequence[str]) -> None:
        if not isinstance(learner, TriageLearner):
            raise InputError(f"triage serves learners that buy panels, got {type(learner).__name__}")
        super().__init__(learner, class_names, feature_names)

    @property
    def inputs(self) -> tuple[Column, ...]:
        free = len(self.feature_names) if self.learner.peeks else self.learner.model.panels.free
        return tuple(Column(name, required=place < free) for place, name in enumerate(self.feature_names))

    @torch.no_grad()
    def say(self, asked: Questions) -> Said:
        given, x = self._given(asked.numbers), asked.numbers.nan_to_num()
        with evaluating(self.learner.model):
            known, order = self._buy(x, given)
            rows, parts = zip(*self._by_purchases(known, order, x, asked), strict=True)
        return Said.concat(parts).rows(torch.cat(rows).argsort())

    def _given(self, x: Float[Tensor, "N F"]) -> Bool[Tensor, "N panels"]:
        """Which panels each row has."""
        panels = self.learner.model.panels
        there = ~x[:, panels.free :].isnan().view(len(x), len(panels), panels.width)
        whole = there.all(2)
        torn = (there.any(2) & ~whole).nonzero().tolist()
        if torn:
            row, panel = torn[0]
            start = panels.free + panel * panels.width
            names = self.feature_names[start : start + panels.width]
            empty = [name for name, known in zip(names, there[row, panel].tolist(), strict=True) if not known]
            raise InputError(
                f"row {row} has some values of {panels.names[panel]!r}, but not {empty[0]!r} "
                f"({len(empty)} of {panels.width} are missing): give the whole panel, or none of it"
            )
        return whole

    def _buy(self, x: Float[Tensor, "N F"], given: Bool[Tensor, "N panels"]) -> tuple[Known, list[list[int]]]:
        """What is known with the panels that are given, counted in the order in which the policy would have them."""
        model, policy = self.learner.model, self.learner.policy(x)
        known, order = model.start(x), [list[int]() for _ in range(len(x))]
        for _ in range(int(given.sum(1).max())):
            left = given & (known.bought == 0)
            row = left.any(1).nonzero().squeeze(1)
            panel = policy(known).masked_fill(~left, -math.inf)[row].argmax(-1)
            then = model.bought_also(known.rows(row), x[row], panel)
            known = Known(
                known.features.index_copy(0, row, then.features),
                known.alpha.index_copy(0, row, then.alpha),
                known.bought.index_copy(0, row, then.bought),
            )
            for place, bought in zip(row.tolist(), panel.tolist(), strict=True):
                order[place].append(bought)
        return known, order

    def _by_purchases(
        self, known: Known, order: list[list[int]], x: Float[Tensor, "N F"], asked: Questions
    ) -> Iterator[tuple[Tensor, Said]]:
        """Rows with the same number of panels together: they share a temperature, and whether they may stop."""
        model, names = self.learner.model, np.array([*self.learner.model.panels.names, ""], dtype=object)
        costs = np.array([*model.costs.tolist(), np.nan])
        scores = torch.zeros_like(known.bought)
        if not bool(known.bought.all()):
            scores = self.learner.policy(x)(known).masked_fill(known.bought > 0, -math.inf)
        counts = known.bought.sum(1).long()
        for count in counts.unique().tolist():
            row = (counts == count).nonzero().squeeze(1)
            belief = known.alpha[row]
            if count and bool(model.calibration.fitted):
                belief = calibrated(belief, model.calibration.temperature[count - 1])
            vacuity = (model.prior.sum() / belief.sum(-1)).double()
            content = torch.full((len(row),), count == len(model.panels))
            if count and asked.eta is not None:
                content |= doubt_of(model.stop, belief) < asked.eta
            # Before the first panel there is no evidence at all: whatever the label, it is a guess.
            limit = 1.0 if asked.max_vacuity is None else asked.max_vacuity
            unknown = vacuity > limit if count else torch.ones_like(content)
            following = torch.where(content, len(model.panels), scores[row].argmax(-1)).numpy()
            bought = [order[place] for place in row.tolist()]
            extra = {
                "bought": np.array([", ".join(names[panels]) for panels in bought], dtype=object),
                "spent": np.array([costs[panels].sum() for panels in bought]),
                "stop": content.numpy(),
                "next_panel": names[following],
                "next_cost": costs[following],
            }
            probs = belief / belief.sum(-1, keepdim=True)
            yield row, Said(probs, torch.full((len(row),), float(count)).double(), vacuity, unknown, extra)
