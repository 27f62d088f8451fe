"""Points that earlier searches found, with which a new one begins.

Only points are taken over, never their figures: those were measured with other options, seeds or data, and the new
search measures them itself. Where a point means the very same trial, its result is in the store and costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import optuna
from optuna.storages import BaseStorage

from nbsr_core.errors import InputError
from nbsr_platform.search.journal import KEY_ATTRIBUTE
from nbsr_platform.search.proposals import Proposal, promising
from nbsr_platform.search.storage import open_for_reading
from nbsr_platform.study.search_options import Search
from nbsr_platform.study.space import Assignment
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore

OF_A_SEARCH = re.compile(r"(?P<name>.+)-[0-9a-f]{12}")


@dataclass(frozen=True)
class TakenOver:
    """Points to begin with, and in words where they come from and what was left out."""

    points: list[Assignment]
    notes: list[str]


def taken_over(study: Study, search: Search, home: Home, url: str | None = None) -> TakenOver:
    """What `search.warm_start` names, as points of this search's space; what cannot be used is a note, and no error."""
    store, found = ResultStore(home.trials), TakenOver([], [])
    for source in search.warm_start:
        points, left_out = [], []
        keys = [source] if store.has(source) else list(_best_of(source, search.promising, home, url))
        for key in keys:
            try:
                points.append(_point(key, study, search, store))
            except InputError as error:
                left_out.append(str(error))
        new = [point for index, point in enumerate(points) if point not in (*found.points, *points[:index])]
        found.points.extend(new)
        said = f"warm start from {source}: {_count(len(new))} to try first"
        if not keys:
            said = f"warm start from {source}: {home.root} has neither a finished search nor a trial of that name"
        found.notes.append(said + "".join(f"; left out: {reason}" for reason in dict.fromkeys(left_out)))
    return found


def _count(points: int) -> str:
    return f"{points} point{'' if points == 1 else 's'}"


def _best_of(name: str, most: int, home: Home, url: str | None) -> Iterator[str]:
    """Keys of the trials that stand for the Pareto sets of all searches of a name."""
    for search in _searches(name, home, url):
        members = [
            Proposal(trial.number, trial.state.name, trial.params, trial.values, str(trial.user_attrs[KEY_ATTRIBUTE]))
            for trial in search.best_trials
            if KEY_ATTRIBUTE in trial.user_attrs
        ]
        directions = [direction.name.lower() for direction in search.directions]
        yield from (member.key for member in promising(members, directions, most))


def _searches(name: str, home: Home, url: str | None) -> Iterator[optuna.Study]:
    if url is None:
        stored = sorted(journal.stem for journal in home.search_journal(name).parent.glob("*.journal"))
    else:
        storage = open_for_reading(home, name, url)
        stored = [] if storage is None else sorted(optuna.get_all_study_names(storage))
    for known in stored:
        if (found := OF_A_SEARCH.fullmatch(known)) and found["name"] == name:
            storage = open_for_reading(home, known, url)
            if storage is not None and _has(storage, known):
                yield optuna.load_study(study_name=known, storage=storage)


def _has(storage: BaseStorage, name: str) -> bool:
    return name in optuna.get_all_study_names(storage)


def _point(key: str, study: Study, search: Search, store: ResultStore) -> Assignment:
    """A stored trial as a point of the search's space."""
    if not store.has(key):
        raise InputError(f"trial {key} is not in the store")
    trial, choice = store.load(key).trial, study.models[search.model]
    for what, wanted in {"domain": study.domain, "kind": choice.kind}.items():
        if trial[what] != wanted:
            raise InputError(f"trial {key} is of {what} {trial[what]!r}, not {wanted!r}")
    return search.space.point(trial["options"], trial["training"])
