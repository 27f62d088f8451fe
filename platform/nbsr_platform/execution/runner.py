"""Run a study from file to table: what `nbsr run` does, callable from Python.

`Runner.run` is the table of contents; its methods are the steps, in order. Two things happen on other threads, each in
an object with a name: all writing to MLflow and of reports (`tracking.recorder.Recorder`), and Ray Tune with its
workers (`on_ray.warm_pool.WarmPool`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from nbsr_core.errors import InputError
from nbsr_platform.base.endings import Interruption, interruptible
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.execution.caches import keep_in_store, settle_folders
from nbsr_platform.execution.coordinator import Coordinator
from nbsr_platform.execution.executors import Executor, Here, OnRay
from nbsr_platform.execution.feeds import Feed, GridFeed
from nbsr_platform.execution.progress import Progress
from nbsr_platform.execution.records import RunRecord, StudyRecord
from nbsr_platform.execution.run_result import RunResult
from nbsr_platform.execution.study_run import StudyRun
from nbsr_platform.report import show_as, write_report
from nbsr_platform.study.study import Collection, Study
from nbsr_platform.study.warnings import say_warnings
from nbsr_platform.tracking.recorder import Recorder, StudyNews
from nbsr_platform.tracking.store import TrackingError, checked
from nbsr_platform.trials.ended_trials import EndedTrials
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.locks import study_lock
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid


def run(
    what: Study | Collection,
    *,
    home: str | Path | None = None,
    tracking_uri: str | None = None,
    search_storage: str | None = None,
    address: str | None = None,
    local: bool = False,
    console: Terminal | None = None,
) -> RunResult:
    """Run a study, or go on with it: finished trials are reused, only missing ones run.

    Raises a `StudyError` before anything is written where a study cannot work: data that is not there, say.

    Args:
        what: a study or a collection of studies, see `Study.load`.
        home: folder for results and the default tracking store; `.nbsr` by default.
        tracking_uri: MLflow's address; a sqlite file in `home` by default.
        search_storage: database URL for searches; a journal file in `home` by default.
        address: Ray cluster to use; one of our own on this machine by default.
        local: run all trials in this process, one after another, without Ray.
        console: where progress goes; nowhere by default.

    Examples:
        >>> from nbsr_platform import Study, run  # doctest: +SKIP
        >>> run(Study.load("studies/medical/quickstart.yaml")).table  # doctest: +SKIP
    """
    if local and address is not None:
        raise InputError(f"run locally, or on the Ray cluster at {address!r}: not both")
    runner = Runner(what, Home.of(home), tracking_uri, search_storage, address, local, console or Terminal(quiet=True))
    return runner.run()


@dataclass
class _OpenStudy:
    """A study from the moment its lock is taken until its last entry is written.

    Attributes:
        part: what is found of it.
        fingerprint: of its data.
        lock: taken and let go of by the main thread.
        record: its place in MLflow; used on the recorder's thread only.
        news: takes what happens to its trials.
        written: when all is written, the last entries and the report included; None while its trials run.
    """

    part: StudyRun
    fingerprint: str
    lock: ExitStack
    record: StudyRecord
    news: StudyNews
    written: Future[None] | None = None

    @property
    def study(self) -> Study:
        return self.part.study


@dataclass
class Runner:
    """One run: what is missing is run, the rest is reused. See `run` above for what is asked of it.

    Attributes:
        locks: of all studies that are open; of those, the main thread lets go of what is written.
        opened: the studies so far.
    """

    what: Study | Collection
    home: Home
    tracking_uri: str | None
    search_storage: str | None
    address: str | None
    local: bool
    console: Terminal
    recorder: Recorder = field(default_factory=Recorder)
    locks: ExitStack = field(default_factory=ExitStack)
    opened: list[_OpenStudy] = field(default_factory=list)
    is_new_store: bool = False

    def __post_init__(self) -> None:
        self.results = ResultStore(self.home.trials)
        self.record = RunRecord(self.home, self.tracking_uri)

    def run(self) -> RunResult:
        """All steps, in order."""
        self.check()
        with interruptible() as interruption, self.locks, self.recorder, self.place(interruption) as self.executor:
            self.open_tracking_store()
            for study in self.what.studies:
                self.run_study(study)
        return self.report()

    def run_study(self, study: Study) -> None:
        """The steps of one study: its trials have ended then, and its last entries are being written."""
        opened = self.open_study(study)
        try:
            with closing(opened.news):
                self.start_ray(opened)
                self.begin_record(opened)
                if study.search is None:
                    self.run_grid(opened)
                else:
                    self.run_search(opened)
        except Exception as error:
            self.end_as_failed(opened, error)
            raise
        self.finish(opened)

    def check(self) -> None:
        """Say what is wrong before anything is written."""
        if self.search_storage is not None and any(study.search is not None for study in self.what.studies):
            from nbsr_platform.search.storage import open_storage

            open_storage(self.home, self.what.name, self.search_storage)
        checked(self.home.tracking_uri if self.tracking_uri is None else self.tracking_uri)
        say_warnings(self.what.studies, self.console)
        keep_in_store(self.home)
        settle_folders()

    def place(self, interruption: Interruption) -> Executor:
        """Where trials run: nothing is started yet."""
        return Here(self.home) if self.local else OnRay(self.home, self.address, interruption)

    def open_tracking_store(self) -> None:
        """A new store makes its tables while Ray and its workers start: both take seconds, neither needs the other.

        One that is there, or that was asked for and may not be, is opened before anything is written.
        """
        self.is_new_store = self.tracking_uri is None and not self.home.database.exists()
        opening = self.recorder.do(self.record.open)
        if not self.is_new_store:
            opening.result()

    def open_study(self, study: Study) -> _OpenStudy:
        """Know it by its key, and keep others from running it in this store."""
        self.release_locks()
        fingerprint = data_fingerprint(study)
        part = StudyRun(study, "", key=study_key(study, fingerprint))
        lock = self.locks.enter_context(ExitStack())
        lock.enter_context(study_lock(self.home, study.name))
        self.results.sweep()
        record = StudyRecord(self.record, part, self.results, self.console)
        opened = _OpenStudy(part, fingerprint, lock, record, self.recorder.news_of(record))
        self.opened.append(opened)
        return opened

    def start_ray(self, opened: _OpenStudy) -> None:
        """If there is surely something to run; a search that was begun is looked at more closely later."""
        if opened.study.search is None:
            has_work = any(not self.results.has(trial.key) for trial in grid(opened.study, opened.fingerprint))
        else:
            has_work = self.search_storage is None and not self.search_journal(opened).exists()
        if has_work:
            self.executor.start()

    def begin_record(self, opened: _OpenStudy) -> None:
        """The first study of a run waits for a store that was there: trials do not start if it refuses them."""
        beginning = self.recorder.do(opened.record.open)
        if not self.is_new_store and len(self.opened) == 1:
            beginning.result()

    def run_grid(self, opened: _OpenStudy) -> None:
        """Every model with every seed."""
        trials = grid(opened.study, opened.fingerprint)
        missing = self.find_missing(opened.study, trials)
        with Progress(self.console, opened.study.name, len(trials), len(trials) - len(missing)) as progress:
            self.run_trials(opened, trials, missing, opened.part.ended_trials, progress)

    def run_search(self, opened: _OpenStudy) -> None:
        """All proposals, then the promising ones with further seeds."""
        from nbsr_platform.search.feed import SearchFeed
        from nbsr_platform.search.journal import mend

        study, part, search = opened.study, opened.part, opened.study.search
        assert search is not None
        mend(self.search_journal(opened), search.objectives.values())
        feed = SearchFeed.open(study, part.key, opened.fingerprint, self.home, self.search_storage)
        for note in feed.notes:
            self.console.say(f"{study.name}: {note}")
        for trial, result in feed.ended():
            self.reuse(opened, trial, result, part.ended_trials, feed.counted(result))
        if feed.asked > search.trials:
            self.console.say(
                f"{study.name}: the search has {feed.asked} proposals already, more than search.trials: "
                f"{search.trials}; all of them are kept, and no new one is made"
            )
        proposals = max(search.trials, feed.asked)
        again_at_most = min(search.promising, proposals) * (len(study.seeds) - 1)
        with Progress(self.console, study.name, proposals, proposals - feed.remaining, again_at_most) as progress:
            self.execute(opened, feed, Counter({search.model: feed.remaining}), part.ended_trials, progress)
            for trial, result in feed.reused:
                self.reuse(opened, trial, result, part.ended_trials, feed.counted(result))
            part.pareto, part.promising, part.proposals = feed.pareto(), feed.promising(), feed.proposals()
            again = feed.repeats(trial for trial, _ in part.ended_trials.finished.values())
            missing = self.find_missing(study, again)
            progress.expect(proposals + len(again), len(again) - len(missing))
            self.run_trials(opened, again, missing, part.repeats, progress)

    def find_missing(self, study: Study, trials: Iterable[Trial]) -> list[Trial]:
        """Those that the store has no result of; where it has what they learned, they are judged and not trained."""
        missing = [trial for trial in trials if not self.results.has(trial.key)]
        for trial in missing:
            if self.results.folder(trial.key).is_dir():
                why = f"its stored result is damaged: {self.results.damage(trial.key)}"
                self.console.say(f"{trial.name} runs again, {why}")
        judged_again = sum(self.results.weights.has(trial.weights_key) for trial in missing)
        if judged_again:
            counted = f"{judged_again} trial{'s' if judged_again > 1 else ''} judged again"
            rest = f"{len(missing) - judged_again} trained" if judged_again < len(missing) else "nothing trained"
            self.console.say(f"{study.name}: {counted}, {rest}")
        return missing

    def run_trials(
        self,
        opened: _OpenStudy,
        trials: Sequence[Trial],
        missing: Sequence[Trial],
        ended_trials: EndedTrials,
        progress: Progress,
    ) -> None:
        """Reuse what is there, and run what is missing."""
        for trial in trials:
            if trial not in missing:
                self.reuse(opened, trial, self.results.load(trial.key), ended_trials)
        self.execute(opened, GridFeed(list(missing)), Counter(trial.label for trial in missing), ended_trials, progress)

    def reuse(
        self,
        opened: _OpenStudy,
        trial: Trial,
        result: TrialResult,
        ended_trials: EndedTrials,
        counted: TrialResult | None = None,
    ) -> None:
        """Count a stored result, and have it recorded where that was not done."""
        if (trial.key, trial.proposal) not in ended_trials.finished:
            ended_trials.add(trial, result if counted is None else counted)
            ended_trials.reused += 1
            opened.news.ended(trial, result)

    def execute(
        self, opened: _OpenStudy, feed: Feed, waiting: Counter[str], ended_trials: EndedTrials, progress: Progress
    ) -> None:
        """Feed the executor until there are no more trials, and all have ended.

        Args:
            opened: the study.
            feed: where its trials come from.
            waiting: how many trials of each model there will be.
            ended_trials: what becomes of them.
            progress: shows it.
        """
        if not waiting.total():
            return
        progress.wait_for(waiting)
        self.executor.start()
        self.executor.prepare(opened.study, self.console)
        coordinator = Coordinator(feed, opened.study.name, self.home, opened.news, progress, ended_trials)
        self.executor.execute(coordinator, opened.study)

    def end_as_failed(self, opened: _OpenStudy, error: Exception) -> None:
        """Where the tracking store is itself what is wrong, it is not asked again."""
        if not isinstance(error, TrackingError):
            self.recorder.do(opened.record.end_as_failed)

    def finish(self, opened: _OpenStudy) -> None:
        """The last entries and the report are written while the next study runs, or Ray ends."""
        opened.written = self.recorder.do(lambda: opened.record.finish(opened.news.errors))

    def release_locks(self) -> None:
        """Of the studies of which all is written; those of the others when the recorder has done its work."""
        for opened in self.opened:
            if opened.written is not None and opened.written.done():
                opened.lock.close()

    def report(self) -> RunResult:
        """What was found; studies that were run together have a report together."""
        for opened in self.opened:
            assert opened.written is not None
            opened.written.result()
        parts = [opened.part for opened in self.opened]
        name = self.what.name
        result = RunResult(name, self.record.tracker.public_uri, self.home.report(name), parts)
        if self.what not in self.what.studies:
            key = hashlib.sha256(" ".join(part.key for part in parts).encode()).hexdigest()[:12]
            all_results = [part.study_results for part in parts]
            result.question = self.what.question
            report = write_report(self.home.report_of(name, key), all_results, name, question=result.question)
            show_as(result.report, report)
        return result

    def search_journal(self, opened: _OpenStudy) -> Path:
        return self.home.search_journal(f"{opened.study.name}-{opened.part.key}")
