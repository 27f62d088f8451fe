"""NBSR over tokens: rows are tokens, and what was read before a token counts for how far it can be trusted.

The density factor asks two things. How far is the oracle of a token from those that the *same word in the same place*
had in training? A sentence out of order has familiar words in unfamiliar states, which the distance to the nearest of
all states would miss. And how far was the strangest token so far? A reader who met something unknown cannot vouch for
what follows, yet attention soon washes a strange word out of the oracle. So the factor of token t is
`factor(max_{s <= t} d(h_s))`, and its threshold is set by the same running distance on validation sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.belief.density import DensityFactor
from nbsr_core.domains.language.grammar import PAD
from nbsr_core.domains.language.planned import can_plan, planned_walk
from nbsr_core.domains.language.transformer import CausalTransformer
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.model.network import NBSR, evaluating
from nbsr_core.model.walk import WalkInput, whole_walk
from nbsr_core.trace.exits import Prediction, check_eta, check_max_vacuity

# Rows that walk together: no more tokens than a batch of samples elsewhere, and beliefs that stay in the cache (4 MB).
CHUNK_ROWS, CHUNK_BELIEFS = 2048, 2**20

# A word in a place, or else a word, has a mean of its own if it was read so often; all others share one.
FEWEST_READ = 20


class TokenNBSR(NBSR):
    """NBSR whose backbone reads tokens [B, T] and gives one oracle for each that is not padding."""

    backbone: CausalTransformer

    def __init__(
        self, backbone: CausalTransformer, graph: DecisionGraph, num_classes: int, oracle_dim: int, **walk: Any
    ) -> None:
        super().__init__(backbone, graph, num_classes, oracle_dim, **walk)
        self.kind: Tensor  # which mean of the density factor a word in a place belongs to, [K, T]
        self.register_buffer("kind", torch.zeros(num_classes, backbone.length, dtype=torch.int64))

    @cached_property
    def plans(self) -> bool:
        """Whether routes follow from the oracle alone."""
        return can_plan(self)

    @torch.inference_mode()
    def predict(
        self,
        x: Tensor,
        *,
        eta: float | None = None,
        max_vacuity: float | None = None,
        side: Float[Tensor, "B s"] | None = None,
        closeness: Float[Tensor, " B"] | None = None,
        chunk: int | None = None,
    ) -> Prediction:
        """As in NBSR, one row per token; `chunk` counts sentences, and follows from the vocabulary by default."""
        if chunk is None and self.plans:
            eta, max_vacuity = check_eta(eta), check_max_vacuity(max_vacuity)
            with evaluating(self):
                h = self.oracle(x)
                self._check_walk(h, side)
                return self.walk_from(h, eta, max_vacuity, self._scale(h, x, closeness))
        chunk = max(1, self.rows_at_once // x.shape[1]) if chunk is None else chunk
        return super().predict(x, eta=eta, max_vacuity=max_vacuity, side=side, closeness=closeness, chunk=chunk)

    def walk_from(
        self,
        h: Float[Tensor, "rows d"],
        eta: float | None,
        max_vacuity: float | None,
        scale: Float[Tensor, " rows"] | None,
    ) -> Prediction:
        """From the oracles on, where the routes follow from them."""
        found = whole_walk(self, WalkInput(h, None, scale), eta, max_vacuity)  # a belief over few words is quickly made
        return planned_walk(self, h, eta, max_vacuity, scale, self.rows_at_once) if found is None else found

    @property
    def rows_at_once(self) -> int:
        """Tokens whose beliefs are held at the same time."""
        return min(CHUNK_ROWS, max(1, CHUNK_BELIEFS // self.num_classes))

    def evidence_scale(
        self, h: Float[Tensor, "rows d"], x: Int[Tensor, "B T"], stage: int = -1
    ) -> Float[Tensor, " rows"] | None:
        if self.density is None or not self.density.fitted:
            return None
        h = h.detach() if self.training else h
        if len(h) == x.numel():  # no padding: every sentence is as long as the others
            factor: Tensor = self.density(h, mean=at_tokens(self.kind, x), length=x.shape[1])
            return factor
        return self.density.of_distance(self._strangest(h, x))

    def _strangest(self, h: Float[Tensor, "rows d"], x: Int[Tensor, "B T"]) -> Float[Tensor, " rows"]:
        assert self.density is not None
        return running_max(self.density.distance(h, mean=at_tokens(self.kind, x)), x)

    @torch.no_grad()
    def fit_density_on(self, train: Int[Tensor, "N T"], valid: Int[Tensor, "M T"], chunk: int = 2048) -> None:
        """Fit the factor to training oracles by word and place, and its threshold to validation sentences."""
        assert self.density is not None
        known, fresh = (torch.cat([self.oracle(part) for part in x.split(chunk)]) for x in (train, valid))
        kinds = kinds_of_words(train, self.num_classes, self.backbone.length)
        self.kind.copy_(kinds)
        self.fit_density(known, at_tokens(kinds, train), fresh=fresh)
        _complete(self.density, kinds)
        self.density.trust(self._strangest(fresh, valid))


Strangeness = Callable[[Tensor, Tensor], Tensor]
"""(features [rows, d] of the tokens that are not padding, sentences [B, T]) -> how strange each token is [rows]."""


def strangeness(
    density: DensityFactor, features: Float[Tensor, "rows d"], train: Int[Tensor, "N T"], vocabulary: int
) -> Strangeness:
    """The distance inside `TokenNBSR`'s belief for any model over tokens: from the features of the same word in the
    same place in training, the largest so far in each sentence.

    Args:
        density: measures; fitted here.
        features: of the training tokens that are not padding.
        train: the training sentences.
        vocabulary: how many words there are.
    """
    kinds = kinds_of_words(train, vocabulary, train.shape[1])
    _complete(density.fit_distance(features, at_tokens(kinds, train)), kinds)
    return lambda features, x: running_max(density.distance(features, mean=at_tokens(kinds, x)), x)


def _complete(density: DensityFactor, kinds: Int[Tensor, "K T"]) -> None:
    """Where nothing rare was read, there is no mean of the rest yet: it is compared with the centre."""
    if len(density.means) == int(kinds.max()):
        density.means = torch.cat([density.means, torch.zeros_like(density.means[:1])])


def kinds_of_words(x: Int[Tensor, "N T"], vocabulary: int, length: int) -> Int[Tensor, "{vocabulary} {length}"]:
    """Numbers for words in places that were read often, then for words, and the last one for all the rest."""
    held = x != PAD
    places = torch.arange(x.shape[1], device=x.device).expand_as(x)
    cells = (x * length + places)[held].bincount(minlength=vocabulary * length).view(vocabulary, length)
    common = cells >= FEWEST_READ
    elsewhere = (cells * ~common).sum(1) >= FEWEST_READ
    kinds = torch.full((vocabulary, length), int(common.sum() + elsewhere.sum()), device=x.device)
    numbers = int(common.sum()) + torch.arange(int(elsewhere.sum()), device=x.device)
    kinds[elsewhere] = numbers.unsqueeze(1).expand(-1, length)
    kinds[common] = torch.arange(int(common.sum()), device=x.device)
    return kinds


def at_tokens(table: Int[Tensor, "K places"], x: Int[Tensor, "B T"]) -> Int[Tensor, " rows"]:
    """The entries of a table by word and place for each token that is not padding."""
    cells = torch.add(torch.arange(x.shape[1], device=x.device), x, alpha=table.shape[1]).flatten()
    held = (x != PAD).flatten()
    return table.flatten().index_select(0, cells if bool(held.all()) else cells[held])


def running_max(distance: Float[Tensor, " rows"], x: Int[Tensor, "B T"]) -> Float[Tensor, " rows"]:
    """The largest value of each token's sentence so far; `x` says which rows belong together."""
    held = x != PAD
    if bool(held.all()):
        return distance.view(x.shape).cummax(1).values.flatten()
    table = distance.new_zeros(x.shape)
    table[held] = distance
    return table.cummax(1).values[held]
