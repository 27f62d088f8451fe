"""Multiply-adds: what a walk costs a processor, stages of the backbone, routers and experts together.

Depth counts experts, and a graph's costs are what somebody says they are; multiply-adds are counted. Only products of
matrices, convolutions and attention count: they are nearly all of the work, and what other counts are made of too.
Calibration, exit tests and a density factor are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nbsr_core.model.stages import steps_of

if TYPE_CHECKING:
    from nbsr_core.model.network import NBSR


def multiply_adds(compute: Callable[..., Any], *given: Tensor) -> int:
    """Multiply-adds of a computation on these tensors.

    Examples:
        >>> import torch
        >>> from nbsr_core.model.costs import multiply_adds
        >>> multiply_adds(torch.nn.Linear(5, 3), torch.zeros(1, 5))
        15
    """
    from torch.utils import flop_counter

    # torch counts attention by the kernels of a GPU; on a CPU it is the same work under another name.
    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = flop_counter.FlopCounterMode(display=False, custom_mapping={on_cpu: _attention})
    # Inference mode hides linear layers from whoever counts.
    with torch.inference_mode(False), torch.no_grad(), counter:
        compute(*(x.clone() for x in given))
    return int(counter.get_total_flops()) // 2


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Operations of attention by the shapes [batch, heads, length, size]: one product for weights, one for the sum."""
    batch, heads, asking, size = query
    return 2 * batch * heads * asking * key[2] * (size + value[3])


def stage_macs(backbone: nn.Module, x: Tensor) -> tuple[int, ...] | None:
    """Multiply-adds of each stage of a backbone for one row of its input.

    None where a row is more than one sample (a text, of which each token walks): its rows share their work, and how
    much of it is whose depends on the row.
    """
    left, found = x[:1], []
    for step in steps_of(backbone):
        found.append(multiply_adds(step, left))
        with torch.no_grad():
            left, h = step(left)
        if len(h) != 1:
            return None
    return tuple(found)


def node_macs(model: NBSR, of_stages: Sequence[int]) -> Float[Tensor, " nodes"]:
    """Multiply-adds of one step to each node, from any node above it.

    They are those of the stage that this depth is the first to read, of the router that chose the node, and of its
    expert. The root costs nothing.
    """
    macs = torch.zeros(len(model.graph), dtype=torch.float64)
    for level, (routers, experts) in enumerate(zip(model.routers, model.experts, strict=True)):
        shared = of_stages[level] if level < len(of_stages) else 0
        shared += 0 if routers.bank is None else routers.bank.macs
        own = torch.tensor([bank.macs for bank in experts.banks])[experts.bank_of_node.cpu()]
        nodes = model.graph.levels[level + 1]
        macs[nodes.start : nodes.stop] = shared + own
    return macs.to(model.prior.device)
