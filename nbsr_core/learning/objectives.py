"""What a walk is trained for: each term is a small function of a trace, an `Objective` a weighted sum of them.

The paper's loss (Eq. training_obj, and the budget term of its triage section) is
`NLL(alpha_T) + lambda * sum_t H(alpha_t) + gamma * sum_t c(v_t)`. Beside it stand terms without which training
fails in practice: supervision of every depth (or early exits are poor), a concept loss or load balancing (or
routing collapses onto one child), and a regulariser on evidence for wrong classes.

All sums over steps run over the nodes that a walk really visited: one that ends at an early leaf adds nothing
for the levels below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from nbsr_core.belief import dirichlet
from nbsr_core.errors import InputError
from nbsr_core.kernels import selection
from nbsr_core.metrics import checked_labels
from nbsr_core.options.specs import ObjectiveWeights
from nbsr_core.trace.belief_trace import BeliefTrace

Scalar = Float[Tensor, ""]


def nll(alpha: Float[Tensor, "B K"], y: Int[Tensor, " B"], smoothing: float = 0.0) -> Scalar:
    """Negative log-likelihood of the expected marginal, `-log(alpha_y / alpha_0)`, averaged.

    With `smoothing`, that share of each label is spread evenly over all classes.
    """
    return F.cross_entropy(alpha.log(), y, label_smoothing=smoothing)  # softmax(log alpha) is alpha / alpha_0


def _nll_of_each(alpha: Float[Tensor, "B K"], y: Int[Tensor, " B"], smoothing: float) -> Float[Tensor, " B"]:
    return F.cross_entropy(alpha.log(), y, reduction="none", label_smoothing=smoothing)


def deep_supervision(trace: BeliefTrace, y: Int[Tensor, " B"], smoothing: float = 0.0) -> Scalar:
    """NLL at every depth where a walk could stop but goes on, so that one that stops there is right too."""
    total = trace.prior.new_zeros(len(trace))
    for alpha, onward in zip(trace.beliefs[1:-1], trace.steps[1:], strict=True):
        spent = _nll_of_each(alpha, y, smoothing)
        total = total + (spent if onward.walking is None else spent * onward.walking)
    return total.mean()


def entropy_penalty(trace: BeliefTrace) -> Scalar:
    """`sum_t H(alpha_t)` over t = 1..T: rewards evidence that comes early. (The prior's is a constant.)"""
    entropy = dirichlet.entropy(torch.stack(trace.beliefs[1:]), validate_args=False)
    return (entropy * trace.walking).sum(0).mean()


def expected_cost(trace: BeliefTrace) -> Scalar:
    """`sum_t c(v_t)`, with the router's gradient through the straight-through choice."""
    costs, total = trace.node_costs.to(trace.prior.dtype), trace.prior.new_zeros(len(trace))
    for t, step in enumerate(trace.steps):
        if step.relaxed is None:
            spent = costs[step.node]
        else:
            options = costs[trace.choices(t).clamp_min(0)]
            spent = (selection(step.relaxed, step.choice) * options).sum(-1)
        total = total + (spent if step.walking is None else spent * step.walking)
    return total.mean()


def evidential_regulariser(trace: BeliefTrace, y: Int[Tensor, " B"]) -> Scalar:
    """Mean evidence for wrong classes, `(1/K) sum_i (alpha_{T,i} - prior_i)(1 - y_i)`; the right one is free."""
    extra = trace.beliefs[-1] - trace.prior
    wrong = extra.scatter(1, y.unsqueeze(1), 0.0)
    return wrong.mean()


def concept_loss(trace: BeliefTrace, y: Int[Tensor, " B"], admissible: Bool[Tensor, "nodes K"]) -> Scalar:
    """Cross-entropy of each router against the children that own the sample's class.

    Where several children own it, their probabilities add up; where none does (the walk has already left the
    taxonomy's path), that router is not blamed. `admissible` comes from `graph.admissible(K)`.
    """
    total = trace.prior.new_zeros(())
    for t, step in enumerate(trace.steps):
        if step.logits.shape[1] == 1:
            continue
        options = trace.choices(t)
        right = admissible[options.clamp_min(0), y.unsqueeze(1)] & (options >= 0)
        blamed = right.any(-1) if step.walking is None else right.any(-1) & step.walking
        log_probs = step.logits.log_softmax(-1).masked_fill(~right, -math.inf)
        # Rows without blame are replaced before the logarithm: its gradient at -inf is not a number.
        log_right = torch.where(blamed.unsqueeze(1), log_probs, 0.0).logsumexp(-1)
        total = total - (log_right * blamed).sum() / len(trace)
    return total


def load_balance(trace: BeliefTrace) -> Scalar:
    """`n * sum_v p(v)^2` at each level with a choice, p(v) being the mean probability to enter its node v.

    It is 1 where all n nodes are entered alike and only there, and n where one takes all. (Routes are sampled in
    training, so this is what the Switch Transformer's product of share and probability estimates.)
    """
    total = trace.prior.new_zeros(())
    for t, (step, level) in enumerate(zip(trace.steps, trace.levels[1:], strict=True)):
        if step.logits.shape[1] == 1:
            continue
        options, probs = trace.choices(t), step.logits.softmax(-1)
        if step.walking is not None:
            options, probs = options[step.walking], probs[step.walking]
        place = (options - level.start).clamp_min(0)  # a child that is not there has probability 0 in any place
        entered = probs.new_zeros(len(level)).index_add(0, place.flatten(), probs.flatten())
        total = total + len(level) * (entered / max(len(probs), 1)).square().sum()
    return total


@dataclass(frozen=True)
class Objective(ObjectiveWeights):
    """A weighted sum of terms, as a function of a trace and the labels; see `ObjectiveWeights` for the weights.

    Examples:
        >>> import torch, nbsr_core as nbsr
        >>> graph = nbsr.DecisionGraph.uniform(depth=2, width=2)
        >>> model = nbsr.NBSR(torch.nn.Linear(3, 4), graph, num_classes=5, oracle_dim=4)
        >>> terms = nbsr.Objective(every_depth=0.5)(model(torch.randn(8, 3)), torch.randint(5, (8,)))
        >>> sorted(terms)
        ['every_depth', 'loss', 'nll']
    """

    def __call__(
        self,
        trace: BeliefTrace,
        y: Int[Tensor, " B"],
        *,
        epoch: int = 0,
        admissible: Bool[Tensor, "nodes K"] | None = None,
    ) -> dict[str, Scalar]:
        """All weighted terms by name and their sum as `loss`."""
        return weighted_terms(self, trace, y, epoch=epoch, admissible=admissible)


def weighted_terms(
    objective: ObjectiveWeights,
    trace: BeliefTrace,
    y: Int[Tensor, " B"],
    *,
    epoch: int = 0,
    admissible: Bool[Tensor, "nodes K"] | None = None,
    smoothing: float = 0.0,
) -> dict[str, Scalar]:
    """All weighted terms by name and their sum as `loss`; likelihoods of labels that are smoothed by so much."""
    checked_labels(y, len(trace), len(trace.prior))
    ramp = min(1.0, epoch / objective.anneal_epochs) if objective.anneal_epochs else 1.0
    terms = {"nll": nll(trace.beliefs[-1], y, smoothing)}
    if objective.entropy:
        terms["entropy"] = objective.entropy * entropy_penalty(trace)
    if objective.cost:
        terms["cost"] = objective.cost * expected_cost(trace)
    if objective.every_depth:
        terms["every_depth"] = objective.every_depth * deep_supervision(trace, y, smoothing)
    if objective.regulariser:
        terms["regulariser"] = objective.regulariser * ramp * evidential_regulariser(trace, y)
    if objective.concept:
        if admissible is None:
            raise InputError("the concept loss needs `admissible`, see DecisionGraph.admissible")
        terms["concept"] = objective.concept * concept_loss(trace, y, admissible)
    if objective.balance:
        terms["balance"] = objective.balance * load_balance(trace)
    first, *rest = terms.values()
    return {"loss": sum(rest, start=first), **terms}
