"""Which trial is meant by those who name a study and a model: the first seed of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from nbsr_core.errors import InputError
from nbsr_platform.inspect.listing import listing
from nbsr_platform.study.problems import did_you_mean
from nbsr_platform.study.shipped import SUFFIXES, is_shipped
from nbsr_platform.study.study import Study, load
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid


def named_trial(home: Home, what: str, model: str | None) -> str:
    """The key of a trial, where `what` is a study file or the name of a study in the home; `what` itself otherwise.

    Args:
        home: the store.
        what: as a person names it.
        model: its label in the study; the only NBSR of the study if None.
    """
    path = Path(what)
    if path.suffix in SUFFIXES or is_shipped(what):
        return _of_file(home, path, model)
    keys = ResultStore(home.trials).keys()
    if model is None and any(key.startswith(what) for key in keys):
        return what
    studies = {study.name: study for study in listing(home)}
    if what not in studies:
        if model is not None:
            listing(home, what)  # says which there are
        return what
    finished = [trial for trial in studies[what].trials if trial.state == "finished" and trial.model is not None]
    label = model or _only_walker(home, (trial.key for trial in finished), what)
    _check_label(label, sorted({str(trial.model) for trial in finished}), what)
    return next(trial.key for trial in finished if trial.model == label)


def _of_file(home: Home, path: Path, model: str | None) -> str:
    found = load(path)
    studies = found.studies
    fitting = [study for study in studies if model is None or model in study.models]
    if not fitting:
        _check_label(str(model), sorted({label for study in studies for label in study.models}), str(path))
    study = fitting[0]
    walkers = [label for label, choice in study.models.items() if choice.family == "nbsr"]
    if study.search is not None:
        return _best_of_search(home, study)
    label = model or _one_of(walkers, sorted(study.models), str(path))
    trials = [trial for trial in grid(study, data_fingerprint(study)) if trial.label == label]
    store = ResultStore(home.trials)
    key = next((trial.key for trial in trials if store.has(trial.key)), None)
    if key is None:
        raise InputError(
            f"no trial of {label!r} of {path}, as its file, data and code are now, is stored in {home.root}; "
            f"`nbsr run {path}` runs it"
        )
    return key


def _best_of_search(home: Home, study: Study) -> str:
    """The first member of the Pareto set."""
    from nbsr_platform.report.find import of_study

    study_results = of_study(home, study)
    members: list[Trial] = [trial for trial, _ in study_results.finished if trial.proposal in study_results.pareto]
    return min(members, key=lambda trial: (trial.proposal or 0, trial.seed)).key


def _only_walker(home: Home, keys: Iterable[str], what: str) -> str:
    store, families = ResultStore(home.trials), dict[str, str]()
    for key in keys:
        trial = store.load(key).trial
        families[str(trial["label"])] = str(trial["family"])
    return _one_of([label for label, family in families.items() if family == "nbsr"], sorted(families), what)


def _one_of(walkers: Sequence[str], labels: Sequence[str], what: str) -> str:
    if len(walkers) != 1:
        raise InputError(f"{what} has the models {', '.join(labels)}: say which one with --model")
    return walkers[0]


def _check_label(label: str, labels: Sequence[str], what: str) -> None:
    if label not in labels:
        known = ", ".join(labels) or "none that are finished"
        hint = did_you_mean(label, labels)
        raise InputError(f"{what} has no model {label!r}; {hint + ' ' if hint else ''}its models: {known}")
