"""How well the distance behind a density factor tells unknown pictures from the validation split, by power.

    python -m benchmarks.density [--study studies/vision/frozen.yaml] [--ood digits] [--rows 20000] [--powers 1 0.25]

A factor must not be chosen on the pictures on which it is judged: give others here than the study names under `ood`.
It is fitted on the first `rows` training features, as the study's model would fit it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch
from nbsr_platform.study.study import Study

from nbsr_core import metrics
from nbsr_core.domains.vision.data import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="studies/vision/frozen.yaml")
    parser.add_argument("--ood", default="digits")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--powers", type=float, nargs="+", default=[1.0, 0.5, 0.33, 0.25, 0.15])
    asked = parser.parse_args()
    study = Study.load(asked.study, [f"data.ood=[{asked.ood}]"])
    options: Any = next(choice.options for choice in study.models.values() if choice.kind == "nbsr")
    splits = load(study.data, study.seeds[0])
    train, labels, valid = splits.train.x[: asked.rows], splits.train.y[: asked.rows], splits.valid.x
    (unknown,) = splits.ood.values()
    print(f"| power | AUROC of the distance, validation against {asked.ood} | FPR at 95% | beyond the threshold |")
    print("| ---: | ---: | ---: | ---: |")
    for power in asked.powers:
        factor = replace(options.density, enabled=True, power=power).build(train.shape[1])
        factor.fit(train, labels, fresh=valid)
        inside, outside = -factor.distance(valid).double(), -factor.distance(unknown).double()
        beyond = float((outside < -factor.threshold).double().mean())
        figures = (metrics.auroc(inside, outside), metrics.fpr95(inside, outside), beyond)
        print(f"| {power:g} | {' | '.join(f'{figure:.3f}' for figure in figures)} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
