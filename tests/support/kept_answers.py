"""Results of a small study whose models answered given samples right and others wrong, as trials keep them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.study.study import Study
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import grid

from nbsr_core.evaluation.samples import sample_row


def flags(wrong: int, samples: int = 200, *, beginning: int = 0) -> list[bool]:
    """All right but so many."""
    return [not beginning <= place < beginning + wrong for place in range(samples)]


def judged(result: TrialResult, right: Sequence[bool], use: str = "", **more: Any) -> None:
    """Add accuracy and NLL of a model on the test split, and what it answered; it is always equally sure of itself.

    The first sample's true class is `first` (0 if it is not given): with another one these are other samples.
    """
    y = torch.zeros(len(right), dtype=torch.int64)
    y[0] = more.pop("first", 0)
    said = torch.where(torch.tensor(right), y, 1 - y % 2)
    probs = torch.nn.functional.one_hot(said, 3) * 0.8 + 0.2 / 3
    figures = {"accuracy": float((said == y).double().mean()), "nll": float(-probs.gather(1, y[:, None]).log().mean())}
    result.metrics |= {f"{use or 'test'}/{name}": value for name, value in figures.items()}
    result.tables.setdefault("samples", []).append(sample_row("test", use, probs, y, **more))


def results(
    right: Mapping[str, Sequence[Sequence[bool]]], *, first: Callable[[str, int], int] = lambda model, seed: 0
) -> StudyResults:
    """A study whose models answered these samples right, seed by seed; `first` is the class of the first sample."""
    seeds = len(next(iter(right.values())))
    study = Study.from_dict(
        {"name": "toy-study", "domain": "toys:Toy", "seeds": seeds, "models": {label: {} for label in right}}
    )
    finished = []
    for trial in grid(study, "none"):
        result = TrialResult(trial.key, "finished", 1.0)
        judged(result, right[trial.label][trial.seed], first=first(trial.label, trial.seed))
        finished.append((trial, result))
    return StudyResults(study, finished, wanted=len(finished), command="nbsr run toy.yaml")
