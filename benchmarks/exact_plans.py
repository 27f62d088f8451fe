"""How far the learned planner is from the best of all plans, on tables small enough to compare all plans.

    python -m benchmarks.exact_plans [--seeds 5]

A panel names the one block of features that shows the class: it tells nothing by itself, so greedy does not begin with
it. Once all prices are 1, once the signpost costs 2. Accuracy on 20,000 rows, mean over seeds; exact greedy and exact
dynamic programming know the distribution.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean

import torch

from nbsr_core.domains.acquisition.exact import Table, signpost
from nbsr_core.domains.acquisition.learners import AcquisitionLearner
from nbsr_core.domains.acquisition.models import MODELS
from nbsr_core.domains.acquisition.options import SharedOptions
from nbsr_core.domains.domain import Signature
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.acquisition import Panels
from nbsr_core.model.experts import ExpertSpec
from nbsr_core.model.routers import RouterSpec

SMALL = SharedOptions(
    experts=ExpertSpec(hidden=(64, 64), activation="exp"),
    router=RouterSpec(hidden=(64, 64), belief="mean"),
    knots=0,
    policy_after=4,
)
DEAR = replace(signpost(contexts=3, features=2, noise=0.1), prices=(2, 1, 1, 1, 1, 1, 1))
# Name, table, training rows, budgets, epochs.
INSTANCES: Mapping[str, tuple[Table, int, tuple[int, ...], int]] = {
    "signpost at price 1": (signpost(), 4_000, (2, 3, 5), 12),
    "signpost at price 2": (DEAR, 20_000, (3, 4, 5), 16),
}


def splits_of(table: Table, rows: int, budgets: tuple[int, ...]) -> Splits:
    """Rows of a discrete table, each panel's value as one-hot columns."""
    sizes = table.probability.shape[:-1]
    names = [f"panel{place}" for place in range(len(sizes))]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    columns = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    panels = Panels.of(names, [float(price) for price in table.prices], columns, ends[-1])

    def part(number: int, seed: int) -> Split:
        x, y = table.rows(number, seed)
        shown = [torch.nn.functional.one_hot(x[:, k], size) for k, size in enumerate(sizes)]
        return Split(torch.cat(shown, dim=1).float(), y)

    return Splits(
        train=part(rows, 1),
        valid=part(1000, 2),
        test=part(20_000, 3),
        class_names=[str(k) for k in range(table.probability.shape[-1])],
        feature_names=[str(k) for k in range(ends[-1])],
        source="drawn",
        synthetic=True,
        structure={"panels": panels.to_json(), "budgets": [float(budget) for budget in budgets]},
    )


def trained(splits: Splits, kind: str = "planner", epochs: int = 12, seed: int = 0) -> AcquisitionLearner:
    seed_everything(seed)
    learner = MODELS[kind].build(SMALL, Signature.of(splits))
    assert isinstance(learner, AcquisitionLearner)
    config = TrainingConfig(epochs=epochs, batch_size=256, learning_rate=4e-3, scheduler="step", step_size=3)
    list(learner.train(splits, config, seed, Execution()))
    return learner


def accuracy(learner: AcquisitionLearner, part: Split, budget: int) -> float:
    said = learner.trace(part.x, float(budget)).raw_probabilities().argmax(1)
    return float((said == part.y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print("| table | budget | best of all plans | exact greedy | planner | planner's lowest | planner / best |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, (table, rows, budgets, epochs) in INSTANCES.items():
        splits = splits_of(table, rows, budgets)
        planners = [trained(splits, epochs=epochs, seed=seed) for seed in seeds]
        for budget in budgets:
            found, best = [accuracy(planner, splits.test, budget) for planner in planners], table.best(budget)
            cells = [best, table.greedy(budget), mean(found), min(found), mean(found) / best]
            print(f"| {name} | {budget} | {' | '.join(f'{cell:.3f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
