"""Which pictures a seed learns from and is judged on.

Pictures are decoded and embedded once for all seeds; a seed only chooses rows among them. Rows of a set are dealt out
(see `images`), so that any stretch of them is a fair sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from nbsr_core.domains.vision.images import dealt_out

JUDGED_SHARE = 5  # a fifth as many pictures as are learned from are judged


@dataclass(frozen=True, eq=False)
class Selection:
    """The rows that one seed takes, in ascending order.

    Attributes:
        train: rows of the training set to learn from.
        valid: other rows of the training set, held out for validation.
        test: rows of the test set, the same for every seed.
    """

    train: Int[Tensor, " n"]
    valid: Int[Tensor, " m"]
    test: Int[Tensor, " t"]


def select(train: Sequence[int], test: Sequence[int], subset: int | None, valid: float, seed: int) -> Selection:
    """Choose among the rows of a training and a test set, of which the labels are given.

    Seed s has the s-th stretch of `subset` training pictures, going round at the end: other seeds learn from others,
    while few shards of a cache are needed for all of them. A share `valid` of each class in it, by the seed's own
    lot, is held out.
    """
    rows = _stretch(torch.arange(len(train)), subset, seed)
    named = {f"{seed} {row}": train[row] for row in rows.tolist()}
    lot = torch.tensor(dealt_out(list(named.values()), list(named)))
    held_out = max(1, round(valid * len(rows)))
    learned, kept_back = (rows[part].sort().values for part in (lot[:-held_out], lot[-held_out:]))
    return Selection(learned, kept_back, to_judge(torch.arange(len(test)), subset))


def to_judge(rows: Int[Tensor, " n"], subset: int | None) -> Int[Tensor, " m"]:
    """Those of the rows on which models are judged: all, or with a subset the first few, whatever the seed."""
    return rows if subset is None else rows[: max(1, subset // JUDGED_SHARE)]


def _stretch(rows: Int[Tensor, " n"], length: int | None, number: int) -> Int[Tensor, " m"]:
    """So many rows, of which the first is number x length; after the last comes the first again. None for all."""
    if length is None or length >= len(rows):
        return rows
    return rows[(number * length + torch.arange(length)) % len(rows)].sort().values
