"""Which trial is meant: by its key, the beginning of one, or the id of its run in MLflow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from nbsr_core.errors import InputError
from nbsr_platform.base.credentials import masked
from nbsr_platform.base.sqlite_address import sqlite_file
from nbsr_platform.tracking.names import PARETO
from nbsr_platform.tracking.store import TrackingError, TrackingStore
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.stored_trial import checked_key, trial_of
from nbsr_platform.trials.trial import Trial

RUN_ID = re.compile(r"[0-9a-f]{32}")
MOST_LISTED = 8


def find_trial(home: Home, what: str, tracking_uri: str | None = None) -> str:
    """The key of the finished trial that is meant."""
    store = ResultStore(home.trials)
    if RUN_ID.fullmatch(what):
        _, key = key_of_run(home, what, tracking_uri)
        if not store.folder(key).is_dir():
            raise InputError(
                f"run {what} is trial {key}, which is not among the finished trials in {home.trials}; "
                "name the home of whoever ran it, or run its study here"
            )
        return key
    keys = store.keys()
    matches = [key for key in keys if what and key.startswith(what)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"{what!r} is the beginning of {len(matches)} trials: {_listed(store, matches)}")
    known = _listed(store, keys) if keys else "none yet; `nbsr run STUDY` makes some"
    raise InputError(f"no trial {what!r} in {home.trials}; give a trial's key or MLflow run id. Trials: {known}")


def named_trials(store: ResultStore, keys: Iterable[str]) -> Iterator[tuple[str, Trial]]:
    """Trials to list in a message; what cannot be read is left out of it."""
    for key in keys:
        with suppress(InputError):
            yield key, trial_of(store.load(key))


def _listed(store: ResultStore, keys: Sequence[str]) -> str:
    more = f" and {len(keys) - MOST_LISTED} more" if len(keys) > MOST_LISTED else ""
    return (
        ", ".join(f"{key} ({trial.study}: {trial.name})" for key, trial in named_trials(store, keys[:MOST_LISTED]))
        + more
    )


def stored_run(home: Home, run_id: str, tracking_uri: str | None) -> tuple[TrackingStore, Any]:
    """A run in MLflow by its id, with the store that it is in; never makes a store."""
    uri = tracking_uri or home.tracking_uri
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise InputError(f"no run {run_id}: there is no tracking store {masked(uri)}")
    tracking = TrackingStore(uri)
    try:
        return tracking, tracking.call("get_run", run_id)
    except TrackingError as error:
        if error.code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise InputError(f"no run {run_id} in {tracking.public_uri}") from None


def key_of_run(home: Home, run_id: str, tracking_uri: str | None) -> tuple[TrackingStore, str]:
    """The key of the trial that a run in MLflow is of, and the store that it is in."""
    tracking, run = stored_run(home, run_id, tracking_uri)
    key = run.data.tags.get("nbsr.trial_key")
    if key is not None:
        return tracking, checked_key(key, f"run {run_id}")
    below, members = f"tags.`mlflow.parentRunId` = '{run_id}'", f"tags.`{PARETO}` = 'true'"
    for condition, which in ((f"{below} and {members}", "members of its Pareto set"), (below, "trials")):
        found = tracking.call("search_runs", [run.info.experiment_id], condition, max_results=MOST_LISTED + 1)
        if found:
            named = ", ".join(f"{child.info.run_id} ({child.info.run_name})" for child in found[:MOST_LISTED])
            more = " and more" if len(found) > MOST_LISTED else ""
            raise InputError(
                f"run {run_id} ({run.info.run_name}) is a whole study; name one of the {which}: {named}{more}"
            )
    raise InputError(f"run {run_id} ({run.info.run_name}) is not a trial's: it has no tag nbsr.trial_key")
