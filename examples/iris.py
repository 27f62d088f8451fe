"""The Iris toy from end to end: train, calibrate, look at one flower's walk, and draw how the belief sharpens.

python examples/iris.py [--out out/iris] [--seeds 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import nbsr_core as nbsr
from nbsr_core import figures, metrics
from nbsr_core.domains import iris
from nbsr_core.training import TensorBatches, Trainer, TrainingConfig, seed_everything

OBJECTIVE = nbsr.Objective(every_depth=0.5)
TRAINING = TrainingConfig(epochs=150, learning_rate=5e-3, optimizer="adamw", weight_decay=1e-3)


def train(seed: int) -> tuple[nbsr.NBSR, iris.Splits]:
    """One trained, calibrated model."""
    splits = iris.load(seed)
    seed_everything(seed)
    model = iris.build(splits)
    batches = TensorBatches(splits.train.x, splits.train.y, batch_size=32)
    trainer = Trainer(model, lambda m, x, y, epoch: OBJECTIVE(m(x), y, epoch=epoch), batches, TRAINING, seed=seed)
    for _ in trainer.run():
        pass
    with torch.no_grad():
        model.calibrate(model(splits.valid.x), splits.valid.y)
    return model, splits


def main() -> None:
    """Print a table over seeds and write two pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/iris"), help="folder for the pictures")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds to train")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    rows: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        model, splits = train(seed)
        with torch.no_grad():
            trace = model(splits.test.x)
        for depth in (1, 2):
            figures_here = metrics.classification_metrics(trace.probabilities(depth), splits.test.y)
            rows.setdefault(f"accuracy at depth {depth}", []).append(figures_here["accuracy"])
            rows.setdefault(f"NLL at depth {depth}", []).append(figures_here["nll"])
            rows.setdefault(f"precision at depth {depth}", []).append(float(trace.precision[depth].mean()))
            variance = nbsr.dirichlet.variance(trace.belief(depth)).max(-1).values.mean()
            rows.setdefault(f"variance at depth {depth}", []).append(float(variance))

    print(f"{splits.source}; {options.seeds} seeds, 30 test flowers each, mean and 95% interval")
    for name, values in rows.items():
        interval = metrics.seed_interval(values)
        print(f"  {name:<22} {interval.estimate:8.3f}   [{interval.low:.3f}, {interval.high:.3f}]")

    print(f"\nThe walk of test flower 0 ({splits.class_names[int(splits.test.y[0])]}):")
    print(trace.audit(0).render(splits.class_names))

    picture = figures.belief_map(
        model,
        splits.train.x,
        splits.train.y,
        feature_names=splits.feature_names,
        class_names=splits.class_names,
    )
    picture.savefig(options.out / "belief_map.png", dpi=130)
    variance = torch.stack([nbsr.dirichlet.variance(trace.belief(t)).max(-1).values for t in range(3)])
    figures.sharpening(trace.precision.numpy(), variance.numpy()).savefig(options.out / "sharpening.png", dpi=130)
    print(f"\nPictures: {options.out / 'belief_map.png'}, {options.out / 'sharpening.png'}")


if __name__ == "__main__":
    main()
