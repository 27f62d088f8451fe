"""How well the distance behind a density factor tells spoiled pictures from whole ones, by its settings.

    python -m benchmarks.density [--study STUDY.yaml] [--seeds 100 101 102] [--pictures 400] [--rows 20000]

A factor must not be chosen on pictures on which it is judged. So validation pictures of seeds that no study reports are
spoiled in three ways that are no set of any study: cut into sixteen pieces that are shuffled, blurred, and turned into
negatives. The distance is fitted on the first `rows` training features, and should be larger for what was spoiled.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import Any

import torch
from jaxtyping import UInt8
from nbsr_platform.study.study import Study
from torch import Tensor
from torch.nn import functional as F

from nbsr_core import metrics
from nbsr_core.domains.vision.data import Source, load
from nbsr_core.domains.vision.images import PixelSet
from nbsr_core.evaluation.detectors import factor_of
from nbsr_core.options.specs import DistanceSpec

POWERS = (1.0, 0.5, 0.25)
DIRECTIONS = (None, 512, 256)
PIECES = 4  # across and down

Pictures = UInt8[Tensor, "N 3 H W"]


def shuffled(pictures: Pictures) -> Pictures:
    """Cut into squares that stand in another order, the same for all."""
    count, colours, height, width = pictures.shape
    cut = pictures.unflatten(3, (PIECES, width // PIECES)).unflatten(2, (PIECES, height // PIECES))
    pieces = cut.permute(2, 4, 0, 1, 3, 5).flatten(0, 1)
    order = torch.randperm(PIECES**2, generator=torch.Generator().manual_seed(0))
    whole: Tensor = pieces[order].unflatten(0, (PIECES, PIECES)).permute(2, 3, 0, 4, 1, 5)
    return whole.reshape(count, colours, height, width)


def blurred(pictures: Pictures) -> Pictures:
    """Seen at an eighth of their size."""
    small = F.avg_pool2d(pictures.float(), 8)
    large: Tensor = F.interpolate(small, pictures.shape[-2:], mode="bilinear")
    return large.round().to(torch.uint8)


def negative(pictures: Pictures) -> Pictures:
    return 255 - pictures


WAYS: dict[str, Callable[[Pictures], Pictures]] = {"shuffled": shuffled, "blurred": blurred, "negative": negative}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="studies/vision/frozen.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--rows", type=int, default=20_000)
    asked = parser.parse_args()
    data: Any = Study.load(asked.study, ["data.ood=[]"]).data
    found: dict[tuple[float, int | None], dict[str, list[float]]] = {}
    for seed in asked.seeds:
        source, splits = Source(data), load(data, seed)
        rows = source.selection(seed).valid[: asked.pictures]
        pictures = source.train.decode(rows.tolist(), data.size)
        spoiled = {way: _features(source, spoil(pictures), f"{way} {seed}") for way, spoil in WAYS.items()}
        for power, directions in product(POWERS, DIRECTIONS):
            factor = factor_of(DistanceSpec(directions, power=power), splits.train.x.shape[1])
            factor.fit_distance(splits.train.x[: asked.rows], splits.train.y[: asked.rows])
            inside = -factor.distance(splits.valid.x).double()
            for way, features in spoiled.items():
                by_way = found.setdefault((power, directions), {})
                by_way.setdefault(way, []).append(metrics.auroc(inside, -factor.distance(features).double()))
    print(f"| power | directions | {' | '.join(WAYS)} | mean |")
    print(f"| ---: | ---: |{' ---: |' * (len(WAYS) + 1)}")
    for (power, directions), by_way in found.items():
        each = [mean(by_way[way]) for way in WAYS]
        figures = " | ".join(f"{figure:.3f}" for figure in (*each, mean(each)))
        print(f"| {power:g} | {directions or 'all'} | {figures} |")


def _features(source: Source, pictures: Pictures, name: str) -> Tensor:
    """What the study's frozen backbone sees in pictures of our own; kept like all features."""
    own = PixelSet(name, ["spoiled"], [0] * len(pictures), pictures)
    (table,) = source.tables(source.test)
    return replace(table, images=own).read(torch.arange(len(own)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
