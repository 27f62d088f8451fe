"""NBSR against a flat MLP with the same backbone, and how a walk grows with the graph. Ratios of one run.

    python -m benchmarks.walk [--quick]

Shape: the paper's medical one (132 -> 128 -> 128 backbone, K = 41), graph of 4 + 4 nodes in which every mid can reach
every leaf, so that the second level routes too. "Fast" exits at depth 1 (eta is one nat above the highest entropy
there: the test is done for all samples, and all pass); "Deep" walks to the leaves without a test. Walks are spread over
all nodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nbsr_core as nbsr
from benchmarks.timing import Timing, take_turns

FEATURES, ORACLE, CLASSES, HIDDEN = 132, 128, 41, 64


def backbone() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, ORACLE), nn.ReLU(), nn.Linear(ORACLE, ORACLE), nn.ReLU())


def routed(graph: nbsr.DecisionGraph, activation: str = "softplus") -> nbsr.NBSR:
    spec = nbsr.ExpertSpec(activation=activation)  # type: ignore[arg-type]
    return nbsr.NBSR(backbone(), graph, CLASSES, ORACLE, experts=spec, router=nbsr.RouterSpec(hidden=(HIDDEN,)))


@torch.no_grad()
def spread_walks(model: nbsr.NBSR, x: Tensor) -> None:
    """Centre every router on its rows: an untrained one favours one child, and a batch at one node is not a walk."""
    for level, (routers, nodes) in enumerate(zip(model.routers, model.graph.levels, strict=False)):
        trace = model.eval()(x)
        assert routers.bank is not None
        bias = routers.bank.layers[-1].bias
        assert bias is not None
        for slot, node in enumerate(nodes):
            bias[slot] -= trace.steps[level].logits[trace.nodes[level] == node].mean(0)


def mac_limits() -> dict[str, float]:
    """What arithmetic alone allows. The root's belief is the constant prior, so its router multiplies `h` only."""
    body = FEATURES * ORACLE + ORACLE * ORACLE
    expert, root = ORACLE * CLASSES, ORACLE * HIDDEN + HIDDEN * 4
    mid = (ORACLE + CLASSES) * HIDDEN + HIDDEN * 4
    flat = body + expert
    return {"Deep": (body + root + expert + mid + expert) / flat, "Fast": (body + root + expert) / flat}


def training_step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    # A rate of zero is the same work, and routing stays spread: on one batch of random labels it would soon collapse.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def compare(batch: int, budget: float) -> tuple[dict[str, Timing], dict[str, Timing]]:
    torch.manual_seed(0)
    x, y = (torch.rand(batch, FEATURES) < 0.1).float(), torch.randint(0, CLASSES, (batch,))
    flat = nn.Sequential(backbone(), nn.Linear(ORACLE, CLASSES))
    model = routed(nbsr.DecisionGraph.layered([4, 4]))
    objective = nbsr.Objective()
    spread_walks(model, x)

    @torch.inference_mode()
    def predict_flat() -> Tensor:
        probs: Tensor = flat(x).softmax(-1)
        probs.argmax(-1)
        return probs

    def predict_deep() -> Tensor:
        prediction = model.predict(x)
        prediction.label  # noqa: B018
        return prediction.probs

    with torch.no_grad():
        eta = float(model.eval()(x).entropy[1].max()) + 1.0

    def predict_fast() -> Tensor:
        prediction = model.predict(x, eta=eta)
        prediction.label  # noqa: B018
        return prediction.probs

    flat.eval()
    model.eval()
    inference = take_turns({"Flat": predict_flat, "Deep": predict_deep, "Fast": predict_fast}, budget=budget)
    flat.train()
    model.train()
    training = take_turns(
        {
            "Flat": training_step(flat, lambda: F.cross_entropy(flat(x), y)),
            "NBSR": training_step(model, lambda: objective(model(x), y)["loss"]),
        },
        budget=budget,
    )
    return inference, training


def growth(budget: float, batch: int = 4096) -> list[tuple[str, int, int, Timing]]:
    """Walks over ever larger graphs: by depth at one width, and by number of nodes at one depth."""
    torch.manual_seed(0)
    x = (torch.rand(batch, FEATURES) < 0.1).float()
    shapes = {
        "2 x 2": (2, 2),
        "2 x 4": (2, 4),
        "2 x 16": (2, 16),
        "2 x 64": (2, 64),
        "4 x 4": (4, 4),
        "6 x 4": (6, 4),
    }
    models = {name: routed(nbsr.DecisionGraph.uniform(depth=d, width=w)) for name, (d, w) in shapes.items()}
    timings = take_turns({name: partial(model.predict, x) for name, model in models.items()}, budget=budget)
    return [(name, models[name].graph.num_experts, shapes[name][0], timings[name]) for name in shapes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a second per measurement instead of several")
    budget = 1.0 if parser.parse_args().quick else 5.0
    limits = mac_limits()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ratio to the flat MLP, median [10%, 90%]\n")
    print(f"{'batch':>7}  {'':<8} {'ratio':>6}  {'[10%, 90%]':<14} {'MAC limit':>9}  {'ms':>9}")
    for batch in (128, 1024, 65536):
        inference, training = compare(batch, budget)
        for name, timing in inference.items():
            limit = f"{limits[name]:.2f}x" if name in limits else ""
            print(_row(batch, name, timing, limit))
        print(_row(batch, "training", training["NBSR"], ""))
    print("\nGrowth of `predict` with the graph (batch 4,096), ratio to the smallest")
    print(f"{'graph':>7}  {'nodes':>6} {'depth':>5}")
    for name, nodes, depth, timing in growth(budget):
        print(f"{name:>7}  {nodes:>6} {depth:>5}  {timing.ratio:5.2f}x  {timing.seconds * 1e3:8.2f} ms")


def _row(batch: int, name: str, timing: Timing, limit: str) -> str:
    spread = f"[{timing.low:.2f}, {timing.high:.2f}]"
    return f"{batch:>7}  {name:<8} {timing.ratio:>5.2f}x  {spread:<14} {limit:>9}  {timing.seconds * 1e3:>9.3f}"


if __name__ == "__main__":
    main()
