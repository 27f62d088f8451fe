"""A whole walk that stops, in one call of compiled code: `walk.c` on the tensors of a model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.native.build import library
from nbsr_core.native.level import CompiledLevel, StepCall
from nbsr_core.native.rows import ExitTest

Sight = Literal["alpha", "log", "mean"]  # in the order of walk.c

_Address, _Size = ctypes.c_void_p, ctypes.c_int64


class _Walk(ctypes.Structure):
    _fields_ = (
        *((name, _Size) for name in ("rows", "classes", "oracle_size", "side_size")),
        *((name, _Size) for name in ("levels", "sees_belief", "sees_side", "sight")),
        ("floor", ctypes.c_double),
        ("test", ExitTest),
        ("level", _Address),
        *((name, _Address) for name in ("inner", "first_node", "temperature")),
        *((name, _Address) for name in ("h", "side", "scale", "prior", "described")),
        *((name, _Address) for name in ("alpha", "probs", "label", "depth", "node", "unclear")),
    )


@dataclass(frozen=True)
class Stopped:
    """Where every row stopped; `unclear` ones came too close to eta for the tables to tell, None if there are none."""

    alpha: Float[Tensor, "b K"]
    probs: Float[Tensor, "b K"]
    label: Int[Tensor, " b"]
    depth: Int[Tensor, " b"]
    node: Int[Tensor, " b"]
    unclear: Bool[Tensor, " b"] | None


def walk_compiled(
    levels: Sequence[CompiledLevel],
    h: Float[Tensor, "b d"],
    side: Float[Tensor, "b s"] | None,
    scale: Float[Tensor, " b"] | None,
    prior: Float[Tensor, " K"],
    described: Float[Tensor, " K"] | None,
    sight: Sight | None,
    first_nodes: Sequence[int],
    test: ExitTest | None,
    temperature: Float[Tensor, " depth"] | None,
    floor: float,
) -> Stopped | None:
    """All rows from the root to where they stop; None where a belief is none.

    Args:
        levels: what they go through.
        h: their oracles.
        side: side information, if routers heed any.
        scale: factor on each row's evidence.
        prior: what everybody believes at first.
        described: the prior as routers see it, if they do.
        sight: how they see it.
        first_nodes: number of the first node below each level.
        test: who exits; nobody without one.
        temperature: of the calibration, depth by depth; None if beliefs are shown as they are.
        floor: smallest calibrated belief.
    """
    kept = [None if x is None else x.contiguous() for x in (h, side, scale, prior, described, temperature)]
    rows, classes = len(h), len(prior)
    prepared = [level.addressed(level.parameters()) for level in levels]
    calls = (StepCall * len(levels))(*(call for call, _ in prepared))
    inner = (_Address * len(levels))(
        *(None if level.routers.all_inner else level.routers.inner.data_ptr() for level in levels)
    )
    nodes = (_Size * len(levels))(*first_nodes)
    alpha, probs = (torch.empty(rows, classes) for _ in range(2))
    label, depth, node = (torch.empty(rows, dtype=torch.int64) for _ in range(3))
    unclear = torch.empty(rows, dtype=torch.bool)
    walk = _Walk(rows, classes, h.shape[1], 0 if side is None else side.shape[1], len(levels))
    walk.sees_belief, walk.sees_side, walk.floor = described is not None, side is not None, floor
    walk.sight = 0 if sight is None else get_args(Sight).index(sight)
    if test is not None:
        walk.test = test
    walk.level, walk.inner, walk.first_node = (ctypes.addressof(table) for table in (calls, inner, nodes))
    addresses = [None if x is None else x.data_ptr() for x in kept]
    walk.h, walk.side, walk.scale, walk.prior, walk.described, walk.temperature = addresses
    found = (alpha, probs, label, depth, node, unclear)
    walk.alpha, walk.probs, walk.label, walk.depth, walk.node, walk.unclear = (x.data_ptr() for x in found)
    compiled = library()
    assert compiled is not None, "ask `serves` first"
    doubtful = compiled.nbsr_walk(ctypes.byref(walk))
    return None if doubtful < 0 else Stopped(alpha, probs, label, depth, node, unclear if doubtful else None)
