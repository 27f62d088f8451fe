"""A policy as others use it: frames go in, what to do at each comes out, or that it is better to halt."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.domains.navigation.learners import ClonedClassifier, ClonedNbsr, as_episodes
from nbsr_core.domains.service import Column, Questions, Said, Service
from nbsr_core.errors import InputError
from nbsr_core.model.network import evaluating

EPISODE = "episode"


class NextMove(Service):
    """One frame per row. Rows with the same number in `episode` are the frames of one episode, in the order in which
    they were seen, which a policy with a memory needs; a row without such a number is the first frame of its own.
    """

    by_row = False

    @property
    def inputs(self) -> tuple[Column, ...]:
        return (*super().inputs, Column(EPISODE, required=False))

    def example(self) -> dict[str, Any]:
        return {**super().example(), EPISODE: 0.0}

    def say(self, asked: Questions) -> Said:
        frames, numbers = as_episodes(asked.numbers[:, :-1])[:, 0], asked.numbers[:, -1].tolist()
        episodes: dict[float, list[int]] = {}
        for row, number in enumerate(numbers):
            episodes.setdefault(-1.0 - row if math.isnan(number) else number, []).append(row)
        found, rows, state = [], [], None
        # The longest first: those that are over leave at the end of the batch, and the memory of the others stays.
        going = sorted(episodes.values(), key=len, reverse=True)
        for step in range(len(going[0])):
            going = [episode for episode in going if len(episode) > step]
            here = [episode[step] for episode in going]
            said, state = self._step(frames[here], None if state is None else state[:, : len(here)], asked)
            found.append(said)
            rows += here
        return Said.concat(found).rows(torch.tensor(rows).argsort())

    def _step(self, frames: Float[Tensor, "B C view view"], state: Any, asked: Questions) -> tuple[Said, Any]:
        if not isinstance(self.learner, ClonedNbsr | ClonedClassifier):
            raise InputError(f"navigation serves policies that were cloned for it, got {type(self.learner).__name__}")
        if isinstance(self.learner, ClonedNbsr):
            with evaluating(self.learner.module):
                walked, state = self.learner.module.step(frames, state, eta=asked.eta, max_vacuity=asked.max_vacuity)
            return Said.of_walk(walked, self.learner.model.graph), state
        said, state = self.learner.step(frames, state)
        answer = Said.of_softmax(said.probs, asked.max_doubt)
        if said.closeness is not None:
            vacuity = 1 - said.closeness.double()
            limit = math.inf if asked.max_vacuity is None else asked.max_vacuity
            answer = replace(answer, vacuity=vacuity, abstained=vacuity > limit)
        return answer, state
