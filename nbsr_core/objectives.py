"""What a walk is trained for. Each term is a small function of a trace; an `Objective` is a weighted sum of them.

The paper's loss (Eq. training_obj, and the budget term of its triage section) is
`NLL(alpha_T) + lambda * sum_t H(alpha_t) + gamma * sum_t c(v_t)`. Beside it stand terms without which training fails
in practice: supervision of every depth (or early exits are poor), a concept loss or load balancing (or routing
collapses onto one child), and a regulariser on evidence for wrong classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core import dirichlet
from nbsr_core.errors import InputError
from nbsr_core.routing import selection
from nbsr_core.trace import BeliefTrace

Scalar = Float[Tensor, ""]


def nll(alpha: Float[Tensor, "B K"], y: Int[Tensor, " B"]) -> Scalar:
    """Negative log-likelihood of the expected marginal, `-log(alpha_y / alpha_0)`, averaged."""
    chosen = alpha.gather(1, y.unsqueeze(1)).squeeze(1)
    return (alpha.sum(-1).log() - chosen.log()).mean()


def deep_supervision(trace: BeliefTrace, y: Int[Tensor, " B"]) -> Scalar:
    """NLL at every depth before the last, so that a walk that stops there is right too. 0 for graphs of depth 1."""
    inner = trace.beliefs[1:-1]
    if not inner:
        return trace.beliefs[-1].new_zeros(())
    return torch.stack([nll(alpha, y) for alpha in inner]).sum()


def entropy_penalty(trace: BeliefTrace) -> Scalar:
    """`sum_t H(alpha_t)` over t = 1..T: rewards evidence that comes early. (The prior's entropy is a constant.)"""
    stacked = torch.stack(trace.beliefs[1:])
    return dirichlet.entropy(stacked, validate_args=False).sum(0).mean()


def expected_cost(trace: BeliefTrace) -> Scalar:
    """`sum_t c(v_t)`, with the router's gradient through the straight-through choice."""
    costs, children = trace.node_costs.to(trace.prior.dtype), trace.child_table
    nodes, total = trace.nodes, trace.prior.new_zeros(len(trace))
    for t, step in enumerate(trace.steps):
        if step.relaxed is None:
            spent = costs[step.node]
        else:
            options = costs[children[nodes[t], : step.relaxed.shape[1]].clamp_min(0)]
            spent = (selection(step.relaxed, step.choice) * options).sum(-1)
        total = total + (spent if step.walking is None else spent * step.walking)
    return total.mean()


def evidential_regulariser(trace: BeliefTrace, y: Int[Tensor, " B"]) -> Scalar:
    """Mean evidence for wrong classes, `(1/K) sum_i (alpha_{T,i} - prior_i)(1 - y_i)`: the right class is left free."""
    alpha = trace.beliefs[-1]
    extra = alpha - trace.prior
    wrong = extra.sum(-1) - extra.gather(1, y.unsqueeze(1)).squeeze(1)
    return wrong.mean() / alpha.shape[1]


def concept_loss(trace: BeliefTrace, y: Int[Tensor, " B"], admissible: Bool[Tensor, "nodes K"]) -> Scalar:
    """Cross-entropy of each router against the children that own the sample's class.

    Where several children own it, their probabilities add up; where none does (the walk has already left the taxonomy's
    path), that router is not blamed. `admissible` comes from `graph.admissible(K)`.
    """
    children, nodes, total = trace.child_table, trace.nodes, trace.prior.new_zeros(())
    for t, step in enumerate(trace.steps):
        if step.logits.shape[1] == 1:
            continue
        options = children[nodes[t], : step.logits.shape[1]]
        right = admissible[options.clamp_min(0), y.unsqueeze(1)] & (options >= 0)
        blamed = right.any(-1) if step.walking is None else right.any(-1) & step.walking
        log_probs = step.logits.log_softmax(-1).masked_fill(~right, float("-inf"))
        log_right = torch.logsumexp(torch.where(blamed.unsqueeze(1), log_probs, 0.0), dim=-1)
        total = total - (log_right * blamed).sum() / len(y)
    return total


def load_balance(trace: BeliefTrace) -> Scalar:
    """`n * sum_v share(v) * probability(v)` a level (Switch Transformer), 1 when all n nodes are used alike."""
    children, nodes, total = trace.child_table, trace.nodes, trace.prior.new_zeros(())
    for t, step in enumerate(trace.steps):
        level = trace.graph.levels[t + 1]
        if len(level) == 1:
            continue
        options = children[nodes[t], : step.logits.shape[1]]
        probs = step.logits.softmax(-1).where(options >= 0, 0.0)
        if step.walking is not None:
            probs, options, arrived = probs[step.walking], options[step.walking], step.node[step.walking]
        else:
            arrived = step.node
        place = (options - level.start).clamp_min(0)
        probability = probs.new_zeros(len(level)).index_add(0, place.flatten(), probs.flatten()) / max(len(probs), 1)
        share = torch.bincount(arrived - level.start, minlength=len(level)) / max(len(arrived), 1)
        total = total + len(level) * (share * probability).sum()
    return total


@dataclass(frozen=True)
class Objective:
    """Weights of the terms; a term of weight 0 is not computed.

    Attributes:
        entropy: lambda of the paper.
        cost: gamma of the paper.
        every_depth: weight of the NLL at each depth before the last.
        regulariser: weight of the evidential regulariser, ramped up linearly over `anneal_epochs`.
        concept: weight of the concept loss; needs a graph whose nodes own classes.
        balance: weight of the load balancing.
    """

    entropy: float = 0.0
    cost: float = 0.0
    every_depth: float = 0.0
    regulariser: float = 0.0
    anneal_epochs: int = 10
    concept: float = 0.0
    balance: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise InputError(f"objective weight {field.name} must be a finite number >= 0, got {value!r}")

    def __call__(
        self,
        trace: BeliefTrace,
        y: Int[Tensor, " B"],
        *,
        epoch: int = 0,
        admissible: Bool[Tensor, "nodes K"] | None = None,
    ) -> dict[str, Scalar]:
        """All weighted terms by name and their sum as `loss`."""
        if self.concept and admissible is None:
            raise InputError("the concept loss needs `admissible`, see DecisionGraph.admissible")
        ramp = min(1.0, epoch / self.anneal_epochs) if self.anneal_epochs else 1.0
        terms: dict[str, tuple[float, Callable[[], Scalar]]] = {
            "entropy": (self.entropy, lambda: entropy_penalty(trace)),
            "cost": (self.cost, lambda: expected_cost(trace)),
            "every_depth": (self.every_depth, lambda: deep_supervision(trace, y)),
            "regulariser": (self.regulariser * ramp, lambda: evidential_regulariser(trace, y)),
            "concept": (self.concept, lambda: concept_loss(trace, y, _known(admissible))),
            "balance": (self.balance, lambda: load_balance(trace)),
        }
        parts = {"nll": nll(trace.beliefs[-1], y)}
        parts |= {name: weight * term() for name, (weight, term) in terms.items() if weight}
        return {"loss": torch.stack(tuple(parts.values())).sum() if len(parts) > 1 else parts["nll"], **parts}


def _known(admissible: Tensor | None) -> Tensor:
    assert admissible is not None
    return admissible
