"""Everything that is recorded in MLflow: a run a study, below it a run a trial, each exactly once.

A recording may be cut off anywhere by a kill, and is simply repeated: a run is found by the key of its trial, only what
is missing is written, and the run is closed last: a closed run is a whole run. One process at a time records a study.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nbsr_core.errors import InputError
from nbsr_platform.artifacts import write_artifacts
from nbsr_platform.from_trial import study_text
from nbsr_platform.paths import Home
from nbsr_platform.results import TrialResult
from nbsr_platform.sqlite_address import sqlite_file
from nbsr_platform.store import ResultStore
from nbsr_platform.tracking_names import (
    PARETO,
    STUDY_FILE,
    Figures,
    experiment_name,
    metric_name,
    trial_figures,
    trial_parameters,
    trial_tags,
)
from nbsr_platform.tracking_store import PATIENCE, TrackingError, TrackingStore

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from nbsr_platform.paper import Paper
    from nbsr_platform.trial import Trial

PARENT = "mlflow.parentRunId"
# MLflow's limits for one call.
MOST_METRICS, MOST_PARAMETERS, MOST_ENTITIES, PAGE = 1000, 100, 1000, 500


class StudyLike(Protocol):
    """What tracking needs to know of a study."""

    @property
    def name(self) -> str: ...

    @property
    def question(self) -> str | None: ...

    @property
    def domain(self) -> str: ...

    @property
    def paper(self) -> Paper | None: ...

    def to_yaml(self) -> str: ...


@dataclass(frozen=True)
class Recorded:
    """A trial's run; `status` is that of the result it holds in full, None while it is not complete."""

    run_id: str
    status: str | None
    artifacts: bool
    pareto: bool = False


class Tracker:
    """Writes studies and trials into an MLflow store.

    Args:
        uri: MLflow tracking URI: a sqlite file, a server or a database.
        artifact_root: folder for artifacts of new experiments where no server decides; beside the sqlite file if None.
        patience: seconds for which every call waits for a store that does not answer (a server that restarts).
    """

    def __init__(self, uri: str, artifact_root: Path | None = None, *, patience: float = PATIENCE) -> None:
        self.store = TrackingStore(uri, patience)
        file = sqlite_file(self.store.uri)
        if artifact_root is None and file is not None:
            artifact_root = file.parent / "artifacts"
        self.artifact_root = artifact_root if self.store.is_database else None
        self._experiments: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        self._children: dict[str, dict[str, Recorded]] = {}

    @staticmethod
    def open(home: Home, uri: str | None = None, *, patience: float = PATIENCE) -> Tracker:
        """The store at `uri`, or the home's own; where we write to a database ourselves, artifacts go to the home."""
        tracker = Tracker(home.tracking_uri if uri is None else uri, home.artifacts, patience=patience)
        if tracker.artifact_root is not None:
            try:
                tracker.artifact_root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot keep artifacts in {home.artifacts}: {error.strerror}") from None
        return tracker

    @property
    def client(self) -> MlflowClient:
        """MLflow's own client, for reading; what is written goes through the methods here."""
        return self.store.client

    @property
    def public_uri(self) -> str:
        """Where the store is, without password."""
        return self.store.public_uri

    def study_run(self, study: StudyLike, key: str) -> str:
        """The run of a study, found by its key or made, and open again; returns its id."""
        experiment = self._experiment(experiment_name(study.domain))
        tags = {
            "nbsr.role": "study",
            "nbsr.study": study.name,
            "nbsr.study_key": key,
            "nbsr.domain": study.domain,
            "mlflow.note.content": study.question or "",
            **({} if study.paper is None else study.paper.tags()),
        }
        condition = f"tags.`nbsr.study_key` = '{key}' and tags.`nbsr.role` = 'study'"

        def existing() -> Any:
            return next(self._search(experiment, condition), None)

        run = existing() or self.store.call("create_run", experiment, tags=tags, run_name=study.name, recover=existing)
        run_id = str(run.info.run_id)
        if run.info.status != "RUNNING" or run.info.run_name != study.name:
            self.store.call("update_run", run_id, status="RUNNING", name=study.name)
        changed = {name: value for name, value in tags.items() if run.data.tags.get(name) != value}
        if changed:
            self._log(run_id, {}, {}, changed, run.info.start_time)
        self.store.call("log_text", run_id, study.to_yaml(), STUDY_FILE)
        self._parents[run_id] = experiment
        self._children[run_id] = self._recorded_under(run_id)
        return run_id

    def record(
        self, parent_id: str, trial: Trial, result: TrialResult, store: ResultStore | None, with_artifacts: bool
    ) -> str:
        """Record a trial under its study, unless that was done; goes on where an earlier attempt was cut off.

        A trial that failed or was pruned before and is finished now takes over its run.

        Args:
            parent_id: what `study_run` returned.
            trial: what was run.
            result: what it gave.
            store: where the learned state is, for the model; None records no model.
            with_artifacts: whether to record tables, pictures and the model too.

        Returns:
            The id of the trial's run.
        """
        experiment, known = self._experiment_of(parent_id), self._known(parent_id)
        earlier = known.get(trial.key)
        if earlier is not None and earlier.status in ("finished", result.status):
            return earlier.run_id
        tags = {**trial_tags(trial, result), PARENT: parent_id}
        parameters, figures = trial_parameters(trial, result), trial_figures(result)
        if earlier is None:
            run = self._create(experiment, trial, result, tags)
            late_tags: dict[str, str] = {}
        else:
            run = self.store.call("get_run", earlier.run_id)
            logged = self._logged_points(run, figures)
            figures = {at: value for at, value in figures.items() if at not in logged}
            parameters = {name: value for name, value in parameters.items() if name not in run.data.params}
            late_tags = tags
            if "nbsr.error" in run.data.tags and result.error is None:
                self.store.call("delete_tag", earlier.run_id, "nbsr.error")
        run_id, started = str(run.info.run_id), int(run.info.start_time)
        if result.error is not None:
            self.store.call("log_text", run_id, result.error, "error.txt")
        if with_artifacts and result.status == "finished":
            self._log_artifacts(run_id, trial, result, store)
            late_tags = {**late_tags, "nbsr.artifacts": "true"}
        else:
            self.store.call("log_text", run_id, study_text(trial), STUDY_FILE)
        self._log(run_id, figures, parameters, late_tags, started)
        status = "FAILED" if result.status == "failed" else "FINISHED"
        self.store.call("set_terminated", run_id, status, started + round(result.seconds * 1000))
        known[trial.key] = Recorded(run_id, result.status, with_artifacts)
        return run_id

    def record_member(
        self, parent_id: str, trial: Trial, result: TrialResult, store: ResultStore | None, with_artifacts: bool = True
    ) -> str:
        """Mark a trial as a member of its search's Pareto set, unless that was done.

        The trial is recorded first where that was not done. With `with_artifacts` tables, pictures and the model are
        added to its run; drawing them takes seconds, so that is for the members that stand for the others.
        """
        run_id = self.record(parent_id, trial, result, store, with_artifacts=with_artifacts)
        known = self._known(parent_id)
        if not known[trial.key].pareto:
            self.store.call("set_tag", run_id, PARETO, "true")
            known[trial.key] = replace(known[trial.key], pareto=True)
        if with_artifacts and not known[trial.key].artifacts and result.status == "finished":
            self._log_artifacts(run_id, trial, result, store)
            self.store.call("set_tag", run_id, "nbsr.artifacts", "true")
            known[trial.key] = replace(known[trial.key], artifacts=True)
        return run_id

    def finish_study(
        self, parent_id: str, summary: Mapping[str, float], status: str, report: Path | None = None
    ) -> None:
        """Close a study's run with its means and intervals; figures that did not change are not logged again."""
        before = self.store.call("get_run", parent_id)
        figures = {
            (metric_name(name), 0): value
            for name, value in summary.items()
            if math.isfinite(value) and before.data.metrics.get(metric_name(name)) != value
        }
        now = _now()
        self._log(parent_id, figures, {}, {}, now)
        if report is not None:
            self.store.call("log_artifact", parent_id, str(report))
        self.store.call("set_terminated", parent_id, status.upper(), now)

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            found = self.store.call("get_experiment_by_name", name)
            if found is None:
                place = None if self.artifact_root is None else (self.artifact_root / name).absolute().as_uri()
                try:
                    self.store.call("create_experiment", name, artifact_location=place)
                except TrackingError as error:
                    if error.code != "RESOURCE_ALREADY_EXISTS":
                        raise
                found = self.store.call("get_experiment_by_name", name)
            elif found.lifecycle_stage == "deleted":
                self.store.call("restore_experiment", found.experiment_id)
            self._experiments[name] = found.experiment_id
        return self._experiments[name]

    def _experiment_of(self, parent_id: str) -> str:
        if parent_id not in self._parents:
            self._parents[parent_id] = self.store.call("get_run", parent_id).info.experiment_id
        return self._parents[parent_id]

    def _known(self, parent_id: str) -> dict[str, Recorded]:
        """The study's trials by key; asked of the store once: a search for each would cost a fifth more."""
        if parent_id not in self._children:
            self._children[parent_id] = self._recorded_under(parent_id)
        return self._children[parent_id]

    def _recorded_under(self, parent_id: str) -> dict[str, Recorded]:
        known = {}
        for run in self._search(self._experiment_of(parent_id), f"tags.`{PARENT}` = '{parent_id}'"):
            tags, complete = run.data.tags, run.info.status in ("FINISHED", "FAILED")
            status = tags.get("nbsr.status") if complete else None
            known[tags.get("nbsr.trial_key", "")] = Recorded(
                run.info.run_id, status, "nbsr.artifacts" in tags, PARETO in tags
            )
        return known

    def _search(self, experiment: str, condition: str) -> Iterator[Any]:
        token: str | None = None
        while True:
            page = self.store.call(
                "search_runs", [experiment], filter_string=condition, max_results=PAGE, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _create(self, experiment: str, trial: Trial, result: TrialResult, tags: dict[str, str]) -> Any:
        condition = f"tags.`nbsr.trial_key` = '{trial.key}' and tags.`{PARENT}` = '{tags[PARENT]}'"
        began = _now() - round(result.seconds * 1000)

        def existing() -> Any:
            return next(self._search(experiment, condition), None)

        try:
            return self.store.call("create_run", experiment, began, tags, run_name=trial.name, recover=existing)
        except TrackingError:
            del self._children[tags[PARENT]]  # it may have been made all the same: whoever tries again has to look
            raise

    def _logged_points(self, run: Any, figures: Figures) -> set[tuple[str, int]]:
        """Which of these (metric, step) pairs a run has already."""
        names = {name for name, _ in figures} & run.data.metrics.keys()
        histories = {name: self.store.call("get_metric_history", run.info.run_id, name) for name in names}
        return {(name, point.step) for name, history in histories.items() for point in history}

    def _log(
        self, run_id: str, figures: Figures, parameters: Mapping[str, str], tags: Mapping[str, str], started: int
    ) -> None:
        """In as few calls as the limits allow. Equal figures get equal times, which makes repetitions harmless."""
        from mlflow.entities import Metric, Param, RunTag

        metrics = iter([Metric(name, value, started + step, step) for (name, step), value in figures.items()])
        params = iter([Param(name, value) for name, value in parameters.items()])
        labels = [RunTag(name, value) for name, value in tags.items()]
        while True:
            some = list(islice(params, MOST_PARAMETERS))
            room = min(MOST_METRICS, MOST_ENTITIES - len(some) - len(labels))
            batch = list(islice(metrics, room))
            if not (some or batch or labels):
                return
            self.store.call("log_batch", run_id, metrics=batch, params=some, tags=labels)
            labels = []

    def _log_artifacts(self, run_id: str, trial: Trial, result: TrialResult, store: ResultStore | None) -> None:
        from nbsr_platform.serving import ModelConfig, save_model

        with tempfile.TemporaryDirectory(prefix="nbsr-") as name:
            folder = Path(name)
            write_artifacts(folder, trial, result)
            (folder / STUDY_FILE).write_text(study_text(trial), encoding="utf-8")
            state = None if store is None else store.load_state(trial.key)
            if state is not None:
                save_model(folder / "model", ModelConfig.of(trial, result), state)
            self.store.call("log_artifacts", run_id, str(folder))


def _now() -> int:
    return int(time.time() * 1000)
