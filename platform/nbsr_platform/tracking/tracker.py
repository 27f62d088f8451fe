"""Everything that is recorded in MLflow: a run per study, below it a run per trial, each exactly once.

A recording may be cut off anywhere by a kill, and is simply repeated: a run is found by the key of its trial, only what
is missing is written, and the run is closed last: a closed run is a whole run. One process at a time records a study.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nbsr_core.errors import InputError
from nbsr_platform.base import plain_json
from nbsr_platform.base.sqlite_address import sqlite_file
from nbsr_platform.tracking.artifacts import write_artifacts
from nbsr_platform.tracking.names import (
    FIGURES_FILE,
    PARETO,
    STUDY_FILE,
    Figures,
    epoch_figures,
    experiment_name,
    metric_name,
    short_name,
    trial_figures,
    trial_parameters,
    trial_tags,
)
from nbsr_platform.tracking.store import PATIENCE, TrackingError, TrackingStore
from nbsr_platform.trials.as_study import study_text
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from nbsr_platform.study.paper import Paper
    from nbsr_platform.trials.trial import Trial

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


@dataclass
class OpenRun:
    """A trial's run that is being written: when it began, and what it has of figures and parameters."""

    started: int
    points: set[tuple[str, int]] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)


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
        self._open: dict[str, OpenRun] = {}  # by run

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
        known = self._known(parent_id)
        earlier = known.get(trial.key)
        if earlier is not None and earlier.status in ("finished", result.status):
            return earlier.run_id
        tags = {**trial_tags(trial, result), PARENT: parent_id}
        if earlier is None:
            run_id = self._create(parent_id, trial, tags, round(result.seconds * 1000))
        else:
            run_id = earlier.run_id
            self._take_up(run_id)
        of_run = self._open[run_id]
        figures = {at: value for at, value in trial_figures(result).items() if at not in of_run.points}
        late_tags = {} if earlier is None else tags
        if result.error is not None:
            self.store.call("log_text", run_id, result.error, "error.txt")
        if with_artifacts and result.status == "finished":
            self._log_artifacts(run_id, trial, result, store)
            late_tags = {**late_tags, "nbsr.artifacts": "true"}
        else:
            self.store.call("log_text", run_id, study_text(trial), STUDY_FILE)
        self._log_more(run_id, figures, trial_parameters(trial, result), late_tags)
        self._log_data(run_id, trial, result)
        status = "FAILED" if result.status == "failed" else "FINISHED"
        self.store.call("set_terminated", run_id, status, of_run.started + round(result.seconds * 1000))
        known[trial.key] = Recorded(run_id, result.status, with_artifacts)
        self._open.pop(run_id, None)
        return run_id

    def begin(self, parent_id: str, trial: Trial, epochs: Sequence[Mapping[str, float]] = ()) -> str:
        """Record that a trial is under way, and epochs of it; those that its run has are not written again.

        What is written here is part of what `record` writes: whoever is killed on the way leaves a run that the next
        one goes on with.
        """
        known = self._known(parent_id)
        earlier = known.get(trial.key)
        if earlier is not None and earlier.status == "finished":
            return earlier.run_id
        tags = {**trial_tags(trial, None), PARENT: parent_id}
        if earlier is None:
            run_id = self._create(parent_id, trial, tags)
        else:
            run_id = earlier.run_id
            if run_id not in self._open:
                self._take_up(run_id)
                self.store.call("update_run", run_id, status="RUNNING")
                self._log(run_id, {}, {}, tags, 0)
            known[trial.key] = replace(earlier, status=None)
        points = self._open[run_id].points
        figures = {at: value for at, value in epoch_figures(epochs).items() if at not in points}
        self._log_more(run_id, figures, trial_parameters(trial, None))
        return run_id

    def leave(self, parent_id: str) -> None:
        """Close the runs of trials that were begun and that nobody goes on with; the next run opens them again."""
        for recorded in self._known(parent_id).values():
            if recorded.run_id in self._open:
                self.store.call("set_terminated", recorded.run_id, "KILLED")
                del self._open[recorded.run_id]

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

    def unmark_members(self, parent_id: str, except_for: Collection[str]) -> None:
        """Take the mark of the Pareto set from trials that have left it: a search that grew has found better ones."""
        known = self._known(parent_id)
        for key, recorded in list(known.items()):
            if recorded.pareto and key not in except_for:
                self.store.call("set_tag", recorded.run_id, PARETO, "false")
                known[key] = replace(recorded, pareto=False)

    def finish_study(
        self,
        parent_id: str,
        summary: Mapping[str, float],
        status: str,
        report: Path | None = None,
        table: str | None = None,
    ) -> None:
        """Close a study's run with the figures that people compare; those that did not change are not logged again.

        Args:
            parent_id: what `study_run` returned.
            summary: the few that its page shows.
            status: `FINISHED` or `FAILED`.
            report: an HTML page to keep with it.
            table: all figures as CSV, to keep with it.
        """
        before = self.store.call("get_run", parent_id)
        figures = {
            (metric_name(name), 0): value
            for name, value in summary.items()
            if math.isfinite(value) and before.data.metrics.get(metric_name(name)) != value
        }
        now = _now()
        self._log(parent_id, figures, {}, {}, now)
        if table is not None:
            self.store.call("log_text", parent_id, table, FIGURES_FILE)
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
                run.info.run_id, status, "nbsr.artifacts" in tags, tags.get(PARETO) == "true"
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

    def _create(self, parent_id: str, trial: Trial, tags: dict[str, str], ago: int = 0) -> str:
        """A trial's run that began so many milliseconds ago; nothing is in it yet."""
        experiment = self._experiment_of(parent_id)
        condition = f"tags.`nbsr.trial_key` = '{trial.key}' and tags.`{PARENT}` = '{parent_id}'"

        def existing() -> Any:
            return next(self._search(experiment, condition), None)

        try:
            run = self.store.call("create_run", experiment, _now() - ago, tags, run_name=trial.name, recover=existing)
        except TrackingError:
            del self._children[parent_id]  # it may have been made all the same: whoever tries again has to look
            raise
        run_id = str(run.info.run_id)
        self._open[run_id] = OpenRun(int(run.info.start_time))
        self._known(parent_id)[trial.key] = Recorded(run_id, None, artifacts=False)
        return run_id

    def _take_up(self, run_id: str) -> None:
        """Go on with a run that an earlier attempt began."""
        if run_id in self._open:
            return
        run = self.store.call("get_run", run_id)
        self._open[run_id] = OpenRun(int(run.info.start_time), self._logged_points(run), set(run.data.params))
        if "nbsr.error" in run.data.tags:  # whoever fails again says why again
            self.store.call("delete_tag", run_id, "nbsr.error")

    def _log_more(
        self, run_id: str, figures: Figures, parameters: Mapping[str, str], tags: Mapping[str, str] | None = None
    ) -> None:
        """Add to an open run; what it has of parameters is left as it is."""
        of_run = self._open[run_id]
        new = {name: value for name, value in parameters.items() if name not in of_run.parameters}
        try:
            self._log(run_id, figures, new, tags or {}, of_run.started)
        except BaseException:
            del self._open[run_id]  # some of it may have been written: whoever tries again has to look
            raise
        of_run.points |= figures.keys()
        of_run.parameters |= new.keys()

    def _logged_points(self, run: Any) -> set[tuple[str, int]]:
        """Which (metric, step) pairs a run has already."""
        names = list(run.data.metrics)
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

    def _log_data(self, run_id: str, trial: Trial, result: TrialResult) -> None:
        """Which data a finished trial saw, as an input of its run: `dataset.digest = '...'` finds all runs on it.

        MLflow does not add an input that a run has already.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if result.status != "finished":
            return
        described = plain_json.dumps({name: result.data.get(name) for name in ("source", "synthetic")})
        data = Dataset(short_name(trial.domain), trial.data_fingerprint, "nbsr", described)
        tags = [InputTag("mlflow.data.context", "training")]
        self.store.call("log_inputs", run_id, [DatasetInput(data, tags)])

    def _log_artifacts(self, run_id: str, trial: Trial, result: TrialResult, store: ResultStore | None) -> None:
        from nbsr_platform.serving.saving import save_model
        from nbsr_platform.serving.served_model import ModelConfig

        with tempfile.TemporaryDirectory(prefix="nbsr-") as name:
            folder = Path(name)
            write_artifacts(folder, trial, result)
            (folder / STUDY_FILE).write_text(study_text(trial), encoding="utf-8")
            state = None if store is None else store.load_state(trial.key)
            if state is not None:
                try:
                    save_model(folder / "model", ModelConfig.of(trial, result), state)
                except InputError as error:  # its figures are recorded all the same
                    (folder / "no_model.txt").write_text(f"{error}\n", encoding="utf-8")
            self.store.call("log_artifacts", run_id, str(folder))


def _now() -> int:
    return int(time.time() * 1000)
