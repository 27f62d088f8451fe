"""What is recorded of a trial, and under which names: those by which people filter and compare in MLflow's pages."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nbsr_platform.results import TrialResult

if TYPE_CHECKING:
    from nbsr_platform.trial import Trial

# MLflow's limits.
LONGEST_NAME, LONGEST_PARAMETER, LONGEST_TAG = 250, 6000, 5000

# Marks the members of a search's Pareto set.
PARETO = "nbsr.pareto"
# The artifact of a run that runs it again: a study's own, or that of one trial.
STUDY_FILE = "study.yaml"

# Metric (name, step): value.
Figures = dict[tuple[str, int], float]


def experiment_name(domain: str) -> str:
    """One experiment a domain, so that its pages compare what can be compared."""
    return f"nbsr-{domain.rpartition(':')[2]}"


def metric_name(name: str) -> str:
    """A name that MLflow accepts: some characters only, and unchanged when taken for a path."""
    allowed = re.sub(r"[^\w/. :-]", "_", name)
    return posixpath.normpath(allowed).lstrip("./")[:LONGEST_NAME].rstrip("/") or "_"


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def trial_tags(trial: Trial, result: TrialResult) -> dict[str, str]:
    """What trials are grouped and filtered by."""
    tags = {
        "nbsr.role": "trial",
        "nbsr.trial_key": trial.key,
        "nbsr.model": trial.label,
        "nbsr.kind": trial.kind,
        "nbsr.family": trial.family,
        "nbsr.domain": trial.domain,
        "nbsr.seed": str(trial.seed),
        "nbsr.study": trial.study,
        "nbsr.status": result.status,
    }
    if "source" in result.data:
        tags["nbsr.data_source"] = str(result.data["source"])
    if "synthetic" in result.data:
        tags["nbsr.synthetic"] = "true" if result.data["synthetic"] else "false"
    if trial.proposal is not None:
        tags["nbsr.proposal"] = str(trial.proposal)
    if result.error is not None:
        tags["nbsr.error"] = (result.error.strip().splitlines() or ["unknown"])[-1]
    return {name: cut(value, LONGEST_TAG) for name, value in tags.items()}


def trial_parameters(trial: Trial, result: TrialResult) -> dict[str, str]:
    """Options of the trial and the environment of its result, flat, under dotted names."""
    tree = {
        "options": trial.options,
        "training": trial.training,
        "evaluation": trial.evaluation,
        "data": {**trial.data, "fingerprint": trial.data_fingerprint},
        "seed": trial.seed,
        "environment": {name: value for name, value in result.environment.items() if name != "hostname"},
    }
    return {metric_name(name): cut(value, LONGEST_PARAMETER) for name, value in _flat("", tree)}


def trial_figures(result: TrialResult) -> Figures:
    """All figures of a trial by name and step: those of the epochs at their number, the final ones after the last."""
    figures: Figures = {}
    step = 0
    for index, epoch in enumerate(result.epochs):
        number = int(epoch.get("epoch", index))
        names = {name: "epoch/seconds" if name == "seconds" else name for name in epoch if name != "epoch"}
        figures |= {(metric_name(shown), number): epoch[name] for name, shown in names.items()}
        step = max(step, number + 1)
    final = {**result.metrics, "seconds": result.seconds}
    figures |= {(metric_name(name), step): value for name, value in final.items()}
    return {at: float(value) for at, value in figures.items() if value is not None and math.isfinite(value)}


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Mappings, and lists of mappings, by dotted keys; everything else as one text."""
    items: Mapping[str, Any] | None = value if isinstance(value, Mapping) else None
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        items = {str(index): item for index, item in enumerate(value)}
    if items:
        for key, item in items.items():
            yield from _flat(f"{name}.{key}" if name else str(key), item)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, default=str)
