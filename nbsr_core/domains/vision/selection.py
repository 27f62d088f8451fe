"""Which pictures a seed learns from and is judged on, and which classes it knows.

Pictures are decoded and embedded once for all seeds; a seed only chooses rows among them. Rows of a set are dealt out
(see `images`), so that any stretch of them is a fair sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from nbsr_core.domains.vision.images import ImageSet, dealt_out
from nbsr_core.errors import InputError

JUDGED_SHARE = 5  # a fifth as many pictures as are learned from are judged


@dataclass(frozen=True, eq=False)
class Selection:
    """What one seed takes: labels of classes and rows of sets, in ascending order.

    Attributes:
        classes: labels of the classes that are known.
        train: rows of the training set to learn from.
        valid: other rows of the training set, held out for validation.
        test: rows of the test set with pictures of known classes; the same for every seed that knows the same ones.
        unknown: rows of the test set with pictures of the other classes; none where all classes are known.
    """

    classes: Int[Tensor, " K"]
    train: Int[Tensor, " n"]
    valid: Int[Tensor, " m"]
    test: Int[Tensor, " t"]
    unknown: Int[Tensor, " u"]

    def labels(self, images: ImageSet, rows: Int[Tensor, " r"]) -> Int[Tensor, " r"]:
        """Labels of some pictures of known classes, counted among these classes."""
        return torch.searchsorted(self.classes, torch.tensor(images.labels)[rows])


def select(
    train: ImageSet,
    test: ImageSet,
    seed: int,
    *,
    subset: int | None = None,
    valid: float = 0.1,
    known: int | Sequence[str] | None = None,
) -> Selection:
    """Choose classes, and rows of a training and a test set; see `VisionData` for the options.

    Seed s has the s-th stretch of `subset` training pictures, going round at the end: other seeds learn from others,
    while few shards of a cache are needed for all of them. A share `valid` of each class in it, by the seed's own
    lot, is held out.
    """
    classes = torch.tensor(known_classes(train.class_names, known, seed))
    rows = _stretch(_having(train, classes), subset, seed)
    named = {f"{seed} {row}": train.labels[row] for row in rows.tolist()}
    lot = torch.tensor(dealt_out(list(named.values()), list(named)))
    held_out = max(1, round(valid * len(rows)))
    learned, kept_back = (rows[part].sort().values for part in (lot[:-held_out], lot[-held_out:]))
    judged = [to_judge(_having(test, classes, invert=others), subset) for others in (False, True)]
    return Selection(classes, learned, kept_back, *judged)


def known_classes(names: Sequence[str], known: int | Sequence[str] | None, seed: int) -> list[int]:
    """Labels of the classes that are known: all, those of the given names, or so many of the seed's own lot."""
    if known is None:
        return list(range(len(names)))
    if isinstance(known, int):
        if known >= len(names):
            raise InputError(f"data.known must be below {len(names)}, the number of classes, got {known}")
        drawn = sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
        known = drawn[:known]
    strangers = [name for name in known if name not in names]
    if strangers or len(known) >= len(names):
        raise InputError(f"data.known must be some of the classes {', '.join(names)}, got {', '.join(known)}")
    return [label for label, name in enumerate(names) if name in known]


def to_judge(rows: Int[Tensor, " n"], subset: int | None) -> Int[Tensor, " m"]:
    """Those of the rows on which models are judged: all, or with a subset the first few, whatever the seed."""
    return rows if subset is None else rows[: max(1, subset // JUDGED_SHARE)]


def _having(images: ImageSet, classes: Int[Tensor, " K"], *, invert: bool = False) -> Int[Tensor, " n"]:
    """Rows with pictures of these classes, or of the others."""
    return torch.isin(torch.tensor(images.labels), classes, invert=invert).nonzero().flatten()


def _stretch(rows: Int[Tensor, " n"], length: int | None, number: int) -> Int[Tensor, " m"]:
    """So many rows, of which the first is number x length; after the last comes the first again. None for all."""
    if length is None or length >= len(rows):
        return rows
    return rows[(number * length + torch.arange(length)) % len(rows)].sort().values
