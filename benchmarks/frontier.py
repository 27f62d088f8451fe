"""The frontier over 30 thresholds, read off one rollout, against 30 evaluations: is it equal, how much faster is it?

    python -m benchmarks.frontier [--rows 2100]

Shape: triage (12 free features and 5 panels of 24, K = 41), 50 noise draws of 42 rows. Weights are random: how long a
rollout takes does not depend on what it learned. Thresholds are spread over the quantiles of the entropies, so that
rollouts stop at every step.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import nbsr_core as nbsr
from benchmarks.timing import take_turns

THRESHOLDS = 30


def model_and_patients(rows: int) -> tuple[nbsr.AutoregressiveNBSR, Tensor, Tensor]:
    torch.manual_seed(0)
    panels = nbsr.Panels(tuple("ABCDE"), (10.0, 15.0, 20.0, 30.0, 50.0), free=12, width=24)
    model = nbsr.AutoregressiveNBSR(panels, num_classes=41).eval()
    return model, (torch.rand(rows, panels.num_features) < 0.1).float(), torch.randint(41, (rows,))


def thresholds(model: nbsr.AutoregressiveNBSR, x: Tensor) -> list[float]:
    """Between entropies, not on one: halfway, rounding decides nothing."""
    with torch.no_grad():
        entropy = model(x).doubt[1:-1].flatten().double().sort().values
    middle = (entropy[1:] + entropy[:-1]) / 2
    return [float(eta) for eta in middle[torch.linspace(0, len(middle) - 1, THRESHOLDS).long()]]


@torch.no_grad()
def from_one_rollout(model: nbsr.AutoregressiveNBSR, x: Tensor, y: Tensor, etas: list[float]) -> list[list[float]]:
    frontier = model(x).frontier(y, etas)
    return torch.stack([frontier.accuracy, frontier.mean_depth, frontier.mean_cost], dim=1).tolist()


def one_by_one(model: nbsr.AutoregressiveNBSR, x: Tensor, y: Tensor, etas: list[float]) -> list[list[float]]:
    """What a sweep without traces does: evaluate again at each threshold, each time from the start."""
    with torch.no_grad():
        figures = []
        for eta in etas:
            trace = model(x)
            stopped = trace.exit(eta)
            cost = trace.cost[stopped.depth, torch.arange(len(x))].mean()
            right = (stopped.label == y).double().mean()
            figures.append([float(right), float(stopped.depth.double().mean()), float(cost)])
    return figures


def one_by_one_stopping(model: nbsr.AutoregressiveNBSR, x: Tensor, y: Tensor, etas: list[float]) -> list[list[float]]:
    """The fastest that separate evaluations can be: patients who are done leave the batch."""
    figures = []
    for eta in etas:
        stopped, spent = model.predict(x, eta)
        right = (stopped.label == y).double().mean()
        figures.append([float(right), float(stopped.depth.double().mean()), float(spent.mean())])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2100)
    options = parser.parse_args()
    model, x, y = model_and_patients(options.rows)
    etas = thresholds(model, x)
    expected = from_one_rollout(model, x, y, etas)
    ways = {"one rollout": from_one_rollout, "30 rollouts": one_by_one, "30 that stop": one_by_one_stopping}
    timings = take_turns({name: lambda way=way: way(model, x, y, etas) for name, way in ways.items()})  # type: ignore[misc]
    print(f"{THRESHOLDS} thresholds, {options.rows} patients, {torch.get_num_threads()} threads, median [10%, 90%]")
    for name, way in ways.items():
        timing, same = timings[name], way(model, x, y, etas) == expected
        spread = f"{timing.ratio:6.1f}x [{timing.low:.1f}, {timing.high:.1f}]"
        print(f"  {name:<13} {timing.seconds * 1e3:8.1f} ms {spread:<24} {'equal' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
