"""From what a person names (a study file, a run in MLflow, a trial) to the stored results of a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbsr_core.errors import InputError
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.study.problems import Problems
from nbsr_platform.study.shipped import SUFFIXES, is_shipped
from nbsr_platform.study.study import Study, load, read_study
from nbsr_platform.study.yaml_file import Document, parse
from nbsr_platform.tracking.lookup import RUN_ID, find_trial, stored_run
from nbsr_platform.tracking.rerun import recorded_study, study_file
from nbsr_platform.tracking.store import TrackingStore
from nbsr_platform.trials.as_study import study_values
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.stored_trial import checked_key, domain_of, trial_of
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid


def find(
    home: Home,
    what: str,
    *,
    overrides: Sequence[str] = (),
    tracking_uri: str | None = None,
    search_storage: str | None = None,
    code: Path | None = None,
) -> list[StudyResults]:
    """The studies that are meant: one, or those of a collection.

    Args:
        home: the store with the results.
        what: a study file, an MLflow run of a study or of a trial, or a trial's key.
        overrides: `key=value` on top of a study file, as when it was run.
        tracking_uri: MLflow's address for run ids; the store's own by default.
        search_storage: database URL of searches; a journal file in the home by default.
        code: folder with the module of a trial's domain, where that is not installed.
    """
    if RUN_ID.fullmatch(what):
        return [_of_run(home, what, tracking_uri, search_storage, code)]
    path = Path(what)
    if path.suffix in SUFFIXES or path.exists() or is_shipped(what):
        found = load(path, overrides)
        return [of_study(home, study, search_storage) for study in found.studies]
    return [_of_trials(home, [find_trial(home, what, tracking_uri)], code)]


def of_study(home: Home, study: Study, search_storage: str | None = None) -> StudyResults:
    """What is stored of a study as its file is now, with the code as it is now."""
    store, fingerprint = ResultStore(home.trials), data_fingerprint(study)
    command = study.command
    if study.search is not None:
        searched = _of_search(home, study, study_key(study, fingerprint), fingerprint, search_storage, command)
        if searched is None:
            raise InputError(_nothing(study, home, command))
        return searched
    trials = grid(study, fingerprint)
    finished = [(trial, store.load(trial.key)) for trial in trials if store.has(trial.key)]
    if not finished:
        raise InputError(_nothing(study, home, command))
    return StudyResults(study, finished, wanted=len(trials), command=command)


def _of_search(
    home: Home, study: Study, key: str, fingerprint: str, search_storage: str | None, command: str
) -> StudyResults | None:
    """A search with its proposals, and what its promising members gave with further seeds; None where it is not here.

    Key and fingerprint are those of the study as it was when it ran.
    """
    from nbsr_platform.search.record import SearchRecord

    assert study.search is not None
    store, found = ResultStore(home.trials), SearchRecord.read(study, key, home, search_storage)
    if found is None:
        return None
    counted = [(trial, found.counted(result)) for trial, result in found.ended()]
    ended = [(trial, result) for trial, result in counted if result.status == "finished"]
    again = [] if found.remaining else found.repeats(trial for trial, _ in ended)
    return StudyResults(
        study,
        ended + [(trial, store.load(trial.key)) for trial in again if store.has(trial.key)],
        [(trial.name, result.last_words) for trial, result in counted if result.status == "failed"],
        wanted=max(study.search.trials, found.asked) + len(again),
        proposals=found.proposals(),
        pareto=found.pareto(),
        command=command,
    )


def _nothing(study: Study, home: Home, command: str) -> str:
    return (
        f"no trial of {study.name!r}, as its file, data and code are now, is stored in {home.root}; "
        f"`{command}` runs it, or name the MLflow run of an earlier one"
    )


def _of_run(
    home: Home, run_id: str, tracking_uri: str | None, search_storage: str | None, code: Path | None
) -> StudyResults:
    """A run in MLflow: of one trial, or of a whole study as it was when it ran."""
    tracking, run = stored_run(home, run_id, tracking_uri)
    if "nbsr.trial_key" in run.data.tags:
        return _of_trials(home, [find_trial(home, run_id, tracking_uri)], code)
    searched = _of_recorded_search(home, tracking, run, search_storage, code)
    if searched is not None:
        return searched
    keys, token = [], None
    while True:
        condition = f"tags.`mlflow.parentRunId` = '{run_id}' and tags.`nbsr.status` = 'finished'"
        page = tracking.call("search_runs", [run.info.experiment_id], condition, max_results=500, page_token=token)
        keys += [_key(child) for child in page]
        token = page.token
        if not token:
            tags = run.data.tags
            return _of_trials(home, keys, code, tags.get("nbsr.study"), tags.get("mlflow.note.content"))


def _key(run: Any) -> str:
    """The key of the trial that a run is of."""
    return checked_key(run.data.tags.get("nbsr.trial_key"), f"run {run.info.run_id}")


def _of_recorded_search(
    home: Home, tracking: TrackingStore, run: Any, search_storage: str | None, code: Path | None
) -> StudyResults | None:
    """A search as its own run describes it; None where the run is of something else, or its proposals are not here."""
    text, tags = study_file(tracking, run.info.run_id), run.data.tags
    values = None if text is None else parse(text, "").value
    if text is None or "nbsr.study_key" not in tags or not isinstance(values, dict) or "search" not in values:
        return None
    study_key = checked_key(tags["nbsr.study_key"], f"run {run.info.run_id}")
    first = tracking.call(
        "search_runs",
        [run.info.experiment_id],
        f"tags.`mlflow.parentRunId` = '{run.info.run_id}' and tags.`nbsr.status` = 'finished'",
        max_results=1,
    )
    store, keys = ResultStore(home.trials), [_key(child) for child in first]
    results = [store.load(key) for key in keys if store.has(key)]
    if not results:
        return None
    domain_of(results[0], code)
    study = recorded_study(text, run.info.run_id, code)
    command = f"nbsr run {study.name}.yaml  # with the study file below"
    fingerprint = trial_of(results[0]).data_fingerprint
    return _of_search(home, study, study_key, fingerprint, search_storage, command)


def _of_trials(
    home: Home, keys: Sequence[str], code: Path | None, study: str | None = None, question: str | None = None
) -> StudyResults:
    """Stored trials, whatever study they came from: their own descriptions say how they were made."""
    store = ResultStore(home.trials)
    known = [(trial_of(result, code), result) for result in (store.load(key) for key in keys if store.has(key))]
    if not known:
        raise InputError(f"none of these trials is stored in {home.trials}: {', '.join(keys) or 'no trial'}")
    trials = [trial for trial, _ in known]
    domain_of(known[0][1], code)
    return StudyResults(
        _described(trials, study or trials[0].study, question, code),
        known,
        wanted=len(keys),
        command=f"nbsr run {trials[0].study}.yaml  # with the study file below",
    )


def _described(trials: Sequence[Trial], name: str, question: str | None, code: Path | None) -> Study:
    """A study that would run these trials."""
    place = None if code is None else code.absolute() / "study.yaml"
    return read_study(Document(study_values(trials, name, question), Problems(f"trials of {name}")), place)
