"""NBSR spelled out: one sample, one node and one matrix product at a time, straight from the paper's equations.

Slow, and with nothing in common with the library but the parameters, which it reads from the model. All of it is
differentiable, so that gradients can be compared too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import nbsr_core as nbsr
from nbsr_core.kernels import choice, layout

Specs = Mapping[str, nbsr.ExpertSpec]


def evidence_at(model: nbsr.NBSR, node: int, h: Tensor, specs: Specs | None = None) -> Tensor:
    """What the expert of one node says about one oracle [d]; `specs` by node name where they are mixed."""
    bank, slot, spec = _expert(model, node, specs)
    z = h
    for i, layer in enumerate(bank.layers):  # type: ignore[arg-type]
        z = layer.weight[slot] @ (z if i == 0 else z.clamp(min=0))
        z = z if layer.bias is None else z + layer.bias[slot]
    if spec.activation == "softplus":
        return torch.clamp(z.clamp(min=0) + torch.log1p(torch.exp(-z.abs())), min=1e-30)
    if spec.activation == "sigmoid":
        assert spec.bound is not None
        return torch.clamp(spec.bound / (1 + torch.exp(-z)), min=1e-30)
    bound = math.exp(15) if spec.bound is None else spec.bound
    return bound / (1 + bound * torch.exp(-z.clamp(min=-45)))


def expert_slot(model: nbsr.NBSR, node: int, specs: Specs | None = None) -> tuple[list[torch.nn.Parameter], int]:
    """The stacked parameters that hold the expert of a node, and its place in them."""
    bank, slot, _ = _expert(model, node, specs)
    return list(bank.parameters()), slot


def _expert(model: nbsr.NBSR, node: int, specs: Specs | None) -> tuple[torch.nn.Module, int, nbsr.ExpertSpec]:
    nodes, level = model.graph.nodes, model.graph.nodes[node].level
    banks = list(model.experts[level - 1].banks)
    neighbours = list(model.graph.levels[level])
    if specs is None:
        assert len(banks) == 1
        return banks[0], neighbours.index(node), banks[0].spec
    spec = specs[nodes[node].name]
    (bank,) = [bank for bank in banks if bank.spec == spec]
    alike = [i for i in neighbours if specs[nodes[i].name] == spec]
    return bank, alike.index(node), spec


def router_slot(model: nbsr.NBSR, node: int) -> tuple[list[torch.nn.Parameter], int]:
    """The stacked parameters that hold the router of an inner node, and its place in them; none for an only child."""
    level = model.graph.nodes[node].level
    bank = model.routers[level].bank
    inner = [i for i in model.graph.levels[level] if model.graph.nodes[i].children]
    return ([] if bank is None else list(bank.parameters())), inner.index(node)


def logits_at(model: nbsr.NBSR, node: int, h: Tensor, alpha: Tensor, side: Tensor | None) -> Tensor:
    """Scores of the children of one node, [children]."""
    children = model.graph.nodes[node].children
    _, slot = router_slot(model, node)
    bank = model.routers[model.graph.nodes[node].level].bank
    if bank is None:
        return torch.zeros(1, dtype=h.dtype)
    z = bank.from_oracle.weight[slot] @ h
    if bank.from_oracle.bias is not None:
        z = z + bank.from_oracle.bias[slot]
    belief = model.router_spec.belief
    if belief != "none":
        seen = {"alpha": alpha, "log": alpha.log(), "mean": alpha / alpha.sum()}[belief]
        z = z + bank.from_belief.weight[slot] @ seen  # type: ignore[union-attr]
    if side is not None:
        z = z + bank.from_side.weight[slot] @ side  # type: ignore[union-attr]
    for layer in bank.layers:
        z = layer.weight[slot] @ z.clamp(min=0)
        z = z if layer.bias is None else z + layer.bias[slot]
    return z[: len(children)]


@dataclass
class PlainWalk:
    """One sample's walk: `alphas` has the prior first, `nodes` the root."""

    nodes: list[int]
    alphas: list[Tensor]
    evidence: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


def plain_walk(
    model: nbsr.NBSR, h: Tensor, side: Tensor | None = None, specs: Specs | None = None, factor: float = 1.0
) -> PlainWalk:
    """The best child at every router, down to a leaf, for one oracle [d]."""
    walk = PlainWalk([0], [model.prior.to(h.dtype)])
    while children := model.graph.nodes[walk.nodes[-1]].children:
        walk.logits.append(logits_at(model, walk.nodes[-1], h, walk.alphas[-1], side))
        walk.nodes.append(children[int(walk.logits[-1].argmax())])
        said = evidence_at(model, walk.nodes[-1], h, specs) * factor
        after = walk.alphas[-1] + (said * walk.alphas[-1] if model.evidence == "relative" else said)
        after = after / after.sum() * model.prior.sum() if model.normalise else after
        walk.evidence.append(after - walk.alphas[-1])
        walk.alphas.append(after)
    return walk


def taught_beliefs(
    model: nbsr.NBSR,
    trace: nbsr.BeliefTrace,
    h: Tensor,
    tau: float,
    side: Tensor | None = None,
    specs: Specs | None = None,
    factor: Tensor | None = None,
) -> list[Tensor]:
    """Beliefs [B, K] of depths 0..T of a training walk, with the straight-through gradient written out.

    `sum_j a_j e_j` with `a = (onehot - pi).detach() + pi` (paper, Eq. Gumbel-Softmax-detach). The noise that was drawn
    is recovered from the trace: `pi = softmax((z + g) / tau)` does not change when g is shifted by a constant.
    """
    rows = []
    for b in range(len(trace)):
        beside, scale = (None if side is None else side[b]), (1.0 if factor is None else factor[b].detach())
        node, beliefs = 0, [model.prior.to(h.dtype)]
        for step, walked in zip(trace.steps, trace.walking[:, b].tolist(), strict=True):
            if not walked:
                beliefs.append(beliefs[-1])
                continue
            children = model.graph.nodes[node].children
            z = logits_at(model, node, h[b], beliefs[-1], beside)
            assert step.relaxed is not None
            pi_seen, choice = step.relaxed[b, : len(children)].detach(), int(step.choice[b])
            noise = tau * pi_seen.log() - z.detach()
            pi = torch.softmax((z + noise) / tau, dim=-1)
            onehot = torch.nn.functional.one_hot(torch.tensor(choice), len(children)).to(h.dtype)
            gate = (onehot - pi).detach() + pi
            said = evidence_at(model, children[choice], h[b], specs) * scale
            if model.estimator == "sparse":
                evidence = gate[choice] * said
            else:
                parts = [
                    gate[j] * (said if j == choice else evidence_at(model, child, h[b], specs).detach() * scale)
                    for j, child in enumerate(children)
                ]
                evidence = torch.stack(parts).sum(0)
            beliefs.append(beliefs[-1] + (evidence * beliefs[-1] if model.evidence == "relative" else evidence))
            node = children[choice]
        rows.append(torch.stack(beliefs))
    return list(torch.stack(rows, dim=1))


def take_way(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Make banks of any size take one way: `compiled`, or torch's `wide` products, `tables`, or `sorted` rows."""
    if way == "compiled":
        return
    monkeypatch.setattr(choice, "COMPILED", choice.REFERENCE)
    monkeypatch.setattr(layout, "MACS_PER_PLACING", 10**15 if way == "wide" else 0)
    monkeypatch.setattr(layout, "MACS_PER_CALL", 0 if way == "sorted" else 10**15)


WAYS = ["compiled", "wide", "tables", "sorted"]

MIXED = (
    nbsr.ExpertSpec(),
    nbsr.ExpertSpec(hidden=(7,), activation="exp", bound=50.0),
    nbsr.ExpertSpec(bias=False, activation="sigmoid", bound=3.0),
)


def mixed_specs(graph: nbsr.DecisionGraph) -> dict[str, nbsr.ExpertSpec]:
    """Three kinds of experts dealt out in turn, so that neighbours of one level differ."""
    return {node.name: MIXED[i % len(MIXED)] for i, node in enumerate(graph.nodes[1:])}


PADDED = nbsr.DecisionGraph.taxonomy(
    {
        "wide": {"w1": None, "w2": {"w2a": None}, "w3": None, "w4": {"w4a": None, "w4b": None}},
        "only": {"o1": {"o1a": None, "o1b": None, "o1c": None}},
        "leaf": None,
        "pair": {"p1": None, "p2": None},
    }
)
"""Every kind of irregularity at once: routers of 1, 2 and 4 children side by side, and leaves on every level."""

SHARED = nbsr.DecisionGraph.from_edges(
    [
        *[("root", name) for name in "abc"],
        *[(up, down) for up, downs in {"a": "zx", "b": "yz", "c": "xyw"}.items() for down in downs],
        *[(up, down) for up, downs in {"x": "pq", "y": "qr", "z": "rp"}.items() for down in downs],
    ]
)
"""No tree: siblings of one parent are children of another too, in another order."""
