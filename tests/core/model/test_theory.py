"""The paper's claims about what training leads to, on problems whose answer is known.

Theorem 1 holds for any weights and is tested with the walk; here are the claims about the trained belief.
"""

from __future__ import annotations

from statistics import mean

import pytest
import torch
from models import FEATURES, GRAPHS, make_model
from torch import Tensor, nn

import nbsr_core as nbsr

# Five inputs, three outcomes: from certain to undecided.
POSTERIOR = torch.tensor(
    [[0.90, 0.05, 0.05], [0.10, 0.60, 0.30], [0.34, 0.33, 0.33], [0.02, 0.18, 0.80], [0.50, 0.50, 0.00]]
)


def sampled(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs as one-hot vectors and outcomes drawn from the posterior."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(len(POSTERIOR), (count,), generator=generator)
    y = torch.multinomial(POSTERIOR[which], 1, generator=generator).squeeze(1)
    return torch.eye(len(POSTERIOR))[which], y


def minimise(model: nbsr.NBSR, objective: nbsr.Objective, x: Tensor, y: Tensor, steps: int) -> None:
    """Full-batch training, close to the minimum of the objective."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(model(x), y)["loss"].backward()
        optimizer.step()
        schedule.step()
    model.eval()


def distance_to_the_posterior(count: int, seed: int, graph: nbsr.DecisionGraph, activation: str) -> float:
    """Total variation between expected marginals and true posterior, averaged over the inputs."""
    torch.manual_seed(seed)
    spec = nbsr.ExpertSpec(activation=activation)  # type: ignore[arg-type]
    model = nbsr.NBSR(nn.Linear(5, 16), graph, 3, 16, experts=spec)
    x, y = sampled(count, seed)
    minimise(model, nbsr.Objective(), x, y, steps=60)
    with torch.no_grad():
        probs = model(torch.eye(5)).probabilities()
    return float(0.5 * (probs - POSTERIOR).abs().sum(-1).mean())


@pytest.mark.parametrize(
    ("graph", "activation"),
    [
        (nbsr.DecisionGraph.chain(2), "softplus"),
        pytest.param(nbsr.DecisionGraph.uniform(depth=2, width=2), "exp", marks=pytest.mark.slow),
    ],
    ids=["chain, softplus", "tree, exp"],
)
def test_theorem_2_expected_marginals_approach_the_posterior(graph: nbsr.DecisionGraph, activation: str) -> None:
    far, closer, close = (
        mean(distance_to_the_posterior(count, seed, graph, activation) for seed in range(3))
        for count in (100, 1_000, 10_000)
    )
    assert far > 2 * closer > 2 * 1.5 * close
    assert close < 0.03


def test_proposition_1_a_larger_lambda_brings_evidence_earlier() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(150) % 3
    x = 1.5 * torch.eye(3, FEATURES)[y] + torch.randn(150, FEATURES, generator=generator)

    def first_depth(weight: float) -> tuple[float, float]:
        """Mean precision and entropy at depth 1 over some seeds."""
        precision, entropy = [], []
        for seed in range(3):
            model = make_model(GRAPHS["chain"], num_classes=3, seed=seed)
            minimise(model, nbsr.Objective(entropy=weight), x, y, steps=40)
            with torch.no_grad():
                trace = model(x)
            precision.append(float(trace.precision[1].mean()))
            entropy.append(float(trace.entropy[1].mean()))
        return mean(precision), mean(entropy)

    by_weight = [first_depth(weight) for weight in (0.0, 0.02, 0.1, 0.5)]
    precisions, entropies = zip(*by_weight, strict=True)
    assert list(precisions) == sorted(precisions)
    assert precisions[-1] > 1.5 * precisions[0]
    assert list(entropies) == sorted(entropies, reverse=True)
