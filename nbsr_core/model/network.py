"""NBSR: a backbone embeds the input, then a walk over the decision graph gathers evidence about its class.

The backbone embeds it once, or in stages as the walk goes deeper (`nbsr_core.model.stages`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nbsr_core._checks import whole_number
from nbsr_core.belief import dirichlet
from nbsr_core.belief.calibration import DepthCalibration
from nbsr_core.belief.density import DensityFactor
from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.kernels import Level
from nbsr_core.model._modules import ModulesOf
from nbsr_core.model.costs import node_macs, stage_macs
from nbsr_core.model.experts import ExpertSpec, LevelExperts
from nbsr_core.model.routers import LevelRouters, RouterSpec
from nbsr_core.model.stages import Stages, rows_at_once, steps_of
from nbsr_core.model.walk import WalkInput, soft_walk, stopping_walk, tracing_walk
from nbsr_core.options.specs import Estimator, EvidenceKind, RoutingMode, check_choice, check_temperature
from nbsr_core.trace.belief_trace import BeliefTrace
from nbsr_core.trace.exits import Prediction, check_eta, check_max_vacuity

Experts = ExpertSpec | Sequence[ExpertSpec] | Mapping[str, ExpertSpec]

# Rows of a `predict` that walk together: memory stays bounded whatever the batch, and chunks were faster than one
# large walk (docs/benchmarks.md).
PREDICT_CHUNK = 2048

NO_EXIT = "softmax routing takes every path at once: it cannot exit early"


class NBSR(nn.Module):
    """Neural Bayesian Sequential Routing.

    `model(x)` walks to full depth and returns a differentiable `BeliefTrace`; `model.predict(x, eta=...)` really stops
    where the belief is sharp enough. In training mode routes are sampled (or relaxed, for `routing="softmax"`); in
    evaluation mode the best child is taken, and a fitted calibration applies.

    Args:
        backbone: maps an input batch to the oracle `h` of shape [B, oracle_dim]; or `Stages`, which give one after
            another, each for those walks that get so far.
        graph: where to walk.
        num_classes: K, the number of outcomes.
        oracle_dim: d, the size of the oracle; of a backbone in stages, one for each stage.
        experts: one specification for all experts, one per level (the last one for all deeper levels too), or one by
            node name (`"default"` for the rest).
        router: specification of all routers.
        routing: how training walks choose: `gumbel` (straight-through) or `softmax` (every path at once, weighted, for
            training through time), or `argmax` (no exploring: routers learn from a concept or balance loss alone).
        estimator: whose evidence teaches the router, see `nbsr_core.kernels.routing`.
        evidence: what the output e of an expert means: pseudo-counts (`absolute`, the paper's `alpha + e`), or
            multiples of the belief that it finds (`relative`, `alpha + alpha e`). Relative evidence makes a walk a
            product of experts: each refines what was said before it, by a factor 1 + e for each class, and need not
            say it again. It is strictly positive as well, so precision grows at every step (Theorem 1).
        prior_weight: W of Subjective Logic, `alpha = e + W a`; K by default, which makes the prior all ones.
        base_rate: a, the prior probability of each class; uniform by default.
        normalise: scale the belief back to the precision of the prior after each step: an ablation. The paper forbids
            it (discussion, "Hierarchical Epistemic Capacity and Safe Inference"): vacuity then stays 1, and nothing
            that is unknown can be told by it.
        training_eta: let walks exit early while training too: an ablation, off by default. The paper warns of it
            ("lazy optimization"): experts below starve.
        side_dim: size of the side information eps that routers may see.
        density: scales evidence by the closeness of `h` to the training features; fit it with `fit_density`. Of a
            backbone in stages, one for each stage.

    Examples:
        >>> import torch, nbsr_core as nbsr
        >>> graph = nbsr.DecisionGraph.uniform(depth=2, width=3)
        >>> model = nbsr.NBSR(torch.nn.Linear(8, 16), graph, num_classes=5, oracle_dim=16).eval()
        >>> trace = model(torch.randn(4, 8))
        >>> trace.alpha.shape
        torch.Size([3, 4, 5])
        >>> model.predict(torch.randn(4, 8), eta=-2.0, max_vacuity=0.9).depth.shape
        torch.Size([4])
    """

    def __init__(
        self,
        backbone: nn.Module,
        graph: DecisionGraph,
        num_classes: int,
        oracle_dim: int | Sequence[int],
        *,
        experts: Experts = ExpertSpec(),  # noqa: B008 (frozen)
        router: RouterSpec = RouterSpec(),  # noqa: B008 (frozen)
        routing: RoutingMode = "gumbel",
        estimator: Estimator = "sparse",
        evidence: EvidenceKind = "absolute",
        prior_weight: float | None = None,
        base_rate: Sequence[float] | None = None,
        normalise: bool = False,
        training_eta: float | None = None,
        side_dim: int = 0,
        density: DensityFactor | Sequence[DensityFactor] | None = None,
    ) -> None:
        super().__init__()
        check_choice("routing", routing, RoutingMode)
        check_choice("estimator", estimator, Estimator)
        check_choice("evidence", evidence, EvidenceKind)
        self.num_classes = whole_number("num_classes", num_classes, 2)
        self.oracle_dims = _sizes(oracle_dim, len(steps_of(backbone)), graph.depth)
        self.side_dim = whole_number("side_dim", side_dim, 0)
        self.routing: RoutingMode = routing
        self.estimator: Estimator = estimator
        self.evidence: EvidenceKind = evidence
        self.normalise, self.training_eta = normalise, check_eta(training_eta)
        if routing == "softmax" and training_eta is not None:
            raise InputError(f"training_eta: {NO_EXIT}, got {training_eta!r}; leave it out")
        self.router_spec = router
        self.backbone = backbone
        self.tau = 1.0
        self._stage_macs: dict[torch.Size, tuple[int, ...] | None] = {}  # counted once for inputs of each shape
        self.prior: Tensor
        self.register_buffer("prior", dirichlet.prior(self.num_classes, prior_weight, base_rate))
        self._set_density(density)
        self._experts = experts
        self._lay_out(graph, _specs_by_node(graph, experts))

    def change_graph(self, graph: DecisionGraph) -> None:
        """Walk another graph from now on: experts and routers are made anew, untrained; the backbone stays."""
        self._lay_out(graph, _specs_by_node(graph, self._experts))
        self.to(self.prior)

    def _lay_out(self, graph: DecisionGraph, specs: list[ExpertSpec]) -> None:
        """Make all that follows from the graph: untrained experts and routers, one of each for every node."""
        self.graph, self.expert_specs = graph, specs
        self.child_table: Tensor
        self.register_buffer("child_table", torch.tensor(graph.child_table), persistent=False)
        self.experts = ModulesOf[LevelExperts](
            LevelExperts([specs[node] for node in nodes], self._size_at(level), self.num_classes)
            for level, nodes in enumerate(graph.levels[1:])
        )
        self.routers = ModulesOf[LevelRouters](
            LevelRouters(graph, level, self._size_at(level), self.num_classes, self.side_dim, self.router_spec)
            for level in range(graph.depth)
        )
        below = [nodes.start for nodes in graph.levels[1:]]
        self.levels = tuple(Level(*parts) for parts in zip(self.routers, self.experts, below, strict=True))
        self.calibration = DepthCalibration(graph.depth)

    def _size_at(self, level: int) -> int:
        """Size of the oracle that routers of a level and experts of the next read."""
        return self.oracle_dims[min(level, len(self.oracle_dims) - 1)]

    def _set_density(self, density: DensityFactor | Sequence[DensityFactor] | None) -> None:
        each = [] if density is None else [density] if isinstance(density, DensityFactor) else list(density)
        if each and len(each) != len(self.oracle_dims):
            raise InputError(f"density must be one factor per stage, {len(self.oracle_dims)} of them, got {len(each)}")
        # That of the last stage; None turns those of all stages off.
        self.density: DensityFactor | None = each[-1] if each else None
        self.earlier_density = ModulesOf[DensityFactor](each[:-1])

    @property
    def oracle_dim(self) -> int:
        """Size of the oracle, of the last one where there are several."""
        return self.oracle_dims[-1]

    def set_temperature(self, tau: float) -> None:
        """Temperature of the Gumbel-softmax from now on; training anneals it from epoch to epoch."""
        self.tau = check_temperature(tau)

    def oracle(self, x: Tensor) -> Float[Tensor, "B d"]:
        """The knowledge oracle `h = f_phi(x)`, checked; of the last stage, where there are several."""
        return self.oracles(x)[-1]

    def oracles(self, x: Tensor) -> tuple[Float[Tensor, "B _"], ...]:
        """The oracles of all stages, `h_1, h_2, ...`; a backbone that embeds the input once has one."""
        _check_rows(x)
        found = self.backbone(self.seen(x))
        each = found if isinstance(self.backbone, Stages) else (found,)
        return tuple(self._checked_oracle(h, stage) for stage, h in enumerate(each))

    def seen(self, x: Tensor) -> Tensor:
        """What the backbone sees of the input."""
        return x

    def _checked_oracle(self, h: Tensor, stage: int) -> Float[Tensor, "B d"]:
        size = self.oracle_dims[stage]
        if h.ndim != 2 or h.shape[1] != size:
            raise InputError(f"the backbone must return [B, oracle_dim={size}], got {list(h.shape)}")
        return h.to(torch.promote_types(self.prior.dtype, torch.float32))

    def forward(
        self,
        x: Tensor,
        *,
        side: Float[Tensor, "B s"] | None = None,
        tau: float | None = None,
        eta: float | None = None,
        closeness: Float[Tensor, " B"] | None = None,
    ) -> BeliefTrace:
        """Walk to full depth and keep everything, differentiably.

        Args:
            x: input batch for the backbone.
            side: side information for the routers, if the model has `side_dim`.
            tau: temperature for this call instead of the model's.
            eta: let samples exit early even here (the paper's Algorithm 1 with its threshold); by default never, or
                while training at `training_eta`.
            closeness: factor in (0, 1] on each row's evidence, from a caller who knows it (NBSR-Mem judges frames, not
                memories); the model's own density factor by default.
        """
        oracles = self.oracles(x)
        for h in oracles:
            self._check_walk(h, side)
        tau = self.tau if tau is None else check_temperature(tau)
        # Beliefs are sums over decades: a backbone may run in mixed precision (autocast), the walk never does.
        with torch.autocast(oracles[0].device.type, enabled=False):
            stages = [WalkInput(h, side, self._scale(h, x, closeness, stage)) for stage, h in enumerate(oracles)]
            if self.training and self.routing == "softmax":
                if eta is not None:
                    raise InputError(f"{NO_EXIT} (eta)")
                return soft_walk(self, stages, tau)
            mode: RoutingMode = self.routing if self.training else "argmax"
            eta = self.training_eta if self.training and eta is None else check_eta(eta)
            return tracing_walk(self, stages, mode, tau, eta)

    @torch.inference_mode()
    def predict(
        self,
        x: Tensor,
        *,
        eta: float | None = None,
        max_vacuity: float | None = None,
        side: Float[Tensor, "B s"] | None = None,
        closeness: Float[Tensor, " B"] | None = None,
        chunk: int = PREDICT_CHUNK,
    ) -> Prediction:
        """Labels with early exit and abstention: samples that exit leave the batch, and no work is done for them.

        Stages of the backbone below the last exit are not computed.

        Args:
            x: input batch.
            eta: stop where the entropy of the belief falls below this; None walks to the leaves.
            max_vacuity: abstain where `W / alpha_0` is still above this at the end; None never abstains.
            side: side information for the routers, if the model has `side_dim`.
            closeness: factor in (0, 1] on each row's evidence, see `forward`.
            chunk: rows that walk together, at most; feature maps between stages may ask for fewer.
        """
        eta, max_vacuity = check_eta(eta), check_max_vacuity(max_vacuity)
        chunk = min(whole_number("chunk", chunk, 1), rows_at_once(self.backbone))
        _check_rows(x)
        if side is not None and len(side) != len(x):
            raise InputError(f"side information must have {len(x)} rows like the input, got {len(side)}")
        parts = []
        with evaluating(self):
            for start in range(0, len(x), chunk):
                rows = slice(start, start + chunk)
                beside, close = (None if given is None else given[rows] for given in (side, closeness))
                parts.append(stopping_walk(self, self._first_stage(x[rows], beside, close), eta, max_vacuity))
        return Prediction.concat(parts)

    def _first_stage(self, x: Tensor, side: Tensor | None, closeness: Tensor | None) -> WalkInput:
        """What rows walk with from the root: the first stage is computed, the others when somebody gets there."""
        return _ToStage(self, 0, self.seen(x), x, closeness)(side)

    @torch.no_grad()
    def fit_density(
        self,
        h: Float[Tensor, "N d"] | Sequence[Float[Tensor, "N _"]],
        y: Int[Tensor, " N"] | None = None,
        *,
        fresh: Float[Tensor, "M d"] | Sequence[Float[Tensor, "M _"]] | None = None,
    ) -> None:
        """Fit the density factor on training oracles; `fresh` ones, not trained on, say how far new data lies.

        Of a backbone in stages, give the oracles of all stages (`oracles`): each stage has a factor of its own.
        """
        if self.density is None:
            raise InputError("this model has no density factor: give NBSR(density=DensityFactor(oracle_dim))")
        factors = (*self.earlier_density, self.density)
        known: Sequence[Tensor] = [h] if isinstance(h, Tensor) else h
        new: Sequence[Tensor | None] = [fresh] if isinstance(fresh, Tensor) else fresh or [None] * len(factors)
        if not len(known) == len(new) == len(factors):
            raise InputError(f"fit_density needs the oracles of {len(factors)} stages, got those of {len(known)}")
        for factor, of_stage, fresh_of_stage in zip(factors, known, new, strict=True):
            factor.fit(of_stage, y, fresh=fresh_of_stage)

    @torch.no_grad()
    def calibrate(self, trace: BeliefTrace, y: Int[Tensor, " N"]) -> None:
        """Fit one temperature per depth on the trace of a validation split; every arg-max stays what it is."""
        self.calibration.fit(torch.stack(trace.beliefs), y, reached=trace.walking)

    def node_macs(self, x: Tensor) -> Float[Tensor, " nodes"] | None:
        """Multiply-adds of one sample's step to each node of the graph, see `nbsr_core.model.costs`.

        Counted on the first row of `x`; None where a row is more than one sample. A trace that is given them
        (`dataclasses.replace(trace, node_macs=...)`) has them at every depth and threshold.
        """
        _check_rows(x)
        if x.shape[1:] not in self._stage_macs:
            with evaluating(self):
                self._stage_macs[x.shape[1:]] = stage_macs(self.backbone, self.seen(x[:1]))
        counted = self._stage_macs[x.shape[1:]]
        return None if counted is None else node_macs(self, counted)

    @torch.no_grad()
    def pruned(self, usage: Sequence[float] | Float[Tensor, " nodes"], min_share: float) -> NBSR:
        """A copy on the smaller graph of the nodes that at least `min_share` of the samples visit (`trace.usage`).

        Samples whose path survives get the same predictions: a router only loses children that they did not choose.
        """
        graph = self.graph.pruned(usage, min_share)
        old = [self.graph.index(node.name) for node in graph.nodes]
        smaller = copy.deepcopy(self)
        smaller._lay_out(graph, [self.expert_specs[i] for i in old])
        smaller.to(self.prior)
        for level in range(graph.depth):
            here, below = graph.levels[level], graph.levels[level + 1]
            experts_were = [old[node] - self.graph.levels[level + 1].start for node in below]
            smaller.experts[level].copy_from(self.experts[level], experts_were)
            routers_were = [old[node] - self.graph.levels[level].start for node in here]
            columns = [
                [self.graph.nodes[old[node]].children.index(old[child]) for child in graph.nodes[node].children]
                for node in here
            ]
            smaller.routers[level].copy_from(self.routers[level], routers_were, columns)
        if self.calibration.fitted:
            smaller.calibration.temperature.copy_(self.calibration.temperature[: graph.depth])
            smaller.calibration.fitted.fill_(True)
        return smaller.train(self.training)

    def evidence_scale(self, h: Float[Tensor, "B d"], x: Tensor, stage: int = -1) -> Float[Tensor, " B"] | None:
        """The density factor of each row; None where there is none (yet). Training does not learn to please it.

        Subclasses that judge by more than the oracle look at the input `x` that it came from. `stage` says whose
        oracle `h` is, the last one's by default.
        """
        if self.density is None or not self.density.fitted:
            return None
        judge = (*self.earlier_density, self.density)[stage]
        factor: Tensor = judge(h.detach() if self.training else h)
        return factor

    def _scale(
        self, h: Float[Tensor, "B d"], x: Tensor, closeness: Tensor | None, stage: int = -1
    ) -> Float[Tensor, " B"] | None:
        if closeness is None:
            return self.evidence_scale(h, x, stage)
        if closeness.shape != h.shape[:1] or not bool(((closeness > 0) & (closeness <= 1)).all()):
            raise InputError(f"closeness must be {h.shape[0]} numbers in (0, 1], got {list(closeness.shape)}")
        return closeness

    def _check_walk(self, h: Tensor, side: Tensor | None) -> None:
        if not math.isfinite(h.detach().sum().item()):
            bad = int((~torch.isfinite(h)).any(-1).sum())
            if bad:  # a sum may overflow where no row does
                raise InputError(f"the oracle h must be finite, got NaN or infinity in {bad} of {h.shape[0]} rows")
        given = 0 if side is None else side.shape[-1]
        if given != self.side_dim:
            raise InputError(f"side information must have {self.side_dim} columns (side_dim), got {given}")
        if side is None:
            return
        if side.shape[0] != h.shape[0]:
            raise InputError(f"side information must have {h.shape[0]} rows like the input, got {side.shape[0]}")
        if not bool(torch.isfinite(side).all()):
            bad = int((~torch.isfinite(side)).any(-1).sum())
            raise InputError(f"side information must be finite, got NaN or infinity in {bad} of {side.shape[0]} rows")


@dataclass(frozen=True, eq=False)
class _ToStage:
    """The way to a stage of the backbone for the rows that get there, see `nbsr_core.model.walk.Deeper`.

    Attributes:
        stage: which one, from 0.
        left: what the stage before left behind; for the first, what the backbone sees.
        x: the input of the rows.
        closeness: a caller's factor on their evidence, if there is one.
    """

    model: NBSR
    stage: int
    left: Tensor
    x: Tensor
    closeness: Float[Tensor, " b"] | None

    def only(self, kept: Int[Tensor, " some"]) -> _ToStage:
        close = None if self.closeness is None else self.closeness[kept]
        # Indexed and not selected: that keeps the memory format, by which convolutions are fast.
        return replace(self, left=self.left[kept], x=self.x[kept], closeness=close)

    def __call__(self, side: Float[Tensor, "b s"] | None) -> WalkInput:
        model, steps = self.model, steps_of(self.model.backbone)
        left, h = steps[self.stage](self.left)
        h = model._checked_oracle(h, self.stage)
        model._check_walk(h, side)
        scale = model._scale(h, self.x, self.closeness, self.stage)
        further = self.stage + 1 < min(len(steps), model.graph.depth)
        return WalkInput(h, side, scale, replace(self, stage=self.stage + 1, left=left) if further else None)


def _sizes(oracle_dim: int | Sequence[int], stages: int, depth: int) -> tuple[int, ...]:
    """The size of each stage's oracle."""
    given = oracle_dim if isinstance(oracle_dim, Sequence) else [oracle_dim]
    sizes = tuple(whole_number("oracle_dim", size, 1) for size in given)
    if len(sizes) != stages:
        raise InputError(f"oracle_dim must give a size for each of the backbone's {stages} stages, got {oracle_dim!r}")
    if stages > depth:
        raise InputError(
            f"a backbone of {stages} stages needs a graph of at least as many levels, got {depth}: name fewer stages"
        )
    return sizes


def _check_rows(x: Tensor) -> None:
    if x.ndim == 0 or x.shape[0] == 0:
        raise InputError(f"the input batch is empty: its shape is {list(x.shape)}")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; a model already in it is not touched, since the switch visits every module."""
    if not model.training:
        yield
        return
    learning = [module for module in model.modules() if module.training]  # not all, where a backbone is frozen
    model.eval()
    try:
        yield
    finally:
        for module in learning:
            module.training = True


def _specs_by_node(graph: DecisionGraph, experts: Experts) -> list[ExpertSpec]:
    """One specification per node (the root's is never used), from any of the ways to say it."""
    if isinstance(experts, ExpertSpec):
        return [experts] * len(graph)
    if isinstance(experts, Mapping):
        names = {node.name for node in graph.nodes[1:]}
        unknown = sorted(set(experts) - names - {"default"})
        if unknown:
            raise InputError(f"experts names nodes that the graph does not have: {', '.join(unknown)}")
        missing = sorted(names - set(experts)) if "default" not in experts else []
        if missing:
            raise InputError(f"experts says nothing about {', '.join(missing[:5])} and has no 'default'")
        return [experts.get(node.name, experts.get("default", ExpertSpec())) for node in graph.nodes]
    if not 1 <= len(experts) <= graph.depth:
        raise InputError(
            f"experts must give one specification per level, from 1 to {graph.depth} of them (the last one counts for "
            f"all deeper levels), got {len(experts)}"
        )
    return [experts[min(max(node.level, 1), len(experts)) - 1] for node in graph.nodes]
