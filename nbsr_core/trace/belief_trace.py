"""Everything that makes NBSR different is read off one object: the trace of a full-depth walk.

Routing does not depend on the exit threshold eta, only stopping does. So one walk gives the exact result of *every*
threshold: prediction, early exit, abstention, audit trail and the whole frontier are computed, never run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.belief import dirichlet
from nbsr_core.belief.calibration import calibrated
from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.trace.audit import AuditStep, AuditTrail, checked_names
from nbsr_core.trace.exits import Prediction, Stop, check_eta, check_max_vacuity, conclude, first_below
from nbsr_core.trace.frontier import Frontier

MIXED = "traces of training and evaluation, or before and after a fit, cannot be joined"


@dataclass(frozen=True, eq=False)
class Step:
    """One move of the whole batch from level t to level t+1.

    Samples whose walk is over (a leaf above the last level, or an early exit during training) stay where they are:
    `walking` is False for them, their evidence is 0 and their logits mean nothing. (A soft walk is on every path at
    once: its evidence goes on where the favoured path has ended.)
    """

    node: Int[Tensor, " B"]
    evidence: Float[Tensor, "B K"]
    logits: Float[Tensor, "B children"]
    choice: Int[Tensor, " B"]
    relaxed: Float[Tensor, "B children"] | None = None
    walking: Bool[Tensor, " B"] | None = None


@dataclass(frozen=True, eq=False)
class BeliefTrace:
    """Every belief, node and piece of evidence of a walk by a batch of B samples over T levels.

    Attributes:
        graph: where the walk took place.
        prior: belief before any evidence, [K].
        beliefs: raw beliefs alpha_0 .. alpha_T, each [B, K]: `alpha_{t+1} = alpha_t + e_t`.
        steps: the T moves.
        closeness: factors in (0, 1] by which each sample's evidence was scaled, one for each stage of the backbone (the
            last one counts for all deeper levels); empty if the model has no density factor.
        temperature: one calibration temperature per depth 1..T, or None.
        node_macs: multiply-adds of a step to each node of the graph (`NBSR.node_macs`), where they were counted.
    """

    graph: DecisionGraph
    prior: Float[Tensor, " K"]
    beliefs: tuple[Float[Tensor, "B K"], ...]
    steps: tuple[Step, ...]
    closeness: tuple[Float[Tensor, " B"], ...] = ()
    temperature: Float[Tensor, " T"] | None = None
    node_macs: Float[Tensor, " nodes"] | None = None

    def __len__(self) -> int:
        return self.beliefs[-1].shape[0]

    @property
    def depth(self) -> int:
        """T, the number of moves that the longest walk can make."""
        return len(self.steps)

    def belief(self, depth: int) -> Float[Tensor, "B K"]:
        """The belief at one depth, calibrated if the model is."""
        raw = self.beliefs[depth]
        if self.temperature is None or depth == 0:
            return raw
        if all(step.walking is None for step in self.steps[:depth]):
            return calibrated(raw, self.temperature[depth - 1])
        # A walk that ended earlier keeps the temperature of the depth where it ended.
        return calibrated(raw, self.temperature[self.length.clamp(max=depth) - 1])

    @cached_property
    def alpha(self) -> Float[Tensor, "beliefs B K"]:
        """All beliefs, calibrated if the model is."""
        return torch.stack([self.belief(t) for t in range(self.depth + 1)])

    @cached_property
    def evidence(self) -> Float[Tensor, "T B K"]:
        """What each visited expert added; 0 where a walk was already over."""
        return torch.stack([step.evidence for step in self.steps])

    @cached_property
    def nodes(self) -> Int[Tensor, "beliefs B"]:
        """Where each sample stood; a walk that is over stays at its last node."""
        root = torch.zeros_like(self.steps[0].node)
        return torch.stack([root, *(step.node for step in self.steps)])

    @cached_property
    def walking(self) -> Bool[Tensor, "T B"]:
        """Which samples really moved at each step."""
        everyone = torch.ones_like(self.steps[0].node, dtype=torch.bool)
        return torch.stack([everyone if step.walking is None else step.walking for step in self.steps])

    @cached_property
    def length(self) -> Int[Tensor, " B"]:
        """Number of experts each full-depth walk consulted."""
        return self.walking.sum(0)

    @cached_property
    def precision(self) -> Float[Tensor, "beliefs B"]:
        """alpha_0 by depth in float64, so that strict growth (Theorem 1) survives tiny evidence on a large belief."""
        start = self.prior.double().sum().expand(1, len(self))
        return torch.cat([start, self.evidence.double().sum(-1)]).cumsum(0)

    @cached_property
    def entropy(self) -> Float[Tensor, "beliefs B"]:
        """Differential entropy of every belief. Need not fall at each step: only the precision is monotone."""
        return torch.stack([dirichlet.entropy(self.belief(t), validate_args=False) for t in range(self.depth + 1)])

    @cached_property
    def doubt(self) -> Float[Tensor, "beliefs B"]:
        """What an exit compares with eta: the entropy, unless a trace has a stop rule of its own."""
        return self.entropy

    @cached_property
    def cost(self) -> Float[Tensor, "beliefs B"]:
        """What each walk has spent by each depth (the costs of the nodes visited)."""
        spent = self.node_costs[self.nodes[1:]] * self.walking
        return torch.cat([torch.zeros_like(spent[:1]), spent]).cumsum(0)

    @cached_property
    def macs(self) -> Float[Tensor, "beliefs B"] | None:
        """Multiply-adds of each walk by each depth, backbone included; None where they were not counted."""
        if self.node_macs is None:
            return None
        spent = self.node_macs[self.nodes[1:]] * self.walking
        return torch.cat([torch.zeros_like(spent[:1]), spent]).cumsum(0)

    @property
    def density(self) -> Float[Tensor, " B"] | None:
        """The factor on the evidence of each walk, at the deepest stage that it came to; None without one."""
        if not self.closeness:
            return None
        stage = self.length.clamp(max=len(self.closeness)) - 1
        return torch.stack(self.closeness)[stage, torch.arange(len(self), device=stage.device)]

    @cached_property
    def node_costs(self) -> Float[Tensor, " nodes"]:
        """Cost of visiting each node of the graph."""
        return torch.tensor(self.graph.costs, device=self.prior.device)

    @cached_property
    def child_table(self) -> Int[Tensor, "nodes children"]:
        """Children of each node, padded with -1."""
        return torch.tensor(self.graph.child_table, device=self.prior.device)

    def choices(self, step: int) -> Int[Tensor, "B children"]:
        """The nodes between which each sample chose at a step, column by column of its logits; -1 for none."""
        return self.child_table[self.nodes[step], : self.steps[step].logits.shape[1]]

    @property
    def levels(self) -> tuple[range, ...]:
        """The nodes where samples could stand after each number of steps."""
        return self.graph.levels

    def raw_probabilities(self, depth: int | Int[Tensor, " B"] = -1) -> Float[Tensor, "B K"]:
        """Expected marginals as the evidence gives them, before any calibration; at one depth, or at each row's own."""
        if isinstance(depth, int):
            return _mean(self.beliefs[depth])
        rows = torch.arange(len(self), device=depth.device)
        return _mean(torch.stack(self.beliefs)[depth, rows])

    def probabilities(self, depth: int = -1) -> Float[Tensor, "B K"]:
        """Expected marginals at one depth, the last by default."""
        return _mean(self.belief(range(self.depth + 1)[depth]))

    def exit_depth(self, eta: float | None) -> Int[Tensor, " B"]:
        """First depth >= 1 whose doubt is below eta, or the end of the walk.

        The root has no expert: before the first evidence there is nothing to exit with.
        """
        eta = check_eta(eta)
        if eta is None:
            return self.length
        return first_below(self.doubt[1:], eta, self.length)

    def exit(self, eta: float | None, max_vacuity: float | None = None) -> Prediction:
        """Depth and belief at which each sample stops: exactly what `model.predict` gives, from this one walk."""
        depth = self.exit_depth(eta)
        rows = torch.arange(len(self), device=depth.device)
        stop = Stop(None, self.alpha[depth, rows], self.nodes[depth, rows], depth)
        return conclude([stop], float(self.prior.sum()), check_max_vacuity(max_vacuity))

    def frontier(self, y: Int[Tensor, " B"], etas: Sequence[float] | None = None) -> Frontier:
        """Accuracy, depth and cost at every threshold; without `etas`, at every one that makes a difference."""
        return Frontier.of(self, y, etas)

    def audit(self, index: int, class_names: Sequence[str] | None = None) -> AuditTrail:
        """One sample's walk: node, route probability, evidence, belief, how far it moved, running prediction."""
        if not -len(self) <= index < len(self):
            raise InputError(f"sample {index} is not in this trace of {len(self)} samples")
        index %= len(self)
        if class_names is not None:
            checked_names(class_names, len(self.prior))
        steps = []
        for t in range(int(self.length[index])):
            before, after = self.beliefs[t][index].detach(), self.beliefs[t + 1][index].detach()
            said, move = self.belief(t + 1)[index].detach(), self.steps[t]
            children = [child for child in self.choices(t)[index].tolist() if child >= 0]
            routes = move.logits[index, : len(children)].detach().softmax(-1)
            steps.append(
                AuditStep(
                    depth=t + 1,
                    node=self.graph.nodes[int(move.node[index])].name,
                    route_probability=float(routes[move.choice[index]]),
                    alternatives={
                        self.graph.nodes[child].name: float(p) for child, p in zip(children, routes, strict=True)
                    },
                    before=before,
                    evidence=move.evidence[index].detach(),
                    alpha=said,
                    temperature=None if self.temperature is None else float(self.temperature[t]),
                    belief_shift=float(dirichlet.kl_divergence(after, before)),
                    entropy=float(dirichlet.entropy(said)),
                    vacuity=float(self.prior.sum() / after.sum()),
                )
            )
        closeness = tuple(float(factor[index].detach()) for factor in self.closeness[: len(steps)])
        return AuditTrail(self.prior.detach(), tuple(steps), closeness, class_names)

    @cached_property
    def usage(self) -> Float[Tensor, " nodes"]:
        """Share of samples that visit each node; unvisited nodes are what routing has pruned by itself."""
        visits = torch.zeros(len(self.graph), dtype=torch.float64, device=self.nodes.device)
        for step, walked in zip(self.steps, self.walking, strict=True):
            visits += torch.bincount(step.node[walked], minlength=len(self.graph))
        visits[0] = len(self)  # everybody starts at the root
        return visits / len(self)

    def detach(self) -> BeliefTrace:
        """The same trace without its computation graph, for keeping."""
        steps = tuple(
            replace(
                step,
                evidence=step.evidence.detach(),
                logits=step.logits.detach(),
                relaxed=None if step.relaxed is None else step.relaxed.detach(),
            )
            for step in self.steps
        )
        return replace(
            self,
            beliefs=tuple(belief.detach() for belief in self.beliefs),
            steps=steps,
            closeness=tuple(factor.detach() for factor in self.closeness),
        )

    @staticmethod
    def concat(traces: Sequence[BeliefTrace]) -> BeliefTrace:
        """One trace of several batches by the same model."""
        if not traces:
            raise InputError("concat needs at least one trace, got none")
        first = traces[0]
        if len(traces) == 1:
            return first

        if any(trace.graph != first.graph for trace in traces):
            raise InputError("traces can be joined only if they walk the same graph")

        def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
            known = [part for part in parts if part is not None]
            if known and len(known) < len(parts):
                raise InputError(MIXED)
            return torch.cat(known) if known else None

        steps = []
        for t in range(first.depth):
            moves = [trace.steps[t] for trace in traces]
            walking = None if all(m.walking is None for m in moves) else torch.cat([tr.walking[t] for tr in traces])
            steps.append(
                Step(
                    node=torch.cat([m.node for m in moves]),
                    evidence=torch.cat([m.evidence for m in moves]),
                    logits=torch.cat([m.logits for m in moves]),
                    choice=torch.cat([m.choice for m in moves]),
                    relaxed=joined([m.relaxed for m in moves]),
                    walking=walking,
                )
            )
        beliefs = tuple(torch.cat([trace.beliefs[t] for trace in traces]) for t in range(first.depth + 1))
        if any(len(trace.closeness) != len(first.closeness) for trace in traces):
            raise InputError(MIXED)
        closeness = tuple(map(torch.cat, zip(*(trace.closeness for trace in traces), strict=True)))
        return replace(first, beliefs=beliefs, steps=tuple(steps), closeness=closeness)


def _mean(alpha: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    return alpha / alpha.sum(-1, keepdim=True)
