"""What the oracle cache saves: an epoch of a frozen study from pictures against one from kept features.

`python -m benchmarks.oracle_cache [pictures]` takes turns between the two on scikit-learn's digits and prints the
ratio. It needs no data set: what an epoch costs does not depend on what the pictures show.
"""

from __future__ import annotations

import sys
import time

import torch

from nbsr_core.domains.domain import Signature
from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.domains.vision.data import feature_names, pixel_names
from nbsr_core.domains.vision.embedded import digits
from nbsr_core.domains.vision.models import FlatOptions, build_flat
from nbsr_core.learning import TensorBatches, Trainer, TrainingConfig

ROUNDS = 3
EPOCHS = 20  # of the fast one, in turn with one of the slow one


def main() -> None:
    pictures = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    backbone = BackboneOptions("efficientnet_lite0", "imagenet", 128)
    train = digits()[0]
    rows = [row % len(train) for row in range(pictures)]
    x, y = train.decode(rows, 32), torch.tensor([train.labels[row] for row in rows])
    slow = build_flat(FlatOptions(backbone), Signature(train.class_names, pixel_names(32)))
    body = slow.module.get_submodule("backbone").eval()
    began = time.perf_counter()
    with torch.no_grad():
        features = body(x)
    once = time.perf_counter() - began
    fast = build_flat(FlatOptions(), Signature(train.class_names, feature_names(features.shape[1])))
    # The backbone is frozen for all epochs, so that no gradient goes into it: an uncached epoch at its cheapest.
    trainers = {
        "uncached": Trainer(
            slow.module, lambda m, x, y, e: slow.loss(m, x, y, e), TensorBatches(x, y), _config(ROUNDS)
        ),
        "cached": Trainer(
            fast.module, lambda m, x, y, e: fast.loss(m, x, y, e), TensorBatches(features, y), _config(ROUNDS * EPOCHS)
        ),
    }
    runs = {name: trainer.run() for name, trainer in trainers.items()}
    ratios = []
    for _ in range(ROUNDS):
        uncached = next(runs["uncached"]).seconds
        cached = sum(next(runs["cached"]).seconds for _ in range(EPOCHS)) / EPOCHS
        ratios.append(uncached / cached)
        print(f"{pictures} pictures: uncached {uncached:.2f} s, cached {cached * 1000:.1f} ms, ratio {ratios[-1]:.0f}")
    print(f"features once: {once:.2f} s ({pictures / once:.0f} pictures a second)")
    print(f"ratio of an epoch, median of {ROUNDS}: {sorted(ratios)[ROUNDS // 2]:.0f}")


def _config(epochs: int) -> TrainingConfig:
    return TrainingConfig(epochs=epochs, frozen_share=1.0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
