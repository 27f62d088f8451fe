"""What is recorded is there and readable by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.study.paper import Paper
from nbsr_platform.tracking.names import experiment_name, metric_name, trial_parameters
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.home import Home
from records import children, histories, text_of
from toys import ToyStudy, flat_trial, make_trial, store_uri

STUDY = ToyStudy()


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


def test_which_runs_used_this_data_has_an_answer(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial(seed=1)
    others, _ = flat_trial(seed=2)
    elsewhere = replace(others, data_fingerprint="another")
    ids = [
        tracker.record(parent, each, replace(result, key=each.key), None, with_artifacts=False)
        for each in (trial, elsewhere)
    ]
    again = Tracker(uri, tmp_path / "artifacts")
    again._log_data(ids[0], trial, result)  # as whoever was killed before the end of a recording does
    experiment = tracker.client.get_run(parent).info.experiment_id
    asked = f"dataset.digest = '{trial.data_fingerprint}'"
    (found,) = tracker.client.search_runs([experiment], asked)
    assert found.info.run_id == ids[0]
    (used,) = found.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("Toy", trial.data_fingerprint)
    assert json.loads(used.dataset.source) == {"source": "four clouds", "synthetic": True}


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
    assert [found.path for found in tracker.client.list_artifacts(run_id)] == ["study.yaml"]
    assert tracker.record_member(parent, trial, result, None) == run_id
    assert [found.path for found in tracker.client.list_artifacts(run_id)] == ["metrics.json", "study.yaml"]
    assert tracker.client.get_run(run_id).data.tags["nbsr.pareto"] == "true"
    monkeypatch.setattr(tracker.client, "log_artifacts", lambda *_: pytest.fail("written twice"))
    for one in (tracker, Tracker(tracker.store.uri)):
        assert one.record_member(parent, trial, result, None) == run_id


def test_a_member_that_others_stand_for_gets_the_tag_alone_and_once(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tracker.study_run(STUDY, "abc")
    trial, result = flat_trial()
    run_id = tracker.record_member(parent, trial, result, None, with_artifacts=False)
    assert [found.path for found in tracker.client.list_artifacts(run_id)] == ["study.yaml"]
    tags = tracker.client.get_run(run_id).data.tags
    assert tags["nbsr.pareto"] == "true"
    assert "nbsr.artifacts" not in tags
    again = Tracker(tracker.store.uri)
    monkeypatch.setattr(again.client, "set_tag", lambda *_: pytest.fail("tagged twice"))
    assert again.record_member(parent, trial, result, None, with_artifacts=False) == run_id


def test_the_trial_of_the_toys_is_known_by_its_key() -> None:
    assert make_trial("mlp").key == flat_trial()[0].key != make_trial("mlp", seed=1).key


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
