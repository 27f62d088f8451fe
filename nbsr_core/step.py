"""One level of a walk as one step for autograd: the router is asked, a child chosen, its expert consulted.

At the size of routers and experts, autograd's books over single operations cost more than the operations. So a level
is one function with its derivative written out. The straight-through gate `a = (onehot - pi).detach() + pi` multiplies
the evidence of the chosen child by one; what the router learns from it is

    d/d pi_j = <grad, e_j> for the chosen j         (sparse: no other expert was run), or
    d/d pi_i = <grad, e_i> for every sibling i      (counterfactual: their evidence counts here, but is not taught).

Rows stay in the order in which they came; what a bank wants otherwise is arranged inside (see `nbsr_core.arranged`).
The same in compiled code is `nbsr_core.native`, which is taken where it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from nbsr_core.arranged import Arranged
from nbsr_core.experts import LevelExperts
from nbsr_core.native import CompiledLevel, Siblings, run_compiled
from nbsr_core.products import Group, differentiate_networks, run_networks
from nbsr_core.routers import LevelRouters
from nbsr_core.routing import Routes, RoutingMode, choose


@dataclass(frozen=True)
class Taken:
    """What one step found.

    Attributes:
        routes: where everybody was sent.
        evidence: what the experts there say.
        position: where in the level below everybody stands now.
        arranged: the rows as the experts had them, for the routers of the same nodes; None if nobody else can use it.
    """

    routes: Routes
    evidence: Float[Tensor, "b K"]
    position: Int[Tensor, " b"]
    arranged: Arranged | None


class Level:
    """The routers of one level and the experts of the next: what a step goes through."""

    def __init__(self, routers: LevelRouters, experts: LevelExperts) -> None:
        self.routers, self.experts = routers, experts
        self.compiled = CompiledLevel.of(routers, experts)
        bank = routers.bank
        self.describe = None if bank is None or bank.from_belief is None else bank.spec.describe
        self.heeds_side = bank is not None and bank.from_side is not None


def take_step(
    level: Level,
    h: Float[Tensor, "b d"],
    belief: Float[Tensor, "#b K"],
    side: Float[Tensor, "b s"] | None,
    position: Int[Tensor, " b"],
    arranged: Arranged | None,
    *,
    mode: RoutingMode,
    tau: float,
    siblings: Siblings | None = None,
) -> Taken:
    """Go one level down; differentiably, where gradients are wanted at all.

    Args:
        level: the routers where everybody stands, and the experts below.
        h: the oracle of each row.
        belief: alpha of each row; one row stands for all.
        side: side information of each row, if the routers take any.
        position: where in the level everybody stands.
        arranged: the rows as the step before left them, if they are still the same.
        mode: how to choose.
        tau: temperature of the choice.
        siblings: gives the evidence of all children of the nodes at some positions (counterfactual estimator).
    """
    routers, experts, device = level.routers, level.experts, h.device.type
    arranged = arranged if routers.all_inner else None
    described = None if level.describe is None else level.describe(belief)
    inputs = [h, described, side if level.heeds_side else None]
    if level.compiled is not None and level.compiled.serves(h) and not torch.is_autocast_enabled(device):
        given = [x for x in inputs if x is not None]
        evidence, logits, relaxed, found = run_compiled(level.compiled, given, position, mode, tau, siblings)
        return Taken(Routes(logits, relaxed, found.choice), evidence, found.arrived, None)
    step = _Step(routers, experts, position, arranged, mode, tau, siblings)
    kinds = [] if routers.bank is None else [routers.bank.parameters_by_kind()]
    kinds += [bank.parameters_by_kind() for bank in experts.banks]
    step.sizes = [(len(weights), len(biases)) for weights, biases in kinds]
    tensors = [*inputs, *(tensor for weights, biases in kinds for tensor in (*weights, *biases))]
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        tensors = [None if tensor is None else tensor.to(dtype) for tensor in tensors]
    if torch.is_grad_enabled():
        evidence, logits, relaxed = _LevelStep.apply(step, *tensors)
    else:
        evidence, logits, relaxed = step.run(tensors)
    return Taken(Routes(logits, relaxed, step.choice), evidence, step.arrived, step.arranged)


class _Step:
    """What a step knows beside its tensors: given before it is run, and kept for its derivative."""

    def __init__(
        self,
        routers: LevelRouters,
        experts: LevelExperts,
        position: Tensor,
        arranged: Arranged | None,
        mode: RoutingMode,
        tau: float,
        siblings: Siblings | None,
    ) -> None:
        self.routers, self.experts, self.position, self.arranged = routers, experts, position, arranged
        self.mode, self.tau, self.siblings = mode, tau, siblings
        self.sizes: list[tuple[int, int]] = []
        self.asked: tuple[Arranged, list[Group]] | None = None
        self.missing: Tensor | None = None
        self.consulted: list[tuple[Arranged, list[Group], Tensor]] = []
        self.choice: Tensor
        self.arrived: Tensor

    def parameters(self, tensors: Sequence[Any]) -> list[tuple[list[Tensor], list[Tensor | None]]]:
        """Weights and biases, bank by bank, out of what follows h, belief and side information."""
        found, start = [], 3
        for weights, biases in self.sizes:
            middle, stop = start + weights, start + weights + biases
            found.append((list(tensors[start:middle]), list(tensors[middle:stop])))
            start = stop
        return found

    def run(self, tensors: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Evidence, logits and relaxed choice."""
        h, *beside = (tensor for tensor in tensors[:3] if tensor is not None)
        parameters = self.parameters(tensors)
        logits = h.new_zeros(len(h), 1) if self.routers.bank is None else self.ask(h, beside, parameters.pop(0))
        explores = self.mode == "gumbel" and self.routers.bank is not None  # an only child needs no lot
        routes = choose(logits, self.mode if explores or self.mode == "argmax" else "softmax", self.tau)
        self.choice, self.arrived = routes.choice, self.routers.chosen(self.position, routes.choice)
        return self.consult(h, parameters), logits, routes.relaxed

    def ask(self, h: Tensor, beside: list[Tensor], parameters: tuple[list[Tensor], list[Tensor | None]]) -> Tensor:
        routers = self.routers
        assert routers.bank is not None
        slots = routers.slots(self.position)
        arranged = self.arranged or Arranged.of(h, slots, routers.bank.slots, routers.bank.macs)
        inputs = [arranged.h, *(values if len(values) == 1 else arranged.pick(values) for values in beside)]
        z, groups = run_networks(arranged.layout, inputs, *parameters)
        self.asked = arranged, groups
        z = arranged.put(z)
        z = z if z.dtype == torch.float64 else z.float()
        if routers.uneven:
            self.missing = routers.missing[slots]
            z.masked_fill_(self.missing, float("-inf"))
        return z

    def consult(self, h: Tensor, parameters: list[tuple[list[Tensor], list[Tensor | None]]]) -> Tensor:
        evidence: Tensor | None = None
        arranged_by_bank = self.experts.arrange(h, self.arrived)
        for bank, arranged, own in zip(self.experts.banks, arranged_by_bank, parameters, strict=True):
            z, groups = run_networks(arranged.layout, [arranged.h], *own)
            self.consulted.append((arranged, groups, z))
            evidence = arranged.put(bank.spec.activate(z), evidence)
        self.arranged = arranged_by_bank[0] if len(arranged_by_bank) == 1 else None
        assert evidence is not None
        return evidence


class _LevelStep(torch.autograd.Function):
    """From h, belief, side information and parameters to evidence, logits and relaxed choice."""

    @staticmethod
    def forward(ctx: Any, step: _Step, *tensors: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        evidence, logits, relaxed = step.run(tensors)
        taught = relaxed is not None and step.routers.bank is not None
        of_siblings = step.siblings(tensors[0], step.position) if taught and step.siblings is not None else None
        ctx.save_for_backward(*tensors, relaxed, evidence, of_siblings)
        ctx.step, ctx.taught = step, taught
        ctx.set_materialize_grads(False)
        return evidence, logits, relaxed

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_evidence: Tensor | None, of_logits: Tensor | None, of_relaxed: Tensor | None
    ) -> tuple[Any, ...]:
        step: _Step = ctx.step
        *tensors, relaxed, evidence, siblings = ctx.saved_tensors
        parameters = step.parameters(tensors)
        of_router = None if step.asked is None else parameters.pop(0)
        of_parameters: list[Tensor | None] = []
        of_h: Tensor | None = None
        for (arranged, groups, z), bank, own in zip(step.consulted, step.experts.banks, parameters, strict=True):
            if of_evidence is None:
                of_parameters += [None] * (len(own[0]) + len(own[1]))
                continue
            grad = bank.spec.slope(arranged.pick(of_evidence), z, arranged.pick(evidence))
            wanted = ctx.needs_input_grad[1:2]
            (of_mine,), of_weights, of_biases = differentiate_networks(arranged.layout, groups, grad, *own, wanted)
            of_parameters += [*of_weights, *of_biases]
            of_h = None if of_mine is None else arranged.put(of_mine, of_h)
        if step.asked is None or of_router is None:
            return None, of_h, None, None, *of_parameters
        if ctx.taught and of_evidence is not None:
            learned = credit(of_evidence, evidence, relaxed, step.choice, siblings)
            of_relaxed = learned if of_relaxed is None else of_relaxed + learned
        if of_relaxed is not None:
            of_scores = torch._softmax_backward_data(of_relaxed, relaxed, -1, relaxed.dtype)
            of_scores = of_scores if step.tau == 1.0 else of_scores / step.tau
            of_logits = of_scores if of_logits is None else of_logits + of_scores
        if of_logits is None:
            return None, of_h, None, None, *[None] * (len(of_router[0]) + len(of_router[1])), *of_parameters
        if step.missing is not None:
            of_logits = of_logits.masked_fill(step.missing, 0.0)
        arranged, groups = step.asked
        present = [index for index, tensor in enumerate(tensors[:3]) if tensor is not None]
        wanted = [ctx.needs_input_grad[1 + index] for index in present]
        grad = arranged.pick(of_logits).to(tensors[0].dtype)
        of_given, of_weights, of_biases = differentiate_networks(arranged.layout, groups, grad, *of_router, wanted)
        of_inputs: list[Tensor | None] = [None] * 3
        for index, part in zip(present, of_given, strict=True):
            if part is not None:
                one_for_all = len(part) != len(evidence)
                of_inputs[index] = part if one_for_all else arranged.put(part)
        if of_h is not None and of_inputs[0] is not None:
            of_inputs[0] = of_inputs[0] + of_h
        return None, *of_inputs, *of_weights, *of_biases, *of_parameters


def credit(
    grad: Float[Tensor, "b K"],
    evidence: Float[Tensor, "b K"],
    relaxed: Float[Tensor, "b children"],
    choice: Int[Tensor, " b"],
    siblings: Float[Tensor, "b children K"] | None,
) -> Float[Tensor, "b children"]:
    """What the relaxed choice gets from the gradient of the evidence, see the module's text."""
    if siblings is not None:
        return torch.einsum("bk,bjk->bj", grad, siblings)
    of_chosen = torch.linalg.vecdot(grad, evidence).unsqueeze(1)
    return torch.zeros_like(relaxed).scatter_(1, choice.unsqueeze(1), of_chosen)
