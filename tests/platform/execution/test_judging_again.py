"""Trials whose models were trained before are judged, not trained; and the table of what trains and judges is true."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from mlflow import MlflowClient
from nbsr_platform.execution.runner import run
from nbsr_platform.execution.worker import _load_splits, judge_again, run_trial
from nbsr_platform.study.study import Study
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import data_fingerprint, grid
from nbsr_platform.trials.weights import Learned, WeightsStore
from processes import NAPS, SEARCH, document, nbsr, place

from nbsr_core.code.roles import library_files, role_of
from nbsr_core.evaluation.evaluation import Evaluation

PATIENTS = {"source": "embedded", "train_patients": 400, "valid_patients": 80, "test_patients": 40}
DENSITY = {"density": {"enabled": True}}
SMALL = {"name": "small", "size": 16}
STUDIES: dict[str, dict[str, Any]] = {
    "iris": {"models": {"nbsr": {}, "mlp": {}}},
    "medical": {
        "data": PATIENTS,
        "evaluation": {"audits": 2, "max_accuracy_loss": 0.05},
        "models": {
            "nbsr": DENSITY,
            "mlp": {},
            "xgboost": {"n_estimators": 3},
            "evidential": {},
            "ensemble": {"members": 2},
            "mc_dropout": {"passes": 3},
            "soft_tree": {},
            "early_exit": {},
            "tabm": {"members": 2},
            "cart": {},
            "hist_boosting": {"max_iter": 2},
        },
    },
    "language": {
        "data": {"train": 100, "test": 40},
        "evaluation": {"max_nll_loss": 0.01, "audits": 2},
        "models": {"nbsr": {**DENSITY, "routing": "argmax"}, "standard": {}, "moe": {}},
    },
    "acquisition": {
        "data": {"source": "cube", "train_rows": 60, "valid_rows": 40, "test_rows": 40, "budgets": [2.0, 3.0]},
        "models": {"dime": {"policy_after": 0}, "gdfs": {"policy_after": 0}, "fixed_order": {}},
    },
    "triage": {
        "data": {**PATIENTS, "noise_scheme": "fresh", "draws": 1},
        "models": {"planner": {"policy_after": 0}, "greedy": {"policy_after": 0}, "cheap_first": {}},
    },
    "navigation": {
        "data": {"task": "tmaze", "train": 20, "valid": 10, "test": 10},
        "models": {"nbsr_mem": DENSITY, "cnn_gru": {}, "cnn": {}},
    },
    "vision": {
        "data": {"source": "digits", "subset": 100, "valid": 0.3, "size": 16, "ood": ["patches"]},
        "models": {"flat": {"backbone": SMALL}, "moe": {"backbone": SMALL}, "nbsr": {"backbone": SMALL, **DENSITY}},
    },
}
# Modules that neither train nor judge, and find what does.
FINDERS = {"_extras", "_lazy", "__init__", "code.named", "code.project", "code.sources", "code.meaning", "code.roles"}


def study_of(domain: str) -> Study:
    training = {"epochs": 1, "batch_size": 256}
    return Study.from_dict({"name": "small", "domain": domain, "training": training, **STUDIES[domain]})


@contextmanager
def called() -> Iterator[set[str]]:
    """Places of this library's modules of which a function is called."""
    places = {str(file): place for place, file in library_files().items()}
    files: set[str] = set()
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and not frame.f_code.co_name.startswith("<module"):
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found |= {places[name] for name in files if name in places}


@pytest.mark.parametrize("domain", STUDIES)
def test_a_model_that_is_judged_again_has_the_figures_of_a_fresh_one_and_each_calls_the_code_of_its_key(
    domain: str, tmp_path: Path
) -> None:
    study = study_of(domain)
    for trial in grid(study, data_fingerprint(study)):
        events = run_trial(trial, "cpu")
        with called() as in_all:
            *_, fresh = events
        assert isinstance(fresh, TrialResult)
        learned = learned_by(fresh, tmp_path)
        torch.rand(7)  # whatever happened in this process before
        with called() as in_judging:
            (again,) = judge_again(trial, "cpu", learned)
        assert again.metrics == pytest.approx(fresh.metrics, nan_ok=True, abs=0, rel=0), trial.name
        assert (again.tables, again.audits, again.warnings) == (fresh.tables, fresh.audits, fresh.warnings)
        assert (again.key, again.weights, again.trial) == (fresh.key, trial.weights_key, asdict(trial))
        assert (again.epochs, again.seconds, again.trained_in) == (learned.epochs, 2.0, {"torch": "1.0"})
        assert again.state is None, "it is in the store"
        # What is called in a fresh run and not in judging is training.
        assert {place for place in in_all - in_judging if role_of(place) != "trains"} <= FINDERS, trial.name
        assert {place for place in in_judging if role_of(place) == "neither"} <= FINDERS, trial.name
        assert {place for place in in_judging if role_of(place) == "judges"}, "something judges"
        assert "learning.trainer" not in in_judging, "and nothing trains"


@pytest.mark.parametrize("domain", STUDIES)
def test_nothing_that_judges_is_called_while_a_model_is_trained(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging is left out, so that all that is called is loading, building and training."""
    study, no_figures = study_of(domain), Evaluation()
    monkeypatch.setattr(type(study.domain_object), "judge", lambda *_: no_figures)
    for trial in grid(study, data_fingerprint(study))[:1]:
        _load_splits.cache_clear()
        with called() as in_training:
            list(run_trial(trial, "cpu"))
        assert {place for place in in_training if role_of(place) == "judges"} == set()
        assert {place for place in in_training if role_of(place) == "neither"} <= FINDERS


def learned_by(result: TrialResult, folder: Path) -> Learned:
    """What a worker gets of it: from the disk."""
    assert result.state is not None
    store = WeightsStore(folder / "weights")
    store.save(Learned(result.weights, [{"epoch": 0.0, "seconds": 2.0}], {"torch": "1.0"}, result.state))
    found = store.find(result.weights)
    assert found is not None
    return found


QUICK = ("--set", "data.seconds=0", "--set", "seeds=1", "--set", "training.epochs=2")


@dataclass
class Runs:
    """A study that writes down every batch that it trains on."""

    folder: Path

    def run(self, *more: str) -> dict[str, Any]:
        return document(self.folder, "naps.yaml", *QUICK, *more)

    @property
    def batches(self) -> int:
        return len((self.folder / "naps.log").read_text().splitlines())


@pytest.mark.timeout(900)
def test_another_evaluation_option_trains_nothing_and_gives_the_figures_of_a_fresh_run(tmp_path: Path) -> None:
    runs = Runs(place(tmp_path / "here", NAPS))
    first = runs.run()
    trained, option = runs.batches, ("--set", "evaluation.eta=-0.5")
    again = runs.run(*option)
    assert again["trials"] == {"total": 2, "finished": 2, "reused": 0, "failed": 0, "pruned": 0, "judged_again": 2}
    assert runs.batches == trained, "on Ray nothing was trained"
    assert again["table"] != first["table"]
    client = MlflowClient(again["tracking_uri"])
    for child in client.search_runs(["1"], f"tags.mlflow.parentRunId = '{again['run_id']}'"):
        assert [point.step for point in client.get_metric_history(child.info.run_id, "train/loss")] == [0, 1]
        assert child.data.tags["nbsr.status"] == "finished"
    fresh = runs.run(*option, "--local", "--home", "fresh")
    assert runs.batches == 2 * trained
    assert fresh["table"] == again["table"]
    said = nbsr("run", "naps.yaml", *QUICK, "--set", "evaluation.eta=-0.6", "--local", cwd=runs.folder)
    assert "naps: 2 trials judged again, nothing trained" in said.stdout, said.stderr
    more = ("--set", "evaluation.eta=-0.7", "--set", "seeds=2")
    said = nbsr("run", "naps.yaml", *QUICK, *more, "--local", cwd=runs.folder)
    assert "naps: 2 trials judged again, 2 trained" in said.stdout, said.stderr
    assert runs.batches == 3 * trained


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_team_trained_is_judged_again_by_one(tmp_path: Path) -> None:
    runs = Runs(place(tmp_path / "here", NAPS))
    team = ("--set", "resources.workers=2", "--set", "models={mlp: {}}", "--set", "resources.same_environment=true")
    runs.run(*team)
    trained = runs.batches
    again = runs.run(*team, "--set", "evaluation.audits=1")
    assert again["trials"]["judged_again"] == 1
    assert runs.batches == trained


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_on_another_node_gets_what_was_learned_from_the_drivers(tmp_path: Path) -> None:
    import ray
    from nbsr_platform.execution.on_ray.shelf import Shelf
    from ray.cluster_utils import Cluster

    weights = WeightsStore(tmp_path / "weights")
    weights.save(Learned("abc", [{"epoch": 0.0}], {"torch": "2"}, {"w": torch.ones(3)}))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1, resources={"elsewhere": 1})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        shelf = Shelf.of_driver(weights)

        @ray.remote(resources={"elsewhere": 1})  # type: ignore[untyped-decorator]
        def fetch(key: str) -> tuple[str, Learned | None]:
            return ray.get_runtime_context().get_node_id(), shelf.fetch(key)

        node, found = ray.get(fetch.remote("abc"))
        assert node != shelf.node
        assert found.state["w"].tolist() == [1.0, 1.0, 1.0]
        assert ray.get(fetch.remote("missing"))[1] is None
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_search_with_another_evaluation_option_judges_its_proposals_again(tmp_path: Path) -> None:
    (tmp_path / "hunt.yaml").write_text(SEARCH.replace("trials: 8", "trials: 2").replace("epochs: 3", "epochs: 1"))

    def hunt(**evaluation: float) -> dict[str, Any]:
        overrides = [f"evaluation.{name}={value}" for name, value in evaluation.items()]
        study = Study.load(tmp_path / "hunt.yaml", overrides)
        return run(study, home=tmp_path / "home", local=True).to_json()

    first, again = hunt(), hunt(max_accuracy_loss=0.2)
    assert "judged_again" not in first["trials"]
    assert again["trials"]["judged_again"] == again["trials"]["finished"] == 2
    assert len(WeightsStore(tmp_path / "home" / "weights").keys()) == 2


def test_what_was_learned_is_kept_where_judging_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.from_dict({"name": "small", "domain": "iris", "training": {"epochs": 2}, "models": {"mlp": {}}})
    domain = type(study.domain_object)

    def mistaken(*_: Any) -> Evaluation:
        raise ZeroDivisionError("a mistake in judging")

    with monkeypatch.context() as broken:
        broken.setattr(domain, "evaluate", mistaken)
        first = run(study, home=tmp_path, local=True)
    ((_, failed),) = first.parts[0].failed
    assert "a mistake in judging" in failed.last_words
    assert len(failed.epochs) == 2
    again = run(study, home=tmp_path, local=True).to_json()["trials"]
    assert (again["finished"], again["judged_again"]) == (1, 1), "mended, nothing is trained again"
