"""Going on from a prompt: three ways to draw the next token, one of which may refuse.

Top-k and nucleus sampling cut the tail off a distribution that is always there, however strange the prompt. Evidential
generation draws from the belief, and stops where there is none to speak of: the precision alpha_0 has hardly risen
above the prior's (paper, Evidential Thresholding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.domains.language.grammar import BOS, EOS, UNK, VOCABULARY
from nbsr_core.errors import InputError
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.options.specs import check_choice

Strategy = Literal["evidential", "top-k", "nucleus"]

# The paper's threshold, alpha_0 < 1.5 |V|, as a vacuity.
PAPER_VACUITY = 1 / 1.5


@dataclass(frozen=True)
class Continuation:
    """What was generated, and why it ended."""

    strategy: Strategy
    words: tuple[str, ...]
    ended: str
    abstained: bool = False


def read_prompt(prompt: str, class_names: Sequence[str], length: int) -> list[int]:
    """Tokens of a prompt after `<bos>`; words that are not in the vocabulary are `<unk>`."""
    index = {word: token for token, word in enumerate(class_names)}
    words = prompt.split()
    if not words:
        raise InputError("the prompt is empty; give some words to go on from")
    if words[0] == class_names[BOS]:
        words = words[1:]
    if len(words) >= length:
        raise InputError(f"the prompt has {len(words)} words; this model reads {length - 1} at most")
    return [BOS, *(index.get(word, UNK) for word in words)]


def goes_on(
    learner: Learner,
    tokens: Sequence[int],
    class_names: Sequence[str],
    strategy: Strategy,
    generator: torch.Generator,
    *,
    length: int,
    most: int = 12,
    k: int = 5,
    mass: float = 0.9,
    max_vacuity: float = PAPER_VACUITY,
) -> Continuation:
    """Draw tokens until the sentence ends, there is no room left, or (evidential) the model does not know.

    Args:
        learner: any language model; only NBSR can be evidential.
        tokens: the prompt, `<bos>` first.
        class_names: the vocabulary.
        strategy: how a token is drawn.
        generator: all randomness.
        length: tokens that the model reads at most. A text goes on with the last ones, a sentence of the grammar ends.
        most: tokens to generate at most.
        k: how many tokens top-k keeps.
        mass: probability that nucleus sampling keeps.
        max_vacuity: evidential generation stops above it.
    """
    check_choice("strategy", strategy, Strategy)
    if strategy == "evidential" and not isinstance(learner, NbsrLearner):
        raise InputError("only NBSR has evidence to go by; a softmax can use top-k or nucleus")
    read = list(tokens)
    words: list[str] = []
    slides = tuple(class_names) != VOCABULARY
    for _ in range(most):
        if len(read) > length:
            if not slides:
                return Continuation(strategy, tuple(words), "no room left")
            read = [BOS, *read[-(length - 1) :]]
        x = torch.tensor([read])
        if strategy == "evidential":
            assert isinstance(learner, NbsrLearner)
            prediction = learner.model.predict(x.to(learner.model.prior.device))
            vacuity, probs = float(prediction.vacuity[-1]), prediction.probs[-1].cpu()
            if vacuity > max_vacuity:
                precision = float(prediction.alpha[-1].sum())
                why = (
                    f"stopped: hardly any evidence after {class_names[read[-1]]!r}: alpha_0 = {precision:.1f}, where "
                    f"the prior alone is {vacuity * precision:.1f} (vacuity {vacuity:.2f} > {max_vacuity:.2f})"
                )
                return Continuation(strategy, tuple(words), why, abstained=True)
        else:
            probs = learner.probabilities(x)[-1]
            probs = top_k(probs, k) if strategy == "top-k" else nucleus(probs, mass)
        token = int(torch.multinomial(probs.double(), 1, generator=generator))
        if token == EOS:
            return Continuation(strategy, tuple(words), "end of sentence")
        words.append(class_names[token])
        read.append(token)
    return Continuation(strategy, tuple(words), f"{most} tokens")


def top_k(probs: Float[Tensor, " K"], k: int) -> Float[Tensor, " K"]:
    """Only the k most probable tokens, renormalised."""
    kept = probs.topk(min(k, len(probs))).indices
    return _only(probs, kept)


def nucleus(probs: Float[Tensor, " K"], mass: float) -> Float[Tensor, " K"]:
    """The smallest set of most probable tokens that holds this much probability, renormalised."""
    ordered = probs.sort(descending=True)
    before = ordered.values.cumsum(0) - ordered.values
    return _only(probs, ordered.indices[before < mass])


def _only(probs: Float[Tensor, " K"], kept: Int[Tensor, " kept"]) -> Float[Tensor, " K"]:
    cut = torch.zeros_like(probs).index_copy(0, kept, probs[kept])
    return cut / cut.sum()
