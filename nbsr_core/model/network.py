"""NBSR: a backbone embeds the input once, then a walk over the decision graph gathers evidence about its class."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

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
from nbsr_core.model.experts import ExpertSpec, LevelExperts
from nbsr_core.model.routers import LevelRouters, RouterSpec
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
        backbone: maps an input batch to the oracle `h` of shape [B, oracle_dim].
        graph: where to walk.
        num_classes: K, the number of outcomes.
        oracle_dim: d, the size of the oracle.
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
        density: scales evidence by the closeness of `h` to the training features; fit it with `fit_density`.

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
        oracle_dim: int,
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
        density: DensityFactor | None = None,
    ) -> None:
        super().__init__()
        check_choice("routing", routing, RoutingMode)
        check_choice("estimator", estimator, Estimator)
        check_choice("evidence", evidence, EvidenceKind)
        self.num_classes = whole_number("num_classes", num_classes, 2)
        self.oracle_dim = whole_number("oracle_dim", oracle_dim, 1)
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
        self.prior: Tensor
        self.register_buffer("prior", dirichlet.prior(self.num_classes, prior_weight, base_rate))
        self.density = density
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
            LevelExperts([specs[node] for node in level], self.oracle_dim, self.num_classes)
            for level in graph.levels[1:]
        )
        self.routers = ModulesOf[LevelRouters](
            LevelRouters(graph, level, self.oracle_dim, self.num_classes, self.side_dim, self.router_spec)
            for level in range(graph.depth)
        )
        below = [nodes.start for nodes in graph.levels[1:]]
        self.levels = tuple(Level(*parts) for parts in zip(self.routers, self.experts, below, strict=True))
        self.calibration = DepthCalibration(graph.depth)

    def set_temperature(self, tau: float) -> None:
        """Temperature of the Gumbel-softmax from now on; training anneals it from epoch to epoch."""
        self.tau = check_temperature(tau)

    def oracle(self, x: Tensor) -> Float[Tensor, "B d"]:
        """The knowledge oracle `h = f_phi(x)`, checked."""
        _check_rows(x)
        h: Tensor = self.backbone(x)
        if h.ndim != 2 or h.shape[1] != self.oracle_dim:
            raise InputError(f"the backbone must return [B, oracle_dim={self.oracle_dim}], got {list(h.shape)}")
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
        h = self.oracle(x)
        self._check_walk(h, side)
        tau = self.tau if tau is None else check_temperature(tau)
        # Beliefs are sums over decades: a backbone may run in mixed precision (autocast), the walk never does.
        with torch.autocast(h.device.type, enabled=False):
            scale = self._scale(h, x, closeness)
            if self.training and self.routing == "softmax":
                if eta is not None:
                    raise InputError(f"{NO_EXIT} (eta)")
                return soft_walk(self, h, side, tau, scale)
            mode: RoutingMode = self.routing if self.training else "argmax"
            eta = self.training_eta if self.training and eta is None else check_eta(eta)
            return tracing_walk(self, h, side, mode, tau, eta, scale)

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

        Args:
            x: input batch.
            eta: stop where the entropy of the belief falls below this; None walks to the leaves.
            max_vacuity: abstain where `W / alpha_0` is still above this at the end; None never abstains.
            side: side information for the routers, if the model has `side_dim`.
            closeness: factor in (0, 1] on each row's evidence, see `forward`.
            chunk: rows that walk together.
        """
        eta, max_vacuity = check_eta(eta), check_max_vacuity(max_vacuity)
        chunk = whole_number("chunk", chunk, 1)
        _check_rows(x)
        if side is not None and len(side) != len(x):
            raise InputError(f"side information must have {len(x)} rows like the input, got {len(side)}")
        parts = []
        with evaluating(self):
            for start in range(0, len(x), chunk):
                part = x[start : start + chunk]
                h = self.oracle(part)
                beside = None if side is None else side[start : start + chunk]
                self._check_walk(h, beside)
                scale = self._scale(h, part, None if closeness is None else closeness[start : start + chunk])
                parts.append(stopping_walk(self, WalkInput(h, beside, scale), eta, max_vacuity))
        return Prediction.concat(parts)

    @torch.no_grad()
    def fit_density(
        self,
        h: Float[Tensor, "N d"],
        y: Int[Tensor, " N"] | None = None,
        *,
        fresh: Float[Tensor, "M d"] | None = None,
    ) -> None:
        """Fit the density factor on training oracles; `fresh` ones, not trained on, say how far new data lies."""
        if self.density is None:
            raise InputError("this model has no density factor: give NBSR(density=DensityFactor(oracle_dim))")
        self.density.fit(h, y, fresh=fresh)

    @torch.no_grad()
    def calibrate(self, trace: BeliefTrace, y: Int[Tensor, " N"]) -> None:
        """Fit one temperature per depth on the trace of a validation split; every arg-max stays what it is."""
        self.calibration.fit(torch.stack(trace.beliefs), y, reached=trace.walking)

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

    def evidence_scale(self, h: Float[Tensor, "B d"], x: Tensor) -> Float[Tensor, " B"] | None:
        """The density factor of each row; None where there is none (yet). Training does not learn to please it.

        Subclasses that judge by more than the oracle look at the input `x` that it came from.
        """
        if self.density is None or not self.density.fitted:
            return None
        factor: Tensor = self.density(h.detach() if self.training else h)
        return factor

    def _scale(self, h: Float[Tensor, "B d"], x: Tensor, closeness: Tensor | None) -> Float[Tensor, " B"] | None:
        if closeness is None:
            return self.evidence_scale(h, x)
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
