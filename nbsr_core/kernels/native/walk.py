"""A whole walk that stops, in one call of compiled code: `walk.c` on the tensors of a model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.kernels.interface import Level, WalkResult
from nbsr_core.kernels.native.build import library
from nbsr_core.kernels.native.level import CompiledLevel, LevelCall
from nbsr_core.kernels.native.rows import ExitTest, exit_test
from nbsr_core.kernels.reference import CONCENTRATION_FLOOR
from nbsr_core.options.specs import EvidenceKind, RouterSpec

Sight = Literal["alpha", "log", "mean"]  # in the order of walk.c

_Address, _Size = ctypes.c_void_p, ctypes.c_int64


class _Walk(ctypes.Structure):
    _fields_ = (
        *((name, _Size) for name in ("rows", "classes", "oracle_size", "side_size")),
        *((name, _Size) for name in ("levels", "sees_belief", "sees_side", "sight", "relative")),
        ("floor", ctypes.c_double),
        ("test", ExitTest),
        ("level", _Address),
        *((name, _Address) for name in ("inner", "first_node", "temperature")),
        *((name, _Address) for name in ("h", "side", "scale", "prior", "described")),
        *((name, _Address) for name in ("alpha", "probs", "label", "depth", "node", "unclear")),
    )


def run_walk(
    levels: Sequence[Level],
    h: Float[Tensor, "b d"],
    side: Float[Tensor, "b s"] | None,
    scale: Float[Tensor, " b"] | None,
    prior: Float[Tensor, " K"],
    router: RouterSpec,
    evidence: EvidenceKind,
    eta: float | None,
    temperature: Float[Tensor, " depth"] | None,
) -> WalkResult | None:
    """`Backend.walk`; None where a belief is invalid."""
    sight = None if router.belief == "none" else router.belief
    described = None if sight is None else router.describe(prior)
    prepared = [CompiledLevel.of(level) for level in levels]
    kept = [None if x is None else x.contiguous() for x in (h, side, scale, prior, described, temperature)]
    rows, classes = len(h), len(prior)
    addressed = [level.addressed(level.parameters()) for level in prepared]
    calls = (LevelCall * len(levels))(*(call for call, _ in addressed))
    inner = (_Address * len(levels))(
        *(None if level.routers.all_inner else level.routers.inner.data_ptr() for level in prepared)
    )
    nodes = (_Size * len(levels))(*(level.first_node for level in levels))
    alpha, probs = (torch.empty(rows, classes) for _ in range(2))
    label, depth, node = (torch.empty(rows, dtype=torch.int64) for _ in range(3))
    unclear = torch.empty(rows, dtype=torch.bool)
    walk = _Walk(rows, classes, h.shape[1], 0 if side is None else side.shape[1], len(levels))
    walk.sees_belief, walk.sees_side, walk.floor = described is not None, side is not None, CONCENTRATION_FLOOR
    walk.sight = 0 if sight is None else get_args(Sight).index(sight)
    walk.relative = evidence == "relative"
    if eta is not None:
        walk.test = exit_test(eta, classes)
    walk.level, walk.inner, walk.first_node = (ctypes.addressof(table) for table in (calls, inner, nodes))
    addresses = [None if x is None else x.data_ptr() for x in kept]
    walk.h, walk.side, walk.scale, walk.prior, walk.described, walk.temperature = addresses
    found = (alpha, probs, label, depth, node, unclear)
    walk.alpha, walk.probs, walk.label, walk.depth, walk.node, walk.unclear = (x.data_ptr() for x in found)
    compiled = library()
    assert compiled is not None, "chosen only where there is one"
    doubtful = compiled.nbsr_walk(ctypes.byref(walk))
    return None if doubtful < 0 else WalkResult(alpha, probs, label, depth, node, unclear if doubtful else None)
