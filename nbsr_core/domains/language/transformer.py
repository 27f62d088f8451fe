"""The shared causal transformer: every model of the language domain reads through the same one.

It gives one row for each token that was read, [rows, d], padding left out: what stands on top of it (a softmax, a
mixture of experts, a walk) sees tokens like any other samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.domains.language.grammar import PAD
from nbsr_core.errors import InputError


@dataclass(frozen=True)
class TransformerOptions:
    """The paper's sizes, and the dropout that goes without saying in its framework.

    Attributes:
        dim: size of a token's embedding, and of the oracle.
        layers: blocks of attention and feed-forward network.
        heads: of the attention in each block.
        feedforward: width of the feed-forward network in each block.
        dropout: share of values that is dropped while training.
    """

    dim: int = 64
    layers: int = 2
    heads: int = 4
    feedforward: int = 256
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "heads", "feedforward"):
            if getattr(self, name) < 1:
                raise InputError(f"transformer.{name} must be a whole number >= 1, got {getattr(self, name)}")
        if self.dim % self.heads:
            raise InputError(f"transformer.dim must be a multiple of heads, got {self.dim} and {self.heads}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"transformer.dropout must lie in [0, 1), got {self.dropout}")


class Block(nn.Module):
    """Attention to what came before, then a small ReLU network, each added to what was known."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.heads, self.dropout = options.heads, options.dropout
        self.norm_attention, self.norm_forward = nn.LayerNorm(options.dim), nn.LayerNorm(options.dim)
        self.query_key_value = nn.Linear(options.dim, 3 * options.dim)
        self.joined = nn.Linear(options.dim, options.dim)
        self.widen = nn.Linear(options.dim, options.feedforward)
        self.narrow = nn.Linear(options.feedforward, options.dim)

    def forward(self, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B T d"]:
        x = self.norm_attention(x + self._attend(x))
        thought: Tensor = self.norm_forward(x + self._think(x))
        return thought

    def _attend(self, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B T d"]:
        batch, length, dim = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        drop = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=drop, is_causal=True)
        return self._drop(self.joined(seen.transpose(1, 2).reshape(batch, length, dim)))

    def _think(self, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B T d"]:
        return self._drop(self.narrow(self._drop(F.relu(self.widen(x)))))

    def _drop(self, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B T d"]:
        return F.dropout(x, self.dropout) if self.training and self.dropout else x


class CausalTransformer(nn.Module):
    """Tokens [B, T] to one vector for each of them that is not padding, [rows, d], sentence by sentence.

    Padding stands at the end only, where causal attention cannot see it.
    """

    def __init__(self, vocabulary: int, length: int, options: TransformerOptions) -> None:
        super().__init__()
        self.length = length
        self.tokens = nn.Embedding(vocabulary, options.dim)
        self.places = nn.Parameter(torch.randn(length, options.dim) * 0.1)
        self.blocks = nn.Sequential(*(Block(options) for _ in range(options.layers)))

    def forward(self, x: Int[Tensor, "B T"]) -> Float[Tensor, "rows d"]:
        return self.rows(self.blocks(self.embedded(x)), x)

    def embedded(self, x: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """Words and places, before the first block."""
        if x.shape[1] > self.length:
            raise InputError(f"this model reads {self.length} tokens at most, got {x.shape[1]}")
        h: Tensor = self.tokens(x) + self.places[: x.shape[1]]
        return h

    @staticmethod
    def rows(h: Float[Tensor, "B T d"], x: Int[Tensor, "B T"]) -> Float[Tensor, "rows d"]:
        """Of a block's output, a row for each token that is not padding."""
        h = h.flatten(0, 1)
        held = (x != PAD).flatten()
        return h if bool(held.all()) else h[held]


class TransformerStages(CausalTransformer):
    """The same transformer, of which each block's output is wanted: a network with a head at each block reads them."""

    def forward(self, x: Int[Tensor, "B T"]) -> list[Float[Tensor, "rows d"]]:  # type: ignore[override]
        h, found = self.embedded(x), []
        for block in self.blocks:
            h = block(h)
            found.append(self.rows(h, x))
        return found
