"""What is fitted after training, the same way for every model: calibration on the validation split.

It is no part of what was learned: the same weights may be judged with and without. What is found stands among the
figures of a trial, so that whoever loads the model can use it as it was judged.
"""

from __future__ import annotations

from collections.abc import Mapping

from nbsr_core.learning.learners import Learner
from nbsr_core.learning.splits import Splits
from nbsr_core.metrics.names import TEST, at_depth, place
from nbsr_core.metrics.names import test as of_test
from nbsr_core.options.specs import EvaluationOptions

TEMPERATURE = "temperature"


def fit_after_training(learner: Learner, splits: Splits, options: EvaluationOptions) -> dict[str, float]:
    """Calibrate a trained model if it shall be; returns the temperatures as figures, see `temperatures_in`."""
    learner.use_temperatures(())
    if options.calibrate:
        learner.calibrate(splits.valid)
    return temperature_figures(learner)


def temperature_figures(learner: Learner) -> dict[str, float]:
    """`test/temperature` of a model that gives one answer, `depth1/temperature`, ... of one that walks."""
    found = learner.temperatures
    if not learner.walks:
        return {of_test(TEMPERATURE): value for value in found}
    return {_of_depth(depth): value for depth, value in enumerate(found, start=1)}


def temperature_names(learner: Learner, options: EvaluationOptions) -> set[str]:
    """Names of the figures that `fit_after_training` will give; `*` stands for any depth."""
    if not options.calibrate:
        return set()
    return {f"{place(TEST, at_depth('*'))}/{TEMPERATURE}" if learner.walks else of_test(TEMPERATURE)}


def temperatures_in(figures: Mapping[str, float | None]) -> tuple[float, ...]:
    """The inverse: what `Learner.use_temperatures` takes, from a trial's figures; none if it was not calibrated."""
    one = figures.get(of_test(TEMPERATURE))
    if one is not None:
        return (one,)
    found: list[float] = []
    while (value := figures.get(_of_depth(len(found) + 1))) is not None:
        found.append(value)
    return tuple(found)


def _of_depth(depth: int) -> str:
    return f"{place(TEST, at_depth(depth))}/{TEMPERATURE}"
