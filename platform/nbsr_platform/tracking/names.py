"""What is recorded of a trial, and under which names: those by which people filter and compare in MLflow's pages."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbsr_platform.base.plain_json import finite_figures
from nbsr_platform.trials.results import TrialResult

if TYPE_CHECKING:
    from nbsr_platform.trials.trial import Trial

# MLflow's limits.
LONGEST_NAME, LONGEST_PARAMETER, LONGEST_TAG = 250, 6000, 5000

# Marks the members of a search's Pareto set.
PARETO = "nbsr.pareto"
# What the tag `nbsr.status` says of a trial that has not ended.
UNDER_WAY = "running"
# The artifact of a run that runs it again: a study's own, or that of one trial.
STUDY_FILE = "study.yaml"
# The artifact of a study's run with all its figures; the run itself has the few that people compare.
FIGURES_FILE = "figures.csv"

# Metric (name, step): value.
Figures = dict[tuple[str, int], float]


def short_name(domain: str) -> str:
    """The name of a domain without its module, if it has one: `wine:Wine` is Wine."""
    return domain.rpartition(":")[2]


def experiment_name(domain: str) -> str:
    """One experiment per domain, so that its pages compare what can be compared."""
    return f"nbsr-{short_name(domain)}"


def metric_name(name: str) -> str:
    """A name that MLflow accepts: some characters only, and unchanged when taken for a path."""
    allowed = re.sub(r"[^\w/. :-]", "_", name)
    return posixpath.normpath(allowed).lstrip("./")[:LONGEST_NAME].rstrip("/") or "_"


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def trial_tags(trial: Trial, result: TrialResult | None) -> dict[str, str]:
    """What trials are grouped and filtered by; without a result, of one under way."""
    tags = {
        "nbsr.role": "trial",
        "nbsr.trial_key": trial.key,
        "nbsr.model": trial.label,
        "nbsr.kind": trial.kind,
        "nbsr.family": trial.family,
        "nbsr.domain": trial.domain,
        "nbsr.seed": str(trial.seed),
        "nbsr.study": trial.study,
        "nbsr.status": UNDER_WAY if result is None else result.status,
    }
    if trial.proposal is not None:
        tags["nbsr.proposal"] = str(trial.proposal)
    if result is not None:
        tags |= _tags_of_result(result)
    return {name: cut(value, LONGEST_TAG) for name, value in tags.items()}


def _tags_of_result(result: TrialResult) -> dict[str, str]:
    tags = {}
    if "source" in result.data:
        tags["nbsr.data_source"] = str(result.data["source"])
    if "synthetic" in result.data:
        tags["nbsr.synthetic"] = "true" if result.data["synthetic"] else "false"
    if result.error is not None:
        tags["nbsr.error"] = (result.error.strip().splitlines() or ["unknown"])[-1]
    return tags


def trial_parameters(trial: Trial, result: TrialResult | None) -> dict[str, str]:
    """Options of the trial and, of one that has ended, the environment of its result, flat, under dotted names."""
    made_in = {} if result is None else result.environment
    environment = {name: value for name, value in made_in.items() if name not in ("hostname", "date")}
    tree = {
        "options": trial.options,
        "training": trial.training,
        "evaluation": trial.evaluation,
        "data": {**trial.data, "fingerprint": trial.data_fingerprint},
        "seed": trial.seed,
        **({} if result is None else {"environment": environment}),
    }
    return {metric_name(name): cut(value, LONGEST_PARAMETER) for name, value in _flat("", tree)}


def trial_figures(result: TrialResult) -> Figures:
    """All figures of a trial by name and step: those of the epochs at their number, the final ones after the last."""
    figures = epoch_figures(result.epochs)
    step = max((int(epoch.get("epoch", index)) + 1 for index, epoch in enumerate(result.epochs)), default=0)
    final = {**result.metrics, "seconds": result.seconds}
    return figures | finite_figures({(metric_name(name), step): value for name, value in final.items()})


def epoch_figures(epochs: Sequence[Mapping[str, float]]) -> Figures:
    """Those of some epochs, which need not be the first."""
    figures: Figures = {}
    for index, epoch in enumerate(epochs):
        number = int(epoch.get("epoch", index))
        names = {name: "epoch/seconds" if name == "seconds" else name for name in epoch if name != "epoch"}
        figures |= {(metric_name(shown), number): epoch[name] for name, shown in names.items()}
    return finite_figures(figures)


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
