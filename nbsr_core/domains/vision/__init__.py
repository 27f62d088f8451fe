"""Vision: CIFAR-10, scikit-learn's digits or your own image folders, with backbones that learn or are frozen."""

from nbsr_core.domains.vision.domain import Vision

__all__ = ["Vision"]
