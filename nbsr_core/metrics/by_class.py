"""Figures that count every class alike, however rare: where classes are unequal, accuracy says little."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.metrics.checks import checked
from nbsr_core.metrics.ranking import auroc

OF_CLASSES = ("balanced_accuracy", "auroc")


def class_metrics(probs: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> dict[str, float]:
    """Means over the classes that are among the labels.

    Returns:
        `balanced_accuracy`: how often a class is recognised. `auroc`: the chance that a sample of the class gets a
        higher probability for it than one of another class (for two classes, both are the same number); 0.5 where
        there is only one class to be seen.
    """
    probs, labels = checked(probs, labels)
    right = probs.argmax(1) == labels
    present = labels.unique().tolist()
    recognised = [right[labels == k].double().mean().item() for k in present]
    above = [auroc(probs[labels == k, k], probs[labels != k, k]) for k in present if bool((labels != k).any())]
    return {
        "balanced_accuracy": sum(recognised) / len(recognised),
        "auroc": sum(above) / len(above) if above else 0.5,
    }
