"""Noise, bias and variance of the paper's decomposition, over training sets that the seeds drew anew.

    E_D[NLL] = H(P*) + KL(P* || mean P) + E_D[KL(mean P || P_D)] + rest

where P* is the known posterior, P_D the prediction after training on D, and mean P its mean over training sets. The
paper's equation leaves the rest out; it is what the variance term misses by weighing with mean P instead of P*. All
terms are means over the test inputs, in nats. A domain takes part by a table `posterior` with a row a test input:
`truth`, and what was said `deep` and `fast`, each a list over classes.

With few training sets the plain estimates are biased (mean P is itself an estimate): estimates and their 95% intervals
are those of the jackknife over training sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from nbsr_core.metrics import Interval
from nbsr_platform.report.groups import Group
from nbsr_platform.report.study_results import StudyResults

TABLE, LEAST_SETS, TINY = "posterior", 4, 1e-12
TERMS = ("noise", "bias", "variance", "rest", "risk")
Terms = np.ndarray  # [len(TERMS)]


def terms(truth: np.ndarray, said: np.ndarray) -> Terms:
    """Plain estimates of all terms from `truth` [M, K] and what was said after each training set, [R, M, K]."""
    truth, said = np.clip(truth, TINY, None), np.clip(said, TINY, None)
    mean = said.mean(axis=0)
    noise = -(truth * np.log(truth)).sum(-1).mean()
    bias = (truth * np.log(truth / mean)).sum(-1).mean()
    variance = (mean * np.log(mean / said)).sum(-1).mean()
    risk = -(truth * np.log(said)).sum(-1).mean()
    return np.array([noise, bias, variance, risk - noise - bias - variance, risk])


def jackknife(whole: np.ndarray, without: np.ndarray) -> list[Interval]:
    """Estimates free of the first-order bias, with 95% intervals: `whole` is [T], `without` each set in turn [R, T]."""
    from scipy.stats import t

    sets = len(without)
    mean = without.mean(axis=0)
    estimate = sets * whole - (sets - 1) * mean
    error = np.sqrt((sets - 1) / sets * ((without - mean) ** 2).sum(axis=0))
    half = float(t.ppf(0.975, sets - 1)) * error
    return [Interval(float(e), float(e - h), float(e + h)) for e, h in zip(estimate, half, strict=True)]


@dataclass(frozen=True)
class Decomposed:
    """One model, deep or fast: plain terms of all training sets and without each of them in turn."""

    name: str
    config: str
    options: Mapping[str, float]
    whole: Terms
    without: np.ndarray

    @property
    def intervals(self) -> dict[str, Interval]:
        return dict(zip(TERMS, jackknife(self.whole, self.without), strict=True))


def decompose(study_results: StudyResults) -> list[Decomposed]:
    """Every model of the comparison that has a posterior to be held against; empty where there are too few seeds."""
    groups = [group for group in study_results.groups if all(result.tables.get(TABLE) for result in group.results)]
    if not groups or any(len(group.members) < LEAST_SETS for group in groups):
        return []
    seeds = [tuple(trial.seed for trial, _ in group.members) for group in groups]
    if len(set(seeds)) > 1:  # intervals of differences need the same training sets everywhere
        return []
    found = []
    options = _varying(groups)
    for group in groups:
        truth = _column(group, "truth")[0]
        for config in ("deep", "fast"):
            if config in group.results[0].tables[TABLE][0]:
                said = _column(group, config)
                without = np.stack([terms(truth, np.delete(said, leave, axis=0)) for leave in range(len(said))])
                found.append(Decomposed(group.name, config, options[group.name], terms(truth, said), without))
    return found


def _column(group: Group, name: str) -> np.ndarray:
    """[R, M, K]."""
    return np.array([[row[name] for row in result.tables[TABLE]] for result in group.results])


def _varying(groups: Sequence[Group]) -> dict[str, dict[str, float]]:
    """Per model, the options that are numbers and not the same in all of them."""
    flat = {group.name: dict(_numbers(group.first[0].options)) for group in groups}
    names = [
        name
        for name in next(iter(flat.values()))
        if all(name in known for known in flat.values()) and len({known[name] for known in flat.values()}) > 1
    ]
    return {group: {name: known[name] for name in names} for group, known in flat.items()}


def _numbers(tree: Any, prefix: str = "") -> list[tuple[str, float]]:
    if isinstance(tree, Mapping):
        return [item for key, value in tree.items() for item in _numbers(value, f"{prefix}{key}.")]
    number = isinstance(tree, int | float) and not isinstance(tree, bool)
    return [(prefix.rstrip("."), float(tree))] if number else []


@dataclass(frozen=True)
class Change:
    """What an option does from its least to its largest value, the others being equal: mean change of each term."""

    option: str
    config: str
    low: float
    high: float
    intervals: Mapping[str, Interval]

    @property
    def text(self) -> str:
        def said(name: str) -> str:
            interval = self.intervals[name]
            verdict = "falls" if interval.high < 0 else "grows" if interval.low > 0 else "does not clearly change"
            return f"{name} {verdict} ({interval.estimate:+.3f}, 95% {interval.low:+.3f} to {interval.high:+.3f})"

        parts = ", ".join(said(name) for name in ("bias", "variance", "risk"))
        return f"{self.option} from {self.low:g} to {self.high:g} ({self.config}): {parts}."


def changes(found: Sequence[Decomposed], config: str = "deep") -> list[Change]:
    """The effect of every option that varies, averaged over the values of the others, training set by training set."""
    shown = [item for item in found if item.config == config]
    made = []
    for option in shown[0].options if shown else ():
        low, high = (pick(item.options[option] for item in shown) for pick in (min, max))

        def others(item: Decomposed, option: str = option) -> tuple[float, ...]:
            return tuple(value for name, value in item.options.items() if name != option)

        lowest = {others(item): item for item in shown if item.options[option] == low}
        pairs = [
            (lowest[others(item)], item) for item in shown if item.options[option] == high and others(item) in lowest
        ]
        if pairs:
            whole = np.mean([b.whole - a.whole for a, b in pairs], axis=0)
            without = np.mean([b.without - a.without for a, b in pairs], axis=0)
            intervals = dict(zip(TERMS, jackknife(whole, without), strict=True))
            made.append(Change(option, config, low, high, intervals))
    return made


def chart_data(found: Sequence[Decomposed]) -> dict[str, Any]:
    """All models with their options and terms, each as [estimate, low, high]."""
    return {
        "options": list(found[0].options),
        "models": [
            {
                "name": item.name,
                "config": item.config,
                "options": list(item.options.values()),
                "terms": {name: [i.estimate, i.low, i.high] for name, i in item.intervals.items()},
            }
            for item in found
        ],
    }


def explained(found: Sequence[Decomposed]) -> str:
    """What the table shows, in words."""
    return (
        f"Noise, bias and variance of the NLL over {len(found[0].without)} training sets, in nats, with jackknife 95% "
        "intervals; rest is what the paper's equation leaves out. Risk is the sum of all. Initial weights differ "
        "between training sets too: the variance is that of both."
    )


def rows(found: Sequence[Decomposed]) -> list[list[str]]:
    """Name and `TERMS` of every model."""
    return [[f"{item.name} {item.config}", *map(_cell, item.intervals.values())] for item in found]


def said(found: Sequence[Decomposed]) -> list[str]:
    """What each option does to the terms, a line each."""
    return [change.text for config in ("deep", "fast") for change in changes(found, config)]


def table(found: Sequence[Decomposed]) -> str:
    """Terms of every model as HTML, and what each option does to them."""
    heads = "".join(f"<th>{name}" for name in TERMS)
    body = []
    for name, *cells in rows(found):
        body.append(f"<tr><th scope=row>{escape(name)}{''.join(f'<td>{cell}' for cell in cells)}")
    return (
        f"<p>{explained(found)}</p>"
        f"<div class=wide><table><thead><tr><th>model{heads}</thead><tbody>{''.join(body)}</tbody></table></div>"
        f"<ul>{''.join(f'<li>{escape(line)}' for line in said(found))}</ul>"
    )


def _cell(interval: Interval) -> str:
    half = (interval.high - interval.low) / 2
    return f"{interval.estimate:.3f}" + ("" if math.isclose(half, 0, abs_tol=1e-9) else f" ±{half:.3f}")
