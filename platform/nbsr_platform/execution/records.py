"""What is written of a run: its studies and trials in MLflow, and the reports. All of it on the recorder's thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.execution.progress import PLAIN_SECONDS
from nbsr_platform.execution.study_run import StudyRun
from nbsr_platform.report import show_as, summary, write_report
from nbsr_platform.tracking.store import TrackingError
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial


class RunRecord:
    """The tracking store of a run; whoever needs one that could not be opened gets the error that kept it closed."""

    def __init__(self, home: Home, uri: str | None) -> None:
        self.home, self.uri = home, uri
        self._opened: Tracker | Exception | None = None

    def open(self) -> None:
        """Takes seconds where its tables are to be made."""
        try:
            self._opened = Tracker.open(self.home, self.uri)
        except Exception as error:
            self._opened = error
            raise

    @property
    def tracker(self) -> Tracker:
        assert self._opened is not None, "asked for before it was opened"
        if isinstance(self._opened, Exception):
            raise self._opened
        return self._opened


@dataclass
class StudyRecord:
    """One study in the tracking store; a `tracking.recorder.Journal` for its trials."""

    run: RunRecord
    part: StudyRun
    store: ResultStore
    console: Terminal
    error: Exception | None = None

    def open(self) -> None:
        """The study's run, found by its key or made."""
        try:
            self.part.run_id = self.run.tracker.study_run(self.part.study, self.part.key)
        except Exception as error:
            self.error = error
            raise

    def begin(self, trial: Trial, epochs: Sequence[dict[str, float]]) -> None:
        self._tracker().begin(self.part.run_id, trial, epochs)

    def record(self, trial: Trial, result: TrialResult) -> None:
        """Of a search, pictures and models come with its members, at the end."""
        in_full = self.part.study.search is None
        self._tracker().record(self.part.run_id, trial, result, self.store, with_artifacts=in_full)

    def leave(self) -> None:
        self._tracker().leave(self.part.run_id)

    def finish(self, complaints: list[str]) -> None:
        """The last entries: members of the Pareto set, the report, and the figures that people compare."""
        part, tracker = self.part, self._tracker()
        self._mark_members(tracker)
        part.complaints = complaints
        home, name = self.run.home, part.study.name
        report = show_as(home.report(name), write_report(home.report_of(name, part.key), [part.study_results], name))
        status = "FAILED" if part.failed else "FINISHED"
        tracker.finish_study(part.run_id, part.headline, status, report, summary.figures_csv(part.rows))

    def end_as_failed(self) -> None:
        """An error that ends a study ends its run in MLflow too, where it would look alive for ever.

        One that goes on later opens it again.
        """
        if self.part.run_id:
            with suppress(TrackingError):
                self._tracker().finish_study(self.part.run_id, {}, "FAILED")

    def _tracker(self) -> Tracker:
        """The store, with the study's run in it."""
        if self.error is not None:
            raise self.error
        return self.run.tracker

    def _mark_members(self, tracker: Tracker) -> None:
        """Mark a search's Pareto set; the promising ones, which stand for all, get pictures, tables and model."""
        part = self.part
        members = [ended for ended in part.ended_trials.finished.values() if ended[0].proposal in part.pareto]
        tracker.unmark_members(part.run_id, except_for={trial.key for trial, _ in members})
        said = time.monotonic()
        for count, (trial, result) in enumerate(members, 1):
            in_full = trial.proposal in part.promising
            tracker.record_member(part.run_id, trial, result, self.store, with_artifacts=in_full)
            if time.monotonic() - said > PLAIN_SECONDS:
                said = time.monotonic()
                self.console.say(f"{part.study.name}: {count} of {len(members)} members of the Pareto set recorded")
