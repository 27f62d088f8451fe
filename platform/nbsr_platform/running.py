"""Run a study from file to table: what `nbsr run` does, callable from Python."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbsr_platform import summary
from nbsr_platform.caches import keep_in_store
from nbsr_platform.credentials import command_line
from nbsr_platform.endings import interruptible
from nbsr_platform.environment import differences
from nbsr_platform.outcome import Outcome, Recorder
from nbsr_platform.paths import Home
from nbsr_platform.prepare import prepare
from nbsr_platform.progress import PLAIN_SECONDS, Progress
from nbsr_platform.proposals import Proposal
from nbsr_platform.report import Material, write_report
from nbsr_platform.results import TrialResult
from nbsr_platform.session import ray_session, study_lock
from nbsr_platform.store import ResultStore
from nbsr_platform.study import Collection, Study
from nbsr_platform.terminal import Terminal
from nbsr_platform.tracking import Tracker
from nbsr_platform.tracking_store import checked
from nbsr_platform.trial import Trial, data_fingerprint, grid, study_key

if TYPE_CHECKING:
    import pandas as pd

    from nbsr_platform.execute import Feed


@dataclass
class StudyRun:
    """One study's part of a run.

    Attributes:
        outcome: of the study's trials; of a search, its proposals.
        repeats: of a search, what its promising members gave with further seeds.
        pareto: of a search, numbers of the proposals that no other one beats in every objective.
        promising: those of the Pareto set that stand for all of it.
    """

    study: Study
    run_id: str
    outcome: Outcome = field(default_factory=Outcome)
    repeats: Outcome = field(default_factory=Outcome)
    pareto: list[int] = field(default_factory=list)
    promising: list[int] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @cached_property
    def material(self) -> Material:
        """What its report is made from, once it has ended."""
        outcomes = (self.outcome, self.repeats)
        return Material(
            self.study,
            [ended for outcome in outcomes for ended in outcome.finished.values()],
            [(trial.name, result.last_words) for trial, result in self.failed],
            sum(outcome.total for outcome in outcomes),
            self.proposals,
            self.pareto,
            command_line(["nbsr", "run", str(self.study.path or f"{self.study.name}.yaml")]),
        )

    @property
    def failed(self) -> list[tuple[Trial, TrialResult]]:
        return self.outcome.failed + self.repeats.failed

    @property
    def rows(self) -> list[summary.Row]:
        """The comparison; of a search, the Pareto set only."""
        return self.material.rows

    @property
    def legend(self) -> list[str]:
        """What the lines and figures of the comparison stand for that are not a trained model's."""
        return self.material.legend


@dataclass
class RunResult:
    """What a run found, whether of one study or of a collection."""

    name: str
    tracking_uri: str
    report: Path
    parts: list[StudyRun]

    @property
    def run_id(self) -> str:
        """MLflow's id of the study's run (of the first one in a collection)."""
        return self.parts[0].run_id if self.parts else ""

    @cached_property
    def rows(self) -> list[summary.Row]:
        return [row for part in self.parts for row in part.rows]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Models x figures with 95% intervals over seeds."""
        return summary.table(self.rows)

    @property
    def legend(self) -> list[str]:
        return list(dict.fromkeys(line for part in self.parts for line in part.legend))

    @property
    def failed(self) -> list[tuple[Trial, TrialResult]]:
        return [item for part in self.parts for item in part.failed]

    @property
    def notes(self) -> list[str]:
        """What a reader must know before believing a figure, each once."""
        results = [result for part in self.parts for _, result in part.material.finished]
        elsewhere = differences(result.environment for result in results)
        warnings = dict.fromkeys(warning for result in results for warning in result.warnings)
        return [*warnings, *([] if elsewhere is None else [elsewhere])]

    def to_json(self) -> dict[str, Any]:
        """The document that `nbsr run --json` prints."""
        outcomes = [part.outcome for part in self.parts]
        repeated = sum(len(part.repeats.finished) for part in self.parts)
        return {
            "study": self.name,
            "tracking_uri": self.tracking_uri,
            "run_id": self.run_id,
            "report": str(self.report),
            "trials": {
                "total": sum(outcome.total for outcome in outcomes),
                "finished": sum(len(outcome.finished) for outcome in outcomes),
                "reused": sum(outcome.reused for outcome in outcomes),
                "failed": sum(len(outcome.failed) for outcome in outcomes),
                "pruned": sum(outcome.pruned for outcome in outcomes),
                **({"repeated": repeated} if repeated else {}),
            },
            "table": [row.to_json() for row in self.rows],
            "legend": self.legend,
            "notes": self.notes,
        }


def run(
    what: Study | Collection,
    *,
    home: str | Path | None = None,
    tracking_uri: str | None = None,
    search_storage: str | None = None,
    address: str | None = None,
    console: Terminal | None = None,
) -> RunResult:
    """Run a study, or go on with it: finished trials are reused, only missing ones run.

    Args:
        what: a study or a collection of studies, see `Study.load`.
        home: folder for results and the default tracking store; `.nbsr` unless told.
        tracking_uri: MLflow's address; a sqlite file in `home` unless told.
        search_storage: database URL for searches; a journal file in `home` unless told.
        address: Ray cluster to use; one of our own on this machine unless told.
        console: where progress goes; nowhere unless told.

    Example:
        >>> from nbsr_platform import Study, run  # doctest: +SKIP
        >>> run(Study.load("studies/medical/quickstart.yaml")).table  # doctest: +SKIP
    """
    place = Home.of(home)
    console = console or Terminal(quiet=True)
    studies: Sequence[Study] = what.studies if isinstance(what, Collection) else [what]
    if search_storage is not None and any(study.search is not None for study in studies):
        from nbsr_platform.search_storage import open_storage

        open_storage(place, what.name, search_storage)  # says what is wrong with it before anything is written
    checked(place.tracking_uri if tracking_uri is None else tracking_uri)
    keep_in_store(place)
    parts: list[StudyRun] = []
    endings: list[Future[None]] = []  # the last entries and the report of each study, made while Ray ends
    # A new store makes its tables while Ray and its workers start: both take seconds, and neither needs the other. A
    # store that is there, or that was asked for and may not be, is opened before anything is written.
    makes_its_own = tracking_uri is None and not place.database.exists()
    with (
        interruptible() as interruption,
        ThreadPoolExecutor(1, "tracking store") as aside,
        ExitStack() as session,
    ):
        tracker = aside.submit(Tracker.open, place, tracking_uri)
        if not makes_its_own:
            tracker.result()

        def start_ray() -> None:
            """Once, and only if there is anything to run."""
            session.enter_context(ray_session(address, interruption=interruption))

        for study in studies:
            part = StudyRun(study, "")
            parts.append(part)
            endings.append(_run_one(part, place, tracker, aside, search_storage, console, start_ray))
    for ending in endings:
        ending.result()
    result = RunResult(what.name, tracker.result().public_uri, place.report(what.name), parts)
    if isinstance(what, Collection):
        write_report(result.report, [part.material for part in parts], result.name)
    return result


def _run_one(
    part: StudyRun,
    home: Home,
    opening: Future[Tracker],
    aside: Executor,
    search_storage: str | None,
    console: Terminal,
    start_ray: Callable[[], None],
) -> Future[None]:
    """Run what is missing; what is still to be written when all trials have ended is under way then."""
    study, outcome = part.study, part.outcome
    fingerprint, store = data_fingerprint(study), ResultStore(home.trials)
    key = study_key(study, fingerprint)
    with ExitStack() as held:
        held.enter_context(study_lock(home, study.name))
        store.sweep()
        if _has_work(study, fingerprint, home, search_storage):
            start_ray()
        from nbsr_platform.execute import GridFeed, execute  # all of Ray Tune: not before Ray is on its way

        begun = aside.submit(lambda: opening.result().study_run(study, key))
        if opening.done():
            begun.result()
        with_artifacts = study.search is None

        def record(trial: Trial, result: TrialResult) -> None:
            opening.result().record(begun.result(), trial, result, store, with_artifacts=with_artifacts)

        with Recorder(record) as recorder:

            def work(feed: Feed, title: str, total: int, todo: int, outcome: Outcome) -> None:
                with Progress(console, title, total, total - todo) as progress:
                    if todo:
                        start_ray()
                        prepare(study, console)
                        execute(feed, study, home, recorder, progress, outcome, todo)

            def work_through(trials: Sequence[Trial], title: str, outcome: Outcome) -> None:
                missing = [trial for trial in trials if not store.has(trial.key)]
                for trial in missing:
                    if store.folder(trial.key).is_dir():
                        why = f"its stored result is damaged: {store.damage(trial.key)}"
                        console.say(f"{trial.name} runs again, {why}")
                for trial in trials:
                    if trial not in missing:
                        _reuse(trial, store.load(trial.key), outcome, recorder)
                work(GridFeed(list(missing)), title, len(trials), len(missing), outcome)

            if study.search is None:
                work_through(grid(study, fingerprint), study.name, outcome)
            else:
                from nbsr_platform.search import SearchFeed
                from nbsr_platform.search_journal import mend

                mend(home.search_journal(f"{study.name}-{key}"), study.search.objectives.values())
                feed = SearchFeed.open(study, key, fingerprint, home, search_storage)
                for trial, result in feed.ended():
                    _reuse(trial, result, outcome, recorder, feed.counted(result))
                work(feed, study.name, study.search.trials, feed.remaining, outcome)
                for trial, result in feed.reused:
                    _reuse(trial, result, outcome, recorder, feed.counted(result))
                part.pareto, part.promising, part.proposals = feed.pareto(), feed.promising(), feed.proposals()
                again = feed.repeats(trial for trial, _ in outcome.finished.values())
                if again:
                    work_through(again, f"{study.name}, Pareto set with further seeds", part.repeats)
        still_held = held.pop_all()

    def finish() -> None:
        with still_held:
            tracker, part.run_id = opening.result(), begun.result()
            _record_members(part, tracker, store, console)
            part.complaints = recorder.errors
            status = "FAILED" if part.failed else "FINISHED"
            report = write_report(home.report(study.name), [part.material], study.name)
            tracker.finish_study(part.run_id, summary.study_metrics(part.rows), status, report)

    return aside.submit(finish)


def _record_members(part: StudyRun, tracker: Tracker, store: ResultStore, console: Terminal) -> None:
    """Mark a search's Pareto set in MLflow; the promising ones, which stand for all, get pictures, tables and model."""
    members = [ended for ended in part.outcome.finished.values() if ended[0].proposal in part.pareto]
    said = time.monotonic()
    for count, (trial, result) in enumerate(members, 1):
        in_full = trial.proposal in part.promising
        tracker.record_member(part.run_id, trial, result, store, with_artifacts=in_full)
        if time.monotonic() - said > PLAIN_SECONDS:
            said = time.monotonic()
            console.say(f"{part.study.name}: {count} of {len(members)} members of the Pareto set recorded")


def _has_work(study: Study, fingerprint: str, home: Home, search_storage: str | None) -> bool:
    """Whether there is surely something to run; a search that was begun is looked at more closely later."""
    if study.search is None:
        store = ResultStore(home.trials)
        return any(not store.has(trial.key) for trial in grid(study, fingerprint))
    key = study_key(study, fingerprint)
    return search_storage is None and not home.search_journal(f"{study.name}-{key}").exists()


def _reuse(
    trial: Trial, result: TrialResult, outcome: Outcome, recorder: Recorder, counted: TrialResult | None = None
) -> None:
    if (trial.key, trial.proposal) not in outcome.finished:
        outcome.add(trial, result if counted is None else counted)
        outcome.reused += 1
        recorder.put(trial, result)


def dump(result: RunResult) -> str:
    """The run's JSON document as text."""
    return json.dumps(result.to_json(), allow_nan=False)
