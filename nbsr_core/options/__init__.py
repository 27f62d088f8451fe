"""The options of a model, its training and its evaluation: plain values that need no torch."""

from nbsr_core.options.conditions import counts_when, without_effect
from nbsr_core.options.specs import EvaluationOptions, ExpertSpec, ObjectiveWeights, RouterSpec, TemperatureSchedule

__all__ = [
    "EvaluationOptions",
    "ExpertSpec",
    "ObjectiveWeights",
    "RouterSpec",
    "TemperatureSchedule",
    "counts_when",
    "without_effect",
]
