"""A recorded trial becomes a study of its own: the file that would run it again, to be changed at will."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbsr_platform.study.yaml_file import dump
from nbsr_platform.trials.trial import Trial

LONGEST_NAME = 100


def study_values(trials: Sequence[Trial], name: str, question: str | None) -> dict[str, Any]:
    """Plain values of a study that would run these trials, as they would stand in its file."""
    first = trials[0]
    models = {trial.label: {"kind": trial.kind, **trial.options, "training": dict(trial.training)} for trial in trials}
    return {
        "name": name,
        "question": question,
        "domain": first.domain,
        "data": dict(first.data),
        "seeds": sorted({trial.seed for trial in trials}),
        "evaluation": dict(first.evaluation),
        "models": models,
    }


def study_text(trial: Trial) -> str:
    """The study file of one trial. With its own seed it finds the trial's result; with more seeds it tests it."""
    which = trial.label if trial.proposal is None else f"{trial.proposal}"
    name = f"{trial.study[: LONGEST_NAME - len(which) - 1]}-{which}"
    question = f"How does {trial.name.rpartition(' seed ')[0]} of {trial.study} do, with more seeds than one?"
    head = f"# {trial.name} of {trial.study} (trial {trial.key}); `--set seeds=5` gives it more seeds.\n"
    return head + dump(study_values([trial], name, question))
