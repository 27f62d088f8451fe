"""Decision trees as plain arrays, and the walk through them: a stored model is data, and nothing is unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor


class Tree(NamedTuple):
    """One tree as scikit-learn has it; where `leaf` is true, only `value` counts.

    Attributes:
        leaf: whether a node is one.
        feature: which feature an inner node asks for.
        threshold: samples with that feature up to it go left.
        left: the node to go to, by its number in this tree.
        right: likewise.
        value: what a leaf says, of any number of columns.
    """

    leaf: NDArray[np.bool_]
    feature: NDArray[np.generic]
    threshold: NDArray[np.generic]
    left: NDArray[np.generic]
    right: NDArray[np.generic]
    value: NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Forest:
    """The nodes of all trees one after another; a leaf is its own child.

    Attributes:
        roots: the first node of every tree.
        feature: which feature a node asks for.
        threshold: samples with that feature up to it go left.
        left: the node to go to.
        right: likewise.
        value: what a node says if a walk ends there.
    """

    roots: Int[Tensor, " trees"]
    feature: Int[Tensor, " nodes"]
    threshold: Float[Tensor, " nodes"]
    left: Int[Tensor, " nodes"]
    right: Int[Tensor, " nodes"]
    value: Float[Tensor, "nodes columns"]

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> Forest:
        sizes = [len(tree.leaf) for tree in trees]
        starts = np.cumsum([0, *sizes[:-1]])

        def joined(parts: Sequence[NDArray[np.generic]], dtype: type) -> Tensor:
            return torch.from_numpy(np.concatenate(parts).astype(dtype))

        def children(parts: Sequence[NDArray[np.generic]]) -> Tensor:
            own = [np.arange(size) for size in sizes]
            inside = [np.where(tree.leaf, me, to) for tree, me, to in zip(trees, own, parts, strict=True)]
            return joined([to + start for to, start in zip(inside, starts, strict=True)], np.int64)

        return cls(
            roots=torch.from_numpy(starts.astype(np.int64)),
            feature=joined([np.where(tree.leaf, 0, tree.feature) for tree in trees], np.int64),
            threshold=joined([np.where(tree.leaf, 0.0, tree.threshold) for tree in trees], np.float64),
            left=children([tree.left for tree in trees]),
            right=children([tree.right for tree in trees]),
            value=joined([tree.value for tree in trees], np.float64),
        )

    def answers(self, x: Float[Tensor, "N F"], trees: slice) -> Float[Tensor, "N trees columns"]:
        """What the leaves say to which samples come, in some of the trees."""
        wide = x.double()
        at = self.roots[trees].expand(len(x), -1)
        for _ in range(len(self.feature)):  # no path is longer, whatever a stored forest says
            onward = torch.where(wide.gather(1, self.feature[at]) <= self.threshold[at], self.left[at], self.right[at])
            if torch.equal(onward, at):
                break
            at = onward
        return self.value[at]

    @property
    def state(self) -> dict[str, Tensor]:
        """All arrays by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}
