"""What the size of pictures costs a frozen backbone and gives a linear model: EfficientNet-Lite0 on CIFAR-10, one core.

    python -m benchmarks.picture_size [--sizes 128 160 224] [--train 3000] [--test 1000]

Time is that of the CPU, so that others on the machine count little; they still share its caches and its memory.
"""

from __future__ import annotations

import argparse
import time

import torch

from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.domains.vision.data import Source, VisionData
from nbsr_core.domains.vision.oracle_cache import Features


def main() -> None:
    from sklearn.linear_model import LogisticRegression

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 160, 224])
    parser.add_argument("--train", type=int, default=3000)
    parser.add_argument("--test", type=int, default=1000)
    asked = parser.parse_args()
    source = Source(VisionData(source="cifar10", ood=()))
    print("| `size` | pictures per second of CPU time | test accuracy |\n| ---: | ---: | ---: |")
    for size in asked.sizes:
        recipe = Features(BackboneOptions("efficientnet_lite0", "imagenet", size))
        recipe.compute(source.train, range(1))  # weights are read before the clock starts
        began = time.process_time()
        train, test = recipe.compute(source.train, range(asked.train)), recipe.compute(source.test, range(asked.test))
        pace = (asked.train + asked.test) / (time.process_time() - began)
        probe = LogisticRegression(max_iter=300).fit(train, source.train.labels[: asked.train])
        print(f"| {size} | {pace:.0f} | {probe.score(test, source.test.labels[: asked.test]):.1%} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
