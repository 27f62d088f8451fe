"""Tracking stores that are away, busy, full or wrong."""

from __future__ import annotations

import http.server
import logging
import os
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.base.credentials import masked
from nbsr_platform.tracking.names import trial_figures
from nbsr_platform.tracking.store import TrackingError, TrackingStore, our_settings
from nbsr_platform.tracking.tracker import Tracker
from processes import closed_port
from records import children, histories
from toys import ToyStudy, flat_trial

from nbsr_core.errors import InputError

STUDY = ToyStudy()


def test_an_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(TrackingError("http://there", "connection refused", "INTERNAL_ERROR")))
    assert str(error) == "tracking store http://there: connection refused"
    assert (error.reason, error.code) == ("connection refused", "INTERNAL_ERROR")


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

    def watched(*arguments: Any) -> Any:
        inside.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES"))
        return inner(*arguments)

    monkeypatch.setattr(tracker.client, "get_experiment_by_name", watched)
    tracker.study_run(STUDY, "abc")
    assert inside[0] == "0"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3"
    assert "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT" not in os.environ


def test_settings_hold_until_the_last_thread_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """They did not: whoever left first took away those of everybody, and MLflow repeated requests by itself."""
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    monkeypatch.setenv(name, "3")
    inside, go = threading.Event(), threading.Event()

    def other() -> None:
        with our_settings:
            inside.set()
            assert go.wait(60)

    thread = threading.Thread(target=other)
    with our_settings:
        thread.start()
        assert inside.wait(60)
    assert os.environ[name] == "0"
    go.set()
    thread.join()
    assert os.environ[name] == "3"


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
        from nbsr_platform.tracking.tracker import Tracker
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
