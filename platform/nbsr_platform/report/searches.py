"""What a search tried and what mattered: parallel coordinates, history, and the importance of each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.search.proposals import Proposal

BINS, RESAMPLES = 4, 200
# Fewer proposals than this say nothing about a parameter.
LEAST_PROPOSALS = 8


def search_data(study_results: StudyResults) -> dict[str, Any] | None:
    """All proposals with their parameters and objectives; None where the study is no search."""
    search = study_results.study.search
    if search is None or not study_results.proposals:
        return None
    names = list(dict.fromkeys(name for proposal in study_results.proposals for name in proposal.parameters))
    logarithmic = [name for name in names if _is_logarithmic(search.to_plain(), name)]
    complete = [proposal for proposal in study_results.proposals if proposal.state == "COMPLETE"]
    objectives = list(search.objectives)
    return {
        "parameters": names,
        "logarithmic": logarithmic,
        "objectives": [{"name": name, "direction": search.objectives[name]} for name in objectives],
        "proposals": [
            {
                "number": proposal.number,
                "state": proposal.state,
                "parameters": [proposal.parameters.get(name) for name in names],
                "values": list(proposal.values),
                "pareto": proposal.number in study_results.pareto,
            }
            for proposal in study_results.proposals
        ],
        "importance": {objective: importances(complete, names, index) for index, objective in enumerate(objectives)},
    }


def _is_logarithmic(search: dict[str, Any], name: str) -> bool:
    bounds = search.get("space", {}).get(name)
    return isinstance(bounds, dict) and bool(bounds.get("log"))


def importances(proposals: Sequence[Proposal], names: Sequence[str], objective: int) -> list[dict[str, Any]]:
    """Share of an objective's variance that each parameter explains on its own, with a bootstrap 95% band.

    Omega squared over quartiles (or categories) of the parameter, among the proposals that have it: Optuna's
    evaluators leave conditional parameters out and give no band. It sees main effects only, and a sampler that
    follows what it finds samples unevenly: a guide for the next search, not a law. Largest first.
    """
    found = []
    for name in names:
        having = [proposal for proposal in proposals if name in proposal.parameters]
        if len(having) < LEAST_PROPOSALS:
            continue
        values = np.array([proposal.values[objective] for proposal in having])
        place = _bins([proposal.parameters[name] for proposal in having])
        chance = np.random.default_rng(0)
        rows = chance.integers(len(having), size=(RESAMPLES, len(having)))
        band = np.quantile([_omega_squared(values[row], place[row]) for row in rows], [0.025, 0.975])
        share = _omega_squared(values, place)
        found.append({"name": name, "share": share, "low": band[0], "high": band[1], "count": len(having)})
    return sorted(found, key=lambda item: -item["share"])


def _bins(values: Sequence[Any]) -> np.ndarray:
    """Numbers by quartile, everything else by value."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if numbers and len(set(values)) > BINS:
        edges = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])
        return np.searchsorted(edges, np.asarray(values, dtype=float), side="right")
    order = {value: index for index, value in enumerate(dict.fromkeys(map(str, values)))}
    return np.array([order[str(value)] for value in values])


def _omega_squared(values: np.ndarray, place: np.ndarray) -> float:
    """(SS_between - (g - 1) MS_within) / (SS_total + MS_within), no less than 0."""
    total = float(((values - values.mean()) ** 2).sum())
    groups = [values[place == which] for which in np.unique(place)]
    free = len(values) - len(groups)
    if total <= 0 or free < 1 or len(groups) < 2:
        return 0.0
    within = float(sum(((group - group.mean()) ** 2).sum() for group in groups))
    noise = within / free
    return max(0.0, (total - within - (len(groups) - 1) * noise) / (total + noise))
