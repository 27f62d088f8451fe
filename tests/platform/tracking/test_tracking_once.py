"""What is recorded is there once, whoever is killed on the way."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toys
from nbsr_platform.tracking.names import trial_figures, trial_parameters
from nbsr_platform.tracking.tracker import Tracker
from processes import closed_port, server
from records import WRITES, Killed, children, histories, interrupt, text_of
from toys import ToyStudy, flat_trial, store_uri

STUDY = ToyStudy()
HERE = Path(toys.__file__).parent


@pytest.fixture
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbsr_platform.tracking.tracker.MOST_METRICS", 40)
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

    def counted(*arguments: Any, **options: Any) -> None:
        sent.append(len(options["metrics"]))
        inner(*arguments, **options)

    monkeypatch.setattr(again.client, "log_batch", counted)
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


def test_a_trial_costs_four_writes_and_no_reads(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tracker.study_run(STUDY, "abc")
    made = interrupt(tracker, monkeypatch, 1000)
    for name in ("get_run", "search_runs", "get_metric_history", "get_experiment_by_name"):
        monkeypatch.setattr(tracker.client, name, lambda *_, **__: pytest.fail("not needed"))
    tracker.record(parent, *flat_trial(), None, with_artifacts=False)
    assert made == ["create_run", "log_text", "log_batch", "set_terminated"]


def test_another_study_records_the_same_trial_for_itself(tracker: Tracker) -> None:
    trial, result = flat_trial()
    runs = [
        tracker.record(tracker.study_run(STUDY, key), trial, result, None, with_artifacts=False) for key in ("a", "b")
    ]
    assert len(set(runs)) == 2


# --- real processes ---


RECORDING = """
    import sys
    sys.path.insert(0, {here!r})
    from toys import ToyStudy, flat_trial
    from nbsr_platform.tracking.tracker import Tracker
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
    script = f"from nbsr_platform.tracking.tracker import Tracker; Tracker('sqlite:///{file}')"
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".tmp-mlflow.db-*/mlflow.db")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    process.wait()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "and says nothing"
    assert list(tmp_path.glob(".*")) == [], "and removes what was left"
    assert Tracker(f"sqlite:///{file}").study_run(STUDY, "abc")


@pytest.mark.slow
@pytest.mark.timeout(900)
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
