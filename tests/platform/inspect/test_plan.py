"""Plans: what would run, where and for how long, without starting or writing anything."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import ray
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.execution.on_ray.placement import placement
from nbsr_platform.inspect import estimates
from nbsr_platform.inspect import plan as planning
from nbsr_platform.inspect.estimates import Timing, Timings, duration, probe
from nbsr_platform.inspect.plan import NEW_STORE, RAY_START, TEAM_START, Plan, plan, render
from nbsr_platform.search.storage import open_storage
from nbsr_platform.study.study import Collection, Resources, Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid, make_trial

PATIENTS = {"train_patients": 150, "valid_patients": 50, "test_patients": 20, "draws": 0, "noise": 0.0}


def study_of(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "name": "small",
        "domain": "medical",
        "data": PATIENTS,
        "seeds": 3,
        "training": {"epochs": 10},
        "models": {"nbsr": {"hidden": [8]}, "mlp": {"hidden": [8]}},
    }
    return Study.from_dict({**values, **changes})


def search_of(**changes: Any) -> Study:
    search: dict[str, Any] = {
        "trials": 8,
        "objectives": {"valid/accuracy": "maximize", "valid/ece": "minimize"},
        "sampler": {"name": "random", "seed": 7},
        "pruner": {"name": "median", "metric": "valid/nll", "direction": "minimize", "warmup_epochs": 2},
        "space": {
            "graph.shape": {"choice": ["taxonomy", "uniform"]},
            "graph.depth": {"int": [1, 3], "when": {"graph.shape": "uniform"}},
            "training.batch_size": {"int": [16, 64], "step": 16},
            "training.learning_rate": {"float": [1e-4, 1e-2], "log": True},
            "eta": "frontier",
        },
    }
    return study_of(models={"nbsr": {"hidden": [8]}}, seeds=1, search={**search, **changes})


def finished(trial: Trial, epochs: list[float], seconds: float, device: str = "cpu") -> TrialResult:
    rows = [{"epoch": float(number), "seconds": spent} for number, spent in enumerate(epochs)]
    plain = {name: value for name, value in vars(trial).items() if name != "key"}
    return TrialResult(trial.key, "finished", seconds, rows, environment={"device": device}, trial=plain)


def shown(planned: Plan) -> str:
    console = Terminal(file=io.StringIO(), width=200)
    render(planned, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four CPUs, no GPU, and no time for probes."""
    monkeypatch.setattr(planning, "this_machine", lambda: {"CPU": 4.0, "GPU": 0.0})
    monkeypatch.setattr(estimates, "probe", lambda trial, where: Timing(1.0, 2.0, False, "a stand-in"))


def test_a_fresh_study_is_probed_and_nothing_is_left_behind(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    models = {"nbsr": {"hidden": [8]}, "xgboost": {"n_estimators": 2}}
    planned = plan(study_of(models=models), home)
    assert (planned.total, planned.done, planned.to_run) == (6, 0, 6)
    nbsr, trees = planned.studies[0].models
    assert nbsr.timing is not None
    assert nbsr.timing.basis == "a probe of 2 epochs"
    assert nbsr.epochs == 10
    assert trees.timing is not None
    assert trees.timing.basis == "a probe of 1 epoch"
    assert trees.epochs == 1  # boosting has no epochs to repeat
    assert planned.seconds is not None
    assert planned.seconds > RAY_START + NEW_STORE
    assert not home.root.exists()
    assert not ray.is_initialized()


@pytest.mark.usefixtures("machine")
def test_trials_that_were_trained_and_are_judged_in_another_way_are_counted_apart(tmp_path: Path) -> None:
    study, home = study_of(), Home(tmp_path)
    trials = grid(study, data_fingerprint(study))
    for trial in trials:
        if trial.label == "nbsr" or trial.seed == 0:
            result = finished(trial, [1.0] * 10, seconds=12.0)
            ResultStore(home.trials).save(replace(result, weights=trial.weights_key, state={}))
    planned = plan(study_of(evaluation={"eta": -1.0}), home)
    assert (planned.done, planned.to_run, planned.to_judge) == (0, 6, 4)
    nbsr, mlp = planned.studies[0].models
    assert (nbsr.to_judge, nbsr.to_train, mlp.to_judge, mlp.to_train) == (3, 0, 1, 2)
    assert planned.studies[0].seconds == max(12.0, (3 * 2.0 + 2.0 + 2 * 12.0) / 4)
    assert planned.to_json()["trials"]["to_judge"] == 4
    assert "6 of 6 trials to run (4 of them judged again, without training)" in shown(planned)
    assert "only to judge" in shown(planned)
    assert "only to judge" not in shown(plan(study_of(training={"epochs": 9}), home))


@pytest.mark.usefixtures("machine")
def test_finished_trials_are_counted_and_their_times_used(tmp_path: Path) -> None:
    study, home = study_of(), Home(tmp_path)
    trials = grid(study, data_fingerprint(study))
    store = ResultStore(home.trials)
    mine = [trial for trial in trials if trial.label == "nbsr"]
    store.save(finished(mine[0], [9.0, 1.0, 1.5], seconds=13.5))  # median 1.5, rest 2
    store.save(finished(mine[1], [2.5, 2.5, 2.5], seconds=11.5))  # median 2.5, rest 4
    planned = plan(study, home)
    nbsr, mlp = planned.studies[0].models
    assert (nbsr.total, nbsr.done, nbsr.to_run) == (3, 2, 1)
    assert nbsr.timing == Timing(2.0, 3.0, False, "2 recorded trials")
    assert nbsr.seconds_each == 23.0
    assert mlp.timing is not None
    assert mlp.timing.basis == "a stand-in"
    assert mlp.seconds_each == 12.0
    # 23 s and 3 x 12 s on four CPUs: the longest trial decides.
    assert planned.studies[0].seconds == 23.0
    assert planned.seconds == 23.0 + RAY_START + NEW_STORE
    text = shown(planned)
    assert "2 recorded trials" in text
    assert "a stand-in" in text
    assert "4 of 6 trials to run" in text


@pytest.mark.usefixtures("machine")
def test_only_trials_that_are_alike_count(tmp_path: Path) -> None:
    study, home = study_of(), Home(tmp_path)
    store, where = ResultStore(home.trials), placement(study.resources, {"CPU": 4.0})
    trial = grid(study, data_fingerprint(study))[0]
    store.save(finished(replace(trial, data={**trial.data, "train_patients": 9}), [5.0], 6.0))
    store.save(finished(replace(trial, kind="mlp", seed=5), [5.0], 6.0))
    store.save(finished(replace(trial, seed=6), [5.0], 6.0, device="some GPU"))
    assert Timings(store).of(trial, where).basis == "a stand-in"
    other_size = replace(trial, seed=7, options={**trial.options, "hidden": [64]})
    store.save(finished(other_size, [7.0], 8.0))
    assert Timings(store).of(trial, where) == Timing(7.0, 1.0, True, "1 recorded trial")
    store.save(finished(replace(trial, seed=8), [3.0, 3.0], 8.0))  # the same size: better than another one
    assert Timings(store).of(trial, where) == Timing(3.0, 2.0, False, "1 recorded trial")
    (store.folder(replace(trial, seed=8).key) / "result.json").write_text("{")  # unreadable: as if it was not there
    assert Timings(store).of(trial, where).epoch == 7.0


@pytest.mark.usefixtures("machine")
def test_time_is_shared_among_workers(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert plan(study_of(seeds=20), home).studies[0].seconds == 40 * 12.0 / 4
    assert plan(study_of(seeds=20, resources={"concurrency": 2}), home).studies[0].seconds == 40 * 12.0 / 2
    assert plan(study_of(seeds=20, resources={"cpus_per_worker": 4}), home).studies[0].seconds == 40 * 12.0
    teams = plan(study_of(seeds=20, resources={"workers": 2}), home).studies[0]
    assert teams.seconds == 40 * (12.0 + TEAM_START) / 2
    assert "2 trials at once, 2 workers with 1 CPU each" in shown(Plan("x", (teams,)))


@pytest.mark.usefixtures("machine")
def test_when_all_is_done_nothing_runs(tmp_path: Path) -> None:
    study, home = study_of(), Home(tmp_path)
    for trial in grid(study, data_fingerprint(study)):
        ResultStore(home.trials).save(finished(trial, [1.0], 2.0))
    planned = plan(study, home)
    assert (planned.to_run, planned.seconds, planned.starting) == (0, 0.0, {})
    assert "nothing to run, all 6 trials are done" in shown(planned)


@pytest.mark.usefixtures("machine")
def test_a_collection_starts_ray_once(tmp_path: Path) -> None:
    both = Collection("both", None, (study_of(), study_of(name="other", seeds=1)))
    planned = plan(both, Home(tmp_path))
    assert [study.name for study in planned.studies] == ["small", "other"]
    assert planned.total == 8
    assert sum(planned.starting.values()) == RAY_START + NEW_STORE
    (tmp_path / "mlflow.db").touch()
    assert sum(plan(both, Home(tmp_path)).starting.values()) == RAY_START


@pytest.mark.usefixtures("machine")
def test_a_search_is_described_and_its_journal_counted(tmp_path: Path) -> None:
    study, home = search_of(), Home(tmp_path)
    planned = plan(study, home)
    assert not home.search_journal("x").parent.exists()
    (model,) = planned.studies[0].models
    assert (model.total, model.done) == (8, 0)
    search = planned.studies[0].search
    assert search is not None
    assert search.space == {
        "graph.shape": "one of taxonomy, uniform",
        "graph.depth": "1 to 3, if graph.shape is uniform",
        "training.batch_size": "16 to 64 in steps of 16",
        "training.learning_rate": "0.0001 to 0.01, logarithmic",
        "eta": "picked from the frontier, needs no trial",
    }
    assert search.sampler == "random, seed 7"
    assert search.pruner == "median on valid/nll (minimize), after 2 epochs"
    text = shown(planned)
    assert "8 proposals to maximize valid/accuracy, minimize valid/ece" in text
    assert "upper bounds: pruning" in text

    name = f"{study.name}-{study_key(study, data_fingerprint(study))}"
    journal = optuna.create_study(
        storage=open_storage(home, name), study_name=name, directions=["maximize", "minimize"]
    )
    states = [optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL]
    for state in states:
        values = [0.5, 0.1] if state == states[0] else None
        journal.add_trial(optuna.trial.create_trial(state=state, values=values))
    journal.ask()  # under way when its run was killed: it goes on
    (model,) = plan(study, home).studies[0].models
    assert (model.done, model.to_run) == (3, 5)
    assert model.seconds_each == 12.0
    assert len(journal.get_trials()) == 4  # a plan proposes nothing


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"cpus_per_worker": 5}, "asks for 5 CPUs, but there are 4 here"),
        ({"workers": 3, "cpus_per_worker": 2}, "asks for 6 CPUs"),
        ({"concurrency": 9}, "room for 4 trials at once, not for 9"),
        ({"gpus_per_worker": 1}, "no GPU here"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, resources: dict[str, Any], says: str) -> None:
    planned = plan(study_of(resources=resources), Home(tmp_path))
    assert any(says in note for note in planned.studies[0].notes)
    assert says in shown(planned)


@pytest.mark.usefixtures("machine")
def test_early_stopping_makes_times_upper_bounds(tmp_path: Path) -> None:
    assert plan(study_of(), Home(tmp_path)).studies[0].notes == ()
    (note,) = plan(study_of(training={"stop_patience": 3}), Home(tmp_path)).studies[0].notes
    assert "upper bounds: early stopping" in note


def test_a_failing_probe_tells_why(tmp_path: Path) -> None:
    study = study_of(models={"nbsr": {"graph": {"shape": "uniform"}, "objective": {"concept": 1.0}}}, seeds=1)
    planned = plan(study, Home(tmp_path))
    (model,) = planned.studies[0].models
    assert model.timing is not None
    assert "concept needs graph.shape: taxonomy" in model.timing.basis
    assert (model.seconds_each, planned.seconds) == (None, None)
    assert "unknown in all" in shown(planned)


def test_a_training_that_cannot_be_cut_short_is_begun_and_left() -> None:
    study = Study.from_dict(
        {
            "name": "rounds",
            "domain": "navigation",
            "data": {"task": "tmaze", "train": 40, "valid": 20, "test": 20},
            "training": {"epochs": 8, "batch_size": 20},
            "models": {"cnn_gru": {"dagger": {"rounds": 3, "episodes": 10}}},
        }
    )
    (trial,) = grid(study, data_fingerprint(study))
    timing = probe(trial, placement(Resources(), {"CPU": 1.0}))
    assert timing.basis == "a probe of 2 epochs, without judging"
    assert timing.epoch is not None


def test_a_probe_leaves_threads_and_trial_as_they_were() -> None:
    import torch

    study = study_of()
    trial = make_trial(study, "mlp", 0, data_fingerprint(study))
    before = torch.get_num_threads(), dict(trial.training)
    timing = probe(trial, placement(Resources(), {"CPU": 1.0}))
    assert timing.epoch is not None
    assert timing.epoch > 0
    assert timing.rest >= 0
    assert (torch.get_num_threads(), dict(trial.training)) == before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0.04, "0.0 s"),
        (9.3, "9.3 s"),
        (42, "42 s"),
        (100, "2 min"),
        (5940, "99 min"),
        (7260, "2 h 1 min"),
    ],
)
def test_durations_are_words(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
