"""A language model as others use it: words go in, the next word comes out, or that there is nothing to go by."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from nbsr_core.domains.language.generation import read_prompt
from nbsr_core.domains.language.grammar import PAD, SPECIAL
from nbsr_core.domains.language.judging import last_rows
from nbsr_core.domains.service import Column, Questions, Said, Service
from nbsr_core.errors import InputError
from nbsr_core.learning.learners import NbsrLearner

TEXT = "text"


class NextWord(Service):
    """One text a row; the answer is about the word that follows it."""

    @property
    def inputs(self) -> tuple[Column, ...]:
        return (Column(TEXT, "text"),)

    def example(self) -> dict[str, Any]:
        words = [name for name in self.class_names if name not in SPECIAL]
        return {TEXT: words[0]}

    def say(self, asked: Questions) -> Said:
        prompts = []
        for row, text in enumerate(asked.texts[TEXT]):
            try:
                prompts.append(torch.tensor(read_prompt(text, self.class_names, len(self.feature_names))))
            except InputError as error:
                raise InputError(f"{TEXT} in row {row}: {error}") from None
        x = pad_sequence(prompts, batch_first=True, padding_value=float(PAD))
        if isinstance(self.learner, NbsrLearner):
            model = self.learner.model
            every = Said.of_walk(model.predict(x, eta=asked.eta, max_vacuity=asked.max_vacuity), model.graph)
        else:
            every = Said.of_softmax(self.learner.probabilities(x), asked.max_doubt)
        return every.rows(last_rows(x))
