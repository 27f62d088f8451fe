"""Cuts rows into parts, disease by disease, so that every part knows every disease."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.learning.splits import Split


def stratified(
    y: Int[Tensor, " N"], shares: Sequence[float], generator: torch.Generator, diseases: Sequence[str]
) -> list[Tensor]:
    """Row indices of a remainder and of one part for each share, at least one row of each disease in each of them."""
    parts: list[list[Tensor]] = [[] for _ in range(len(shares) + 1)]
    for k, disease in enumerate(diseases):
        rows = torch.nonzero(y == k).squeeze(1)
        sizes = [max(1, round(share * len(rows))) for share in shares]
        if sum(sizes) >= len(rows):
            raise InputError(
                f"the disease {disease!r} has {len(rows)} rows, too few to be cut into {len(parts)} parts of its own"
            )
        shuffled = rows[torch.randperm(len(rows), generator=generator)]
        for part, piece in zip(parts, shuffled.split([len(rows) - sum(sizes), *sizes]), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in parts]


def distinct(split: Split, diseases: Sequence[str]) -> Split:
    """Each row once, in an order that depends on its values alone. Symptoms that mean two diseases are refused."""
    x, owner = split.x.unique(dim=0, return_inverse=True)
    y = torch.empty(len(x), dtype=torch.int64).scatter(0, owner, split.y)
    clash = torch.nonzero(y[owner] != split.y).flatten().tolist()
    if clash:
        pair = sorted(diseases[int(k)] for k in (split.y[clash[0]], y[owner[clash[0]]]))
        raise InputError(f"split 'distinct' is not possible: rows of {pair[0]!r} and {pair[1]!r} have equal symptoms")
    return Split(x, y)


def balanced(split: Split, rows_per_disease: int) -> Split:
    """The rows of each disease over and over, until there are so many of each."""
    turns = torch.arange(rows_per_disease)
    rows = [torch.nonzero(split.y == k).squeeze(1) for k in split.y.unique()]
    chosen = torch.cat([own[turns % len(own)] for own in rows])
    return Split(split.x[chosen], split.y[chosen])


def unseen(split: Split, others: Sequence[Split]) -> Split:
    """The rows whose inputs are in none of the other splits."""
    known = {tuple(row) for other in others for row in other.x.tolist()}
    kept = torch.tensor([tuple(row) not in known for row in split.x.tolist()])
    if not bool(kept.any()):
        raise InputError(f"split 'distinct' is not possible: all {len(split)} patients have the symptoms of another")
    return Split(split.x[kept], split.y[kept])
