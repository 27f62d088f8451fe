"""What is recorded is there, once, and readable by name; whatever happens on the way."""

from __future__ import annotations

import http.server
import logging
import math
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.paper import Paper
from nbsr_platform.paths import Home
from nbsr_platform.tracking import PARENT, Tracker
from nbsr_platform.tracking_names import experiment_name, metric_name, trial_figures, trial_parameters
from nbsr_platform.tracking_store import TrackingError, TrackingStore, masked
from processes import closed_port, server
from toys import ToyStudy, flat_trial, make_trial, store_uri

from nbsr_core.errors import InputError

# MLflow's own debts, which are not ours to pay.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:mlflow.*", "ignore::DeprecationWarning:sqlalchemy.*", "ignore::UserWarning:mlflow.*"
)

STUDY = ToyStudy()
HERE = Path(__file__).parent


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return store_uri(tmp_path)


@pytest.fixture
def tracker(uri: str, tmp_path: Path) -> Tracker:
    return Tracker(uri, tmp_path / "artifacts")


def children(tracker: Tracker, parent: str) -> list[Any]:
    experiment = tracker.client.get_run(parent).info.experiment_id
    return list(tracker.client.search_runs([experiment], f"tags.`{PARENT}` = '{parent}'"))


def histories(tracker: Tracker, run_id: str) -> dict[str, list[tuple[int, float]]]:
    names = tracker.client.get_run(run_id).data.metrics
    return {name: [(m.step, m.value) for m in tracker.client.get_metric_history(run_id, name)] for name in names}


def text_of(tracker: Tracker, run_id: str, name: str, folder: Path) -> str:
    return Path(tracker.client.download_artifacts(run_id, name, str(folder))).read_text()


# --- what is recorded ---------------------------------------------------------------------------------------------


def test_published_figures_are_tags_of_the_study(tracker: Tracker) -> None:
    paper = Paper("Table 1, one seed", {"mlp": {"accuracy": 0.9762}, "nbsr fast": {"mean_depth": 1.0}})
    tags = tracker.client.get_run(tracker.study_run(replace(STUDY, paper=paper), "abc")).data.tags
    published = {name: value for name, value in tags.items() if "paper" in name}
    assert published == {
        "nbsr.paper.source": "Table 1, one seed",
        "nbsr.paper.mlp.accuracy": "0.9762",
        "nbsr.paper.nbsr.fast.mean_depth": "1",
    }


def test_a_study_has_one_run_that_is_opened_again(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    parent = tracker.study_run(STUDY, "abc")
    run = tracker.client.get_run(parent)
    assert (run.info.run_name, run.info.status) == ("toys", "RUNNING")
    assert tracker.client.get_experiment(run.info.experiment_id).name == "nbsr-Toy"
    expected = {"nbsr.role": "study", "nbsr.study": "toys", "nbsr.study_key": "abc", "nbsr.domain": "toys:Toy"}
    assert expected.items() <= run.data.tags.items()
    assert run.data.tags["mlflow.note.content"] == "Which toy is best?"
    assert text_of(tracker, parent, "study.yaml", tmp_path) == STUDY.to_yaml()

    tracker.finish_study(parent, {}, "FINISHED")
    assert tracker.client.get_run(parent).info.status == "FINISHED"
    again = Tracker(uri, tmp_path / "artifacts")
    assert again.study_run(replace(STUDY, question="Why?"), "abc") == parent
    reopened = again.client.get_run(parent)
    assert reopened.info.status == "RUNNING"
    assert reopened.data.tags["mlflow.note.content"] == "Why?"
    assert again.study_run(STUDY, "another") != parent


def test_artifacts_of_the_default_store_are_in_the_home(tmp_path: Path) -> None:
    home = Home.of(tmp_path / "home")
    store_uri(home.root)
    tracker = Tracker.open(home)
    parent = tracker.study_run(STUDY, "abc")
    assert list(home.artifacts.rglob("study.yaml"))
    assert tracker.public_uri == home.tracking_uri
    assert tracker.client.get_run(parent).info.artifact_uri.startswith(home.artifacts.as_uri())


def test_a_trial_is_recorded_with_all_that_describes_it(tracker: Tracker) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial(seed=7, proposal=12)
    run = tracker.client.get_run(tracker.record(parent, trial, result, None, with_artifacts=False))
    assert (run.info.run_name, run.info.status) == ("mlp #12 seed 7", "FINISHED")
    assert run.info.end_time - run.info.start_time == 2000
    assert {
        "nbsr.role": "trial",
        "nbsr.trial_key": trial.key,
        "nbsr.model": "mlp",
        "nbsr.kind": "mlp",
        "nbsr.family": "baseline",
        "nbsr.domain": "toys:Toy",
        "nbsr.seed": "7",
        "nbsr.study": "toys",
        "nbsr.data_source": "four clouds",
        "nbsr.synthetic": "true",
        "nbsr.proposal": "12",
        "nbsr.status": "finished",
        "mlflow.parentRunId": parent,
    }.items() <= run.data.tags.items()
    assert {
        "options.hidden": "[16]",
        "training.epochs": "3",
        "training.clip_norm": "null",
        "training.temperature.start": "1.0",
        "data.samples": "160",
        "data.fingerprint": trial.data_fingerprint,
        "seed": "7",
        "environment.python": "3.11",
    }.items() <= run.data.params.items()
    assert "secret-machine" not in str(run.data.params)
    logged = histories(tracker, run.info.run_id)
    assert logged["train/figure1"] == [(0, 0.125), (1, 1.125), (2, 2.125)]
    assert [value for _, value in logged["test/accuracy"]] == [0.9]
    assert [value for _, value in logged["seconds"]] == [2.0]
    assert logged["epoch/seconds"] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert not {"fast/eta", "test/x", "epoch"} & logged.keys(), "not finite, or not a figure"


def test_models_compare_by_the_same_names(tracker: Tracker) -> None:
    parent = tracker.study_run(STUDY, "abc")
    for seed in range(3):
        tracker.record(parent, *flat_trial(seed=seed), None, with_artifacts=False)
    experiment = tracker.client.get_run(parent).info.experiment_id
    best = tracker.client.search_runs(
        [experiment],
        "tags.`nbsr.family` = 'baseline' and metrics.`test/accuracy` > 0.5",
        order_by=["metrics.`test/ece` ASC"],
    )
    assert [run.data.tags["nbsr.seed"] for run in best] == ["0", "1", "2"]


def test_a_failed_trial_says_why_and_a_later_success_takes_over_its_run(tracker: Tracker, tmp_path: Path) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, good = flat_trial()
    bad = replace(good, status="failed", metrics={}, error="Traceback\n  line\nValueError: no luck\n")
    run_id = tracker.record(parent, trial, bad, None, with_artifacts=True)
    run = tracker.client.get_run(run_id)
    assert (run.info.status, run.data.tags["nbsr.status"]) == ("FAILED", "failed")
    assert run.data.tags["nbsr.error"] == "ValueError: no luck"
    assert text_of(tracker, run_id, "error.txt", tmp_path) == bad.error

    assert tracker.record(parent, trial, good, None, with_artifacts=False) == run_id
    run = tracker.client.get_run(run_id)
    assert (run.info.status, run.data.tags["nbsr.status"]) == ("FINISHED", "finished")
    assert "nbsr.error" not in run.data.tags
    assert run.data.metrics["test/accuracy"] == 0.9
    assert all(len(points) == len({step for step, _ in points}) for points in histories(tracker, run_id).values())
    assert len(children(tracker, parent)) == 1


def test_a_pruned_trial_keeps_its_epochs(tracker: Tracker) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial(epochs=2)
    run_id = tracker.record(parent, trial, replace(result, status="pruned", metrics={}, data={}), None, False)
    run = tracker.client.get_run(run_id)
    assert (run.info.status, run.data.tags["nbsr.status"]) == ("FINISHED", "pruned")
    assert "nbsr.synthetic" not in run.data.tags, "unknown is not false"
    assert [step for step, _ in histories(tracker, run_id)["train/figure0"]] == [0, 1]


def test_many_and_long_parameters_are_cut_to_what_mlflow_takes(tracker: Tracker) -> None:
    parent = tracker.study_run(STUDY, "abc")
    options = {f"option {i} (µ+)": "x" * 7000 if i == 3 else i for i in range(250)}
    trial, result = flat_trial(options=options, epochs=400, figures=7)
    run = tracker.client.get_run(tracker.record(parent, trial, result, None, with_artifacts=False))
    assert len(run.data.params["options.option 3 _µ__"]) == 6000
    assert sum(name.startswith("options.") for name in run.data.params) == 250
    assert [step for step, _ in histories(tracker, run.info.run_id)["train/figure6"]] == list(range(400))


def test_study_figures_are_logged_once_and_closed_with_their_report(tracker: Tracker, tmp_path: Path) -> None:
    parent = tracker.study_run(STUDY, "abc")
    report = tmp_path / "report.html"
    report.write_text("<h1>toys</h1>")
    summary = {"nbsr/fast/accuracy/mean": 0.9, "nbsr/fast/accuracy/low": math.nan, "wide & deep/ece/mean": 0.1}
    for _ in range(2):
        tracker.finish_study(parent, summary, "FAILED", report)
        assert tracker.client.get_run(parent).info.status == "FAILED"
        assert tracker.study_run(STUDY, "abc") == parent
    tracker.finish_study(parent, {**summary, "nbsr/fast/accuracy/mean": 0.8}, "FINISHED")
    run = tracker.client.get_run(parent)
    assert run.data.metrics == {"nbsr/fast/accuracy/mean": 0.8, "wide _ deep/ece/mean": 0.1}
    assert {name: len(points) for name, points in histories(tracker, parent).items()} == {
        "nbsr/fast/accuracy/mean": 2,
        "wide _ deep/ece/mean": 1,
    }
    assert text_of(tracker, parent, "report.html", tmp_path / "down") == "<h1>toys</h1>"


def test_artifacts_can_follow_later_and_are_written_once(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial()
    run_id = tracker.record(parent, trial, result, None, with_artifacts=False)
    assert not tracker.client.list_artifacts(run_id)
    assert tracker.record_artifacts(parent, trial, result, None) == run_id
    assert [found.path for found in tracker.client.list_artifacts(run_id)] == ["metrics.json"]
    monkeypatch.setattr(tracker.client, "log_artifacts", lambda *_: pytest.fail("written twice"))
    for one in (tracker, Tracker(tracker.store.uri)):
        assert one.record_artifacts(parent, trial, result, None) == run_id


# --- names --------------------------------------------------------------------------------------------------------


@given(st.text(max_size=300))
def test_every_text_becomes_a_name_that_mlflow_accepts(text: str) -> None:
    from mlflow.entities import Metric
    from mlflow.utils.validation import _validate_metric

    name = metric_name(text)
    metric = Metric(name, 1.0, 0, 0)
    _validate_metric(metric.key, metric.value, metric.timestamp, metric.step)
    assert metric_name(name) == name


@pytest.mark.parametrize("name", ["nbsr/test/accuracy/mean", "mlp/fast/noise_draws/ece/high", "test/mean_depth"])
def test_good_names_stay_as_they_are(name: str) -> None:
    assert metric_name(name) == name


def test_experiments_are_named_after_domains() -> None:
    assert experiment_name("medical") == "nbsr-medical"
    assert experiment_name("my_package.my_module:MyDomain") == "nbsr-MyDomain"


def test_options_are_flat_and_lists_of_options_too() -> None:
    trial, result = flat_trial()
    trial = replace(trial, options={"experts": ({"hidden": (1, 2)}, {"bound": None}), "empty": {}, "name": "a"})
    flat = {k: v for k, v in trial_parameters(trial, result).items() if k.startswith("options")}
    assert flat == {
        "options.experts.0.hidden": "[1, 2]",
        "options.experts.1.bound": "null",
        "options.empty": "{}",
        "options.name": "a",
    }


# --- once, whatever happens ---------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a process as nothing but a signal does; here, so that it can be seen."""


WRITES = ("create_run", "log_batch", "log_text", "log_artifacts", "set_terminated", "delete_tag", "set_tag")


def interrupt(tracker: Tracker, monkeypatch: pytest.MonkeyPatch, moment: int) -> list[str]:
    """Die at a moment: before the first write, after it, before the second, ... Returns the writes that were made."""
    made: list[str] = []
    left = [moment]

    def dying(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            answer = method(*args, **options)
            made.append(name)
            if left[0] == 1:
                raise Killed
            left[0] -= 2
            return answer

        return call

    for name in WRITES:
        monkeypatch.setattr(tracker.client, name, dying(name, getattr(tracker.client, name)))
    return made


@pytest.fixture
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbsr_platform.tracking.MOST_METRICS", 40)
        yield


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("status", ["finished", "failed"])
def test_a_recording_killed_anywhere_is_finished_by_the_next(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    root = tmp_path / "artifacts"
    trial, result = flat_trial(epochs=12, figures=6)
    if status == "failed":
        result = replace(result, status="failed", error="ValueError: no")
    expected = sorted(trial_figures(result))
    for moment in range(100):
        first = Tracker(uri, root)
        parent = first.study_run(STUDY, f"study{moment}")
        interrupt(first, monkeypatch, moment)
        try:
            first.record(parent, trial, result, None, with_artifacts=True)
        except Killed:
            finished = False
        else:
            finished = True
        monkeypatch.undo()
        second = Tracker(uri, root)
        assert second.study_run(STUDY, f"study{moment}") == parent
        run_id = second.record(parent, trial, result, None, with_artifacts=True)
        (run,) = children(second, parent)
        assert (run.info.run_id, run.info.status) == (run_id, "FAILED" if status == "failed" else "FINISHED")
        logged = sorted((name, step) for name, points in histories(second, run_id).items() for step, _ in points)
        assert logged == expected
        assert run.data.params == trial_parameters(trial, result)
        if finished:
            assert moment >= 10, "several batches were cut off"
            return
    pytest.fail("never finished")


def test_half_a_batch_is_completed(tracker: Tracker, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that dies within a batch has written some of it."""
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial(epochs=5)
    whole = tracker.client.log_batch

    def half(run_id: str, metrics: list[Any], params: list[Any], tags: list[Any]) -> None:
        whole(run_id, metrics=metrics[: len(metrics) // 2], params=params[:10], tags=tags)
        raise Killed

    monkeypatch.setattr(tracker.client, "log_batch", half)
    with pytest.raises(Killed):
        tracker.record(parent, trial, result, None, with_artifacts=False)
    again = Tracker(uri)
    sent: list[int] = []
    inner = again.client.log_batch
    monkeypatch.setattr(again.client, "log_batch", lambda *a, **k: (sent.append(len(k["metrics"])), inner(*a, **k)))
    run_id = again.record(parent, trial, result, None, with_artifacts=False)
    everything = trial_figures(result)
    logged = {(name, step): v for name, points in histories(again, run_id).items() for step, v in points}
    assert logged == everything
    assert sum(sent) == len(everything) - len(everything) // 2, "only what was missing"


def test_recording_twice_changes_nothing(tracker: Tracker, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial()
    run_id = tracker.record(parent, trial, result, None, with_artifacts=False)
    for one in (tracker, Tracker(uri)):
        for name in WRITES:
            monkeypatch.setattr(one.client, name, lambda *_, **__: pytest.fail("written twice"))
        assert one.record(parent, trial, result, None, with_artifacts=False) == run_id
    assert len(children(tracker, parent)) == 1


def test_a_trial_costs_three_writes_and_no_reads(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tracker.study_run(STUDY, "abc")
    made = interrupt(tracker, monkeypatch, 1000)
    for name in ("get_run", "search_runs", "get_metric_history", "get_experiment_by_name"):
        monkeypatch.setattr(tracker.client, name, lambda *_, **__: pytest.fail("not needed"))
    tracker.record(parent, *flat_trial(), None, with_artifacts=False)
    assert made == ["create_run", "log_batch", "set_terminated"]


def test_another_study_records_the_same_trial_for_itself(tracker: Tracker) -> None:
    trial, result = flat_trial()
    runs = [
        tracker.record(tracker.study_run(STUDY, key), trial, result, None, with_artifacts=False) for key in ("a", "b")
    ]
    assert len(set(runs)) == 2


# --- stores that are away, busy, full or wrong --------------------------------------------------------------------


def lose(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, name: str, times: int, *, after: bool, text: str
) -> list[int]:
    """The first calls of a method fail, with or without having had their effect."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

    inner, calls = getattr(tracker.client, name), [0]

    def call(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] > times:
            return inner(*args, **options)
        if after:
            inner(*args, **options)
        raise MlflowException(text, TEMPORARILY_UNAVAILABLE)

    monkeypatch.setattr(tracker.client, name, call)
    return calls


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["create_run", "log_batch", "set_terminated", "search_runs", "log_text"])
def test_what_was_lost_is_repeated_without_doubles(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, name: str, after: bool
) -> None:
    calls = lose(tracker, monkeypatch, name, 2 if name == "log_batch" else 1, after=after, text="database is locked")
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial()
    run_id = tracker.record(parent, trial, result, None, with_artifacts=False)
    assert calls[0] >= 2 if not (name == "create_run" and after) else calls[0] == 2
    (run,) = children(tracker, parent)
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")
    experiment = run.info.experiment_id
    assert len(tracker.client.search_runs([experiment], "tags.`nbsr.role` = 'study'")) == 1
    assert {(n, s): v for n, points in histories(tracker, run_id).items() for s, v in points} == trial_figures(result)


def test_a_create_whose_answer_was_lost_in_the_middle_of_a_study_is_found(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tracker.study_run(STUDY, "abc")
    lose(tracker, monkeypatch, "create_run", 1, after=True, text="database is locked")
    tracker.record(parent, *flat_trial(), None, with_artifacts=False)
    assert len(children(tracker, parent)) == 1


def test_patience_ends(uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker(uri, patience=0.5)
    lose(tracker, monkeypatch, "create_run", 10**6, after=False, text="database is locked")
    with caplog.at_level(logging.WARNING), pytest.raises(TrackingError, match=r"mlflow.db: .*locked.*\(for 0 s\)"):
        tracker.study_run(STUDY, "abc")
    assert len([r for r in caplog.records if "waiting" in r.message]) == 1, "said once, not at every attempt"


def test_a_store_that_was_given_up_is_waited_for_again_only_after_it_answered(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker(uri, patience=0.5)
    calls = lose(tracker, monkeypatch, "get_run", 5, after=False, text="database is locked")
    with pytest.raises(TrackingError):
        tracker.store.call("get_run", "x")
    waited = calls[0]
    assert waited > 1
    with pytest.raises(TrackingError):
        tracker.store.call("get_run", "x")
    assert calls[0] == waited + 1
    parent = tracker.study_run(STUDY, "abc")
    calls[0] = 4
    assert tracker.store.call("get_run", parent).info.run_id == parent


def test_a_create_whose_answer_was_lost_is_found_after_giving_up(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Tracker(uri, patience=0.0)
    parent = tracker.study_run(STUDY, "abc")
    lose(tracker, monkeypatch, "create_run", 1, after=True, text="database is locked")
    with pytest.raises(TrackingError):
        tracker.record(parent, *flat_trial(), None, with_artifacts=False)
    tracker.record(parent, *flat_trial(), None, with_artifacts=False)
    (run,) = children(tracker, parent)
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize("text", ["database or disk is full", "attempt to write a readonly database"])
def test_what_does_not_pass_is_not_waited_for(tracker: Tracker, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    calls = lose(
        tracker, monkeypatch, "create_run", 10, after=False, text=f"(sqlite3.OperationalError) {text}\n[SQL: x]"
    )
    with pytest.raises(TrackingError, match=f"mlflow.db: .*{text}$"):
        tracker.study_run(STUDY, "abc")
    assert calls == [1]


def test_a_refused_request_is_not_repeated(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = lose(tracker, monkeypatch, "get_run", 0, after=False, text="")
    with pytest.raises(TrackingError, match="nobody"):
        tracker.record("nobody", *flat_trial(), None, with_artifacts=False)
    assert calls == [1]


def test_settings_of_the_process_are_left_alone(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    monkeypatch.delenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", raising=False)
    inside: list[str | None] = []
    inner = tracker.client.get_experiment_by_name
    monkeypatch.setattr(
        tracker.client,
        "get_experiment_by_name",
        lambda *a: (inside.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES")), inner(*a))[1],
    )
    tracker.study_run(STUDY, "abc")
    assert inside[0] == "0"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3"
    assert "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT" not in os.environ


@contextmanager
def stranger() -> Iterator[int]:
    """A web server that is not MLflow's; gives its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("./mlruns", "'./mlruns' is a folder"),
        ("file:///tmp/mlruns", "is a folder"),
        ("ftp://host/x", "unknown kind 'ftp'"),
        ("sqlite://", "sqlite needs a file"),
        ("sqlite:///:memory:", "sqlite needs a file"),
        ("sqlite:////proc/nowhere/mlflow.db", "/proc/nowhere"),
        ("http://", "names no host"),
        ("http://{closed}", "connection refused"),
        ("http://no-such-host.invalid:5000", "no host of that name"),
        ("http://{stranger}", "404"),
        ("sqlite:///{folder}", "is a folder, expected a file"),
        ("sqlite:///{text}", "not a database"),
        ("postgresql://me:hunter2@{closed}/mlflow", "psycopg|connection refused"),
    ],
)
def test_wrong_addresses_are_named(tmp_path: Path, bad: str, said: str) -> None:
    (tmp_path / "text.db").write_text("this is not a database " * 100)
    with stranger() as port:
        bad = bad.format(
            closed=f"127.0.0.1:{closed_port()}",
            stranger=f"127.0.0.1:{port}",
            folder=tmp_path,
            text=tmp_path / "text.db",
        )
        with pytest.raises(InputError, match=said) as caught:
            Tracker(bad, patience=0.3)
    assert masked(bad) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.slow
def test_a_full_disk_at_the_first_use_is_said(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    script = f"""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        from nbsr_core.errors import InputError
        from nbsr_platform.tracking import Tracker
        try:
            Tracker("sqlite:///{tmp_path}/mlflow.db", patience=0.3)
        except InputError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert re.search(r"cannot open tracking store sqlite:///.*: .*(disk|full)", done.stdout), done
    assert len(done.stdout.splitlines()) == 1
    assert not list(tmp_path.iterdir()), "nothing half-done stays behind"


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=4, max_size=20),
    st.sampled_from(["postgresql://me:{}@host/db", "http://me:{}@host:5000", "mysql://host/db?user=a&password={}&x=1"]),
)
def test_secrets_never_show(secret: str, where: str) -> None:
    from urllib.parse import quote

    uri = where.format(quote(secret, safe=""))
    shown = masked(uri)
    assert shown == where.format("***")
    assert masked(shown) == shown


@pytest.mark.parametrize("password", ["p@ss", "a/b", "a?b", "a:b", "postgres", "ü%40"])
def test_badly_escaped_passwords_do_not_show_either(password: str) -> None:
    assert masked(f"postgresql://me:{password}@host:5432/db") == "postgresql://me:***@host:5432/db"


def test_errors_and_logs_of_a_lost_server_hide_the_password(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = TrackingStore.__new__(TrackingStore)
    address = "http://me:hunter2@127.0.0.1:1"
    vars(store).update(vars(tracker.store))
    store.uri, store.public_uri, store.secrets, store.patience = address, masked(address), ["hunter2"], 0.3
    lose(tracker, monkeypatch, "get_run", 100, after=False, text=f"API request to {address}/api failed with exception")
    with caplog.at_level(logging.DEBUG), pytest.raises(TrackingError) as caught:
        store.call("get_run", "x")
    text = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "***@127.0.0.1" in text
    assert "hunter2" not in text


def test_a_deleted_experiment_comes_back(tracker: Tracker, uri: str) -> None:
    parent = tracker.study_run(STUDY, "abc")
    tracker.client.delete_experiment(tracker.client.get_run(parent).info.experiment_id)
    again = Tracker(uri)
    run_id = again.record(again.study_run(STUDY, "abc"), *flat_trial(), None, with_artifacts=False)
    assert again.client.get_run(run_id).info.status == "FINISHED"


# --- real processes -----------------------------------------------------------------------------------------------

RECORDING = """
    import sys
    sys.path.insert(0, {here!r})
    from toys import ToyStudy, flat_trial
    from nbsr_platform.tracking import Tracker
    tracker = Tracker({uri!r}, patience=90)
    parent = tracker.study_run(ToyStudy(), "abc")
    for seed in range({count}):
        tracker.record(parent, *flat_trial(seed=seed, epochs=40), None, with_artifacts=False)
        print(seed, flush=True)
    tracker.finish_study(parent, {{}}, "FINISHED")
"""


def recording(uri: str, count: int) -> subprocess.Popen[str]:
    script = textwrap.dedent(RECORDING.format(here=str(HERE), uri=uri, count=count))
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def complete(tracker: Tracker, count: int) -> None:
    """Every trial once, whole, and nothing else."""
    experiment = tracker.client.get_experiment_by_name("nbsr-Toy").experiment_id
    (parent,) = tracker.client.search_runs([experiment], "tags.`nbsr.role` = 'study'")
    runs = children(tracker, parent.info.run_id)
    assert sorted(int(run.data.tags["nbsr.seed"]) for run in runs) == list(range(count))
    assert {run.info.status for run in [parent, *runs]} == {"FINISHED"}
    for run in runs:
        expected = trial_figures(flat_trial(seed=int(run.data.tags["nbsr.seed"]), epochs=40)[1])
        found = histories(tracker, run.info.run_id)
        assert {(name, step): v for name, points in found.items() for step, v in points} == expected
        assert sum(map(len, found.values())) == len(expected), "no step twice"


@pytest.mark.slow
def test_kill_9_while_recording_loses_and_doubles_nothing(tmp_path: Path) -> None:
    uri, count = store_uri(tmp_path), 12
    for last_seen in ("1", "5"):
        process = recording(uri, count)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == last_seen:
                time.sleep(0.02)
                process.kill()
        process.wait()
        process.stdout.close()
    process = recording(uri, count)
    process.communicate(timeout=120)
    assert process.returncode == 0
    complete(Tracker(uri), count)


@pytest.mark.slow
def test_kill_9_while_the_tables_are_made_leaves_a_store_that_opens(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    script = f"from nbsr_platform.tracking import Tracker; Tracker('sqlite:///{file}')"
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".mlflow.db.*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    process.wait()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "and says nothing"
    assert Tracker(f"sqlite:///{file}").study_run(STUDY, "abc")


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back_misses_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store_uri(tmp_path)
    port, count = closed_port(), 8
    with server(tmp_path, port) as uri:
        Tracker(uri, patience=60).study_run(STUDY, "abc")  # up, and answering
        process = recording(uri, count)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "2":
                break
    time.sleep(8)
    with server(tmp_path, port) as uri:
        process.communicate(timeout=180)
        assert process.returncode == 0
        tracker = Tracker(uri, patience=60)
        complete(tracker, count)
        trial, result = flat_trial(seed=100)
        parent = tracker.study_run(STUDY, "with artifacts")
        run_id = tracker.record(parent, trial, result, None, with_artifacts=True)
        assert "accuracy" in text_of(tracker, run_id, "metrics.json", tmp_path / "down")
    assert capfd.readouterr().out == "", "standard output belongs to --json"


def test_the_trial_of_the_toys_is_known_by_its_key() -> None:
    assert make_trial("mlp").key == flat_trial()[0].key != make_trial("mlp", seed=1).key
