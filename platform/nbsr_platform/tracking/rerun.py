"""A recorded trial's study file, written where it can be run: from its result here, or from what MLflow has of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from nbsr_core.errors import InputError
from nbsr_platform.study.study import Study, read_study
from nbsr_platform.study.yaml_file import Document, parse, text_of
from nbsr_platform.tracking.lookup import RUN_ID, find_trial, key_of_run
from nbsr_platform.tracking.names import STUDY_FILE
from nbsr_platform.tracking.store import TrackingStore
from nbsr_platform.trials.as_study import study_text
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.stored_trial import domain_of, named_domain, trial_of


def write_study(home: Home, what: str, tracking_uri: str | None = None, code: Path | None = None) -> Path:
    """Write the study file of the trial that is meant, and say where; what it says is checked before that.

    It goes to the home, where it is read without code of its own, or to the folder `code`, beside the modules there.

    Args:
        home: the store with the results.
        what: an MLflow run of a trial, whatever became of it, or the key of a finished trial.
        tracking_uri: MLflow's address for run ids; the store's own by default.
        code: folder with modules that the trial names, where they are not installed.
    """
    text = _recorded_text(home, what, tracking_uri)
    if text is not None:
        study = recorded_study(text, what, code)
    else:
        result = ResultStore(home.trials).load(find_trial(home, what, tracking_uri))
        domain_of(result, code)
        text = study_text(trial_of(result, code))
        study = read_study(parse(text, f"trial {what}"), _file_in(code))
    folder = home.studies if code is None else code
    path = folder / f"{study.name}.yaml"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:  # never through a link to elsewhere
            file.write(text)
    except FileExistsError:
        raise InputError(
            f"{path} is there and says something else than trial {what} does; run it as it is (`nbsr run {path}`), or "
            "move it away"
        ) from None
    return path


def recorded_study(text: str, run_id: str, code: Path | None) -> Study:
    """The study of a file that a run in MLflow has; all of it is checked, as if a person had written it."""
    who = f"{STUDY_FILE} of run {run_id}"
    document: Document = parse(text, who)
    name = document.value.get("domain") if isinstance(document.value, dict) else None
    if isinstance(name, str):
        named_domain(who, name, code)
    return read_study(document, _file_in(code))


def _file_in(code: Path | None) -> Path | None:
    """A study file as it would stand in the folder that the user named."""
    return None if code is None else code.absolute() / STUDY_FILE


def _recorded_text(home: Home, what: str, tracking_uri: str | None) -> str | None:
    """What MLflow has of a trial whose result is not here: one that was pruned, failed, or ran elsewhere."""
    if not RUN_ID.fullmatch(what):
        return None
    tracking, key = key_of_run(home, what, tracking_uri)
    return None if ResultStore(home.trials).has(key) else study_file(tracking, what)


def study_file(tracking: TrackingStore, run_id: str) -> str | None:
    """The study file that a run in MLflow has among its artifacts: a study's own, or that of a trial."""
    if not any(item.path == STUDY_FILE for item in tracking.call("list_artifacts", run_id)):
        return None
    with tempfile.TemporaryDirectory(prefix="nbsr-") as place:
        found = Path(tracking.call("download_artifacts", run_id, STUDY_FILE, place))
        return text_of(found, f"{STUDY_FILE} of run {run_id}")
