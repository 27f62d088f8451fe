"""Pictures that need no download: real ones that come with scikit-learn, and noise; each named as what it is."""

from __future__ import annotations

import numpy as np
import torch

from nbsr_core.domains.vision.images import PixelSet

SIZE = 32
TEST_SHARE = 5  # every fifth digit
STRIDE = 24  # px between two patches
NOISE = 1000  # pictures of each kind


def digits() -> tuple[PixelSet, PixelSet]:
    """The 1,797 scanned digits of the UCI optical recognition set (8 x 8 px, 17 grey levels), scaled to 32 px."""
    from sklearn.datasets import load_digits  # slow to import, and only this set needs it

    bunch = load_digits()
    grey = torch.from_numpy(bunch.images).float().unsqueeze(1) * (255 / 16)
    large = torch.nn.functional.interpolate(grey, (SIZE, SIZE), mode="bilinear").round().clamp(0, 255)
    pixels = large.to(torch.uint8).expand(-1, 3, -1, -1)
    names = [str(name) for name in bunch.target_names]
    whole = PixelSet.dealt("scikit-learn digits", names, [int(label) for label in bunch.target], pixels)
    test = [row for row in range(len(whole)) if row // len(names) % TEST_SHARE == 0]
    train = sorted(set(range(len(whole))) - set(test))
    return _some(whole, train, "train"), _some(whole, test, "test")


def _some(whole: PixelSet, rows: list[int], part: str) -> PixelSet:
    labels = [whole.labels[row] for row in rows]
    return PixelSet(f"{whole.name}/{part}", whole.class_names, labels, whole.pixels[torch.tensor(rows)])


def patches() -> PixelSet:
    """Squares of 32 px out of scikit-learn's two sample photographs, a temple and a flower."""
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images()
    pixels, labels = [], []
    for label, photograph in enumerate(photographs.images):
        height, width, _ = photograph.shape
        for top in range(0, height - SIZE + 1, STRIDE):
            for left in range(0, width - SIZE + 1, STRIDE):
                pixels.append(photograph[top : top + SIZE, left : left + SIZE])
                labels.append(label)
    stacked = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
    names = [str(name).rsplit("/", 1)[-1] for name in photographs.filenames]
    return PixelSet.dealt("scikit-learn photograph patches", names, labels, stacked)


def noise() -> PixelSet:
    """Pictures of nothing: every value uniform, or Gaussian around the middle with the whole range as its spread.

    The two kinds on which detectors of unknown pictures are tried since ODIN (Liang et al., 2018); always the same.
    """
    generator, shape = np.random.default_rng(0), (NOISE, 3, SIZE, SIZE)
    uniform, gaussian = generator.integers(0, 256, shape), generator.normal(0.5, 1.0, shape).clip(0, 1) * 255
    pixels = torch.from_numpy(np.concatenate([uniform, gaussian.round()]).astype(np.uint8))
    return PixelSet.dealt("noise", ["uniform", "Gaussian"], [0] * NOISE + [1] * NOISE, pixels)
