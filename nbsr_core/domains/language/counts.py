"""A detector of the unknown without a network: has this word been read here before, and after that one?

Whoever praises a network for stopping at strange sentences should know what a table of counts does. This one is fitted
on the training sentences and knows no model, so that its figures are the same beside every model of a study and seed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.domains.language.grammar import PAD
from nbsr_core.domains.language.reading import running_max


class WordCounts:
    """How often words were read in their places, and pairs of words side by side.

    The score of a token is the smallest `log(1 + count)` of its sentence so far, over words in their places and pairs:
    0 once something was read that training never showed.

    Args:
        x: training sentences.
        vocabulary: number of tokens K.
    """

    def __init__(self, x: Int[Tensor, "N T"], vocabulary: int) -> None:
        self.vocabulary = vocabulary
        held = x != PAD
        self.in_place = _counted(_place_keys(x)[held])
        self.pairs = _counted(self._pair_keys(x)[held[:, 1:]])

    def score(self, x: Int[Tensor, "N T"]) -> Float[Tensor, " rows"]:
        """For each token that is not padding; larger for what looks known."""
        counts = _looked_up(self.in_place, _place_keys(x))
        if x.shape[1] > 1:
            counts[:, 1:] = counts[:, 1:].minimum(_looked_up(self.pairs, self._pair_keys(x)))
        rarity = -counts.double().log1p()
        return -running_max(rarity[x != PAD], x)

    def _pair_keys(self, x: Int[Tensor, "N T"]) -> Int[Tensor, "N pairs"]:
        """A number for each word and the one before it."""
        return x[:, :-1] * self.vocabulary + x[:, 1:]


Table = tuple[Int[Tensor, " kinds"], Int[Tensor, " kinds"]]
"""Keys in order, and how often each was met; all pairs of a large vocabulary would not fit into memory."""


def _place_keys(x: Int[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    """A number for each word in its place."""
    return x * x.shape[1] + torch.arange(x.shape[1])


def _counted(keys: Int[Tensor, " rows"]) -> Table:
    known, counts = keys.unique(return_counts=True)
    return known, counts


def _looked_up(table: Table, keys: Int[Tensor, "N width"]) -> Int[Tensor, "N width"]:
    """The count of each key, 0 for those that were never met."""
    known, counts = table
    if not len(known):
        return torch.zeros_like(keys)
    place = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
    return counts[place].masked_fill(known[place] != keys, 0)
