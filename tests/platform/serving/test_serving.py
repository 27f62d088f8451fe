"""A stored model answers like the one that was trained, takes frames as people have them, and holds no pickle."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from nbsr_platform.serving.saving import save_model
from nbsr_platform.serving.served_model import CONFIG, WEIGHTS, ModelConfig, ServedModel, inputs, load_learner
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial
from toys import CLASSES, SMALL, ToyStudy, make_trial, store_uri, train

from nbsr_core.domains.service import Column
from nbsr_core.errors import InputError
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Splits

FEATURES = tuple(f"f{i}" for i in range(5))


class Trained:
    """A trained model and its folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.trial: Trial = make_trial(kind)
        learned: tuple[Learner, Splits, TrialResult] = train(self.trial)
        self.learner, self.splits, self.result = learned
        self.config = replace(ModelConfig.of(self.trial, self.result), eta=None, max_vacuity=None)
        self.folder = folder / kind
        save_model(self.folder, self.config, self.learner.state())
        self.frame = pd.DataFrame(self.splits.test.x.numpy(), columns=list(FEATURES))


@pytest.fixture(scope="module")
def all_trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: Trained(kind, folder) for kind in SMALL}


@pytest.fixture(params=list(SMALL))
def trained(request: pytest.FixtureRequest, all_trained: dict[str, Trained]) -> Trained:
    return all_trained[request.param]


@pytest.fixture
def nbsr(all_trained: dict[str, Trained]) -> Trained:
    return all_trained["nbsr"]


@pytest.fixture(autouse=True)
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow puts a model's code first on Python's path, and leaves it there."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def load(folder: Path) -> Any:
    import mlflow.pyfunc

    return mlflow.pyfunc.load_model(str(folder))


def load_without_mlflow(folder: Path) -> ServedModel:
    return ServedModel.load(folder / "artifacts" / CONFIG, folder / "artifacts" / WEIGHTS)


def test_a_loaded_model_gives_the_learners_own_probabilities(trained: Trained) -> None:
    answer = load(trained.folder).predict(trained.frame)
    expected = trained.learner.probabilities(trained.splits.test.x).double().numpy()
    assert list(answer.columns) == [
        *("label", "confidence", "depth", "vacuity", "abstained", "path"),
        *(f"p({name})" for name in CLASSES),
    ]
    np.testing.assert_allclose(answer[[f"p({name})" for name in CLASSES]].to_numpy(), expected, rtol=0, atol=1e-6)
    assert list(answer["label"]) == [CLASSES[i] for i in expected.argmax(1)]
    np.testing.assert_allclose(answer["confidence"], expected.max(1), atol=1e-6)


def test_what_else_a_model_is_built_from_is_stored_with_it(nbsr: Trained) -> None:
    config = replace(nbsr.config, structure={"taxonomy": {"heavy": ["a", "b"]}})
    assert ModelConfig.from_json(config.to_json()).signature.structure == {"taxonomy": {"heavy": ["a", "b"]}}


def test_nbsr_is_stored_with_calibration_and_density(nbsr: Trained) -> None:
    learner = load_learner(nbsr.config, nbsr.learner.state())
    assert isinstance(learner, NbsrLearner)
    assert bool(learner.model.calibration.fitted)
    assert learner.model.density is not None
    assert learner.model.density.fitted
    assert not learner.model.training
    far = nbsr.frame + 1000
    assert (ServedModel(nbsr.config, learner).predict(far)["vacuity"] > 0.99).all(), "the unknown is known as such"


def test_baselines_do_not_walk_and_abstain_by_their_confidence(all_trained: dict[str, Trained]) -> None:
    for kind in ("mlp", "xgboost"):
        trained = all_trained[kind]
        answer = load(trained.folder).predict(trained.frame)
        assert answer[["depth", "vacuity"]].isna().all(axis=None)
        assert answer["abstained"].dtype == bool
        limit = trained.config.max_doubt
        assert limit is not None
        np.testing.assert_array_equal(answer["abstained"], 1 - answer["confidence"] > limit)


def test_threshold_and_abstention_are_the_models_own_unless_told(nbsr: Trained, tmp_path: Path) -> None:
    assert isinstance(nbsr.learner, NbsrLearner)
    eta = float(nbsr.learner.trace(nbsr.splits.test.x).entropy[1].median())
    vacuity = float(nbsr.learner.model.predict(nbsr.splits.test.x, eta=eta).vacuity.median())
    save_model(tmp_path / "m", replace(nbsr.config, eta=eta, max_vacuity=vacuity), nbsr.learner.state())
    model = load(tmp_path / "m")
    expected = nbsr.learner.model.predict(nbsr.splits.test.x, eta=eta, max_vacuity=vacuity)
    answer = model.predict(nbsr.frame)
    np.testing.assert_array_equal(answer["depth"], expected.depth.numpy())
    np.testing.assert_allclose(answer["vacuity"], expected.vacuity.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(answer["abstained"], expected.abstained.numpy())
    assert set(answer["depth"]) == {1, 2}
    assert 0 < answer["abstained"].mean() < 1
    assert (model.predict(nbsr.frame, params={"eta": None})["depth"] == 2).all()
    assert (model.predict(nbsr.frame, params={"eta": 1e9, "max_vacuity": 1.0})["depth"] == 1).all()
    assert not model.predict(nbsr.frame, params={"max_vacuity": None})["abstained"].any()


def test_the_operating_point_of_a_trial_is_kept(nbsr: Trained) -> None:
    config = ModelConfig.of(nbsr.trial, replace(nbsr.result, metrics={"fast/eta": -3.5}))
    assert (config.eta, config.max_vacuity) == (-3.5, 0.8)
    for never in (float("-inf"), None):
        metrics: Any = {"fast/eta": never}
        assert ModelConfig.of(nbsr.trial, replace(nbsr.result, metrics=metrics)).eta is None
    assert ModelConfig.of(nbsr.trial, replace(nbsr.result, metrics={})).eta is None
    always = replace(nbsr.trial, evaluation={**nbsr.trial.evaluation, "eta": float("inf")})
    assert ModelConfig.of(always, replace(nbsr.result, metrics={})).eta == sys.float_info.max
    assert ModelConfig.from_json(config.to_json()) == replace(config, options=json.loads(config.to_json())["options"])


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame[frame.columns[::-1]],
        lambda frame: frame.set_axis([f"row {i}" for i in range(len(frame))]),
        lambda frame: frame.astype("float64"),
        lambda frame: frame.astype("Float64"),
    ],
)
def test_order_of_columns_index_and_kind_of_number_do_not_matter(nbsr: Trained, change: Any) -> None:
    model = load(nbsr.folder)
    changed = change(nbsr.frame)
    answer = model.predict(changed)
    assert list(answer.index) == list(changed.index)
    pd.testing.assert_frame_equal(answer.reset_index(drop=True), model.predict(nbsr.frame))


def test_whole_numbers_and_truth_values_are_numbers(nbsr: Trained) -> None:
    whole = (nbsr.frame > 0).astype("int64")
    model = load(nbsr.folder)
    answer = model.predict(whole)
    pd.testing.assert_frame_equal(answer, model.predict(whole.astype(bool)))
    pd.testing.assert_frame_equal(model.predict(whole * 7), model.predict(whole * 7.0))
    expected = nbsr.learner.probabilities(torch.tensor(whole.to_numpy(), dtype=torch.float32))
    np.testing.assert_allclose(answer["p(red)"], expected[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.drop(columns="f3"), "no column 'f3'"),
        (lambda f: f[[]], r"no column 'f0', 'f1', 'f2', 'f3', 'f4' \(expected are 5 features\)"),
        (lambda f: f.assign(extra=1.0, more=2), "does not know, 'extra', 'more'"),
        (lambda f: f.rename(columns={"f1": "F1"}), "no column 'f1'; it has .* not know, 'F1'"),
        (lambda f: pd.concat([f, f[["f2"]]], axis=1), "more than one column 'f2'"),
        (lambda f: f.assign(f1="high"), "must be numbers, but those of 'f1' are not"),
        (lambda f: f.assign(f1=np.nan), "finite numbers, but 'f1' has missing"),
        (lambda f: f.assign(f4=np.inf), "finite numbers, but 'f4' has"),
        (lambda f: f.to_numpy(), "must be a DataFrame .* got ndarray"),
    ],
)
def test_wrong_frames_are_refused_by_name(trained: Trained, change: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_without_mlflow(trained.folder).predict(change(trained.frame))


def test_mlflow_knows_the_columns_of_question_and_answer_and_names_missing_ones(trained: Trained) -> None:
    import mlflow

    model = load(trained.folder)
    signature = model.metadata.signature
    assert [(spec.name, spec.required) for spec in signature.inputs] == [(name, True) for name in FEATURES]
    kinds = {spec.name: spec.type.name for spec in signature.outputs}
    assert list(kinds) == list(model.predict(trained.frame).columns)
    assert (kinds["label"], kinds["abstained"], kinds["vacuity"]) == ("string", "boolean", "double")
    with pytest.raises(mlflow.MlflowException, match=r"missing inputs \['f3'\]"):
        model.predict(trained.frame.drop(columns="f3"))
    with pytest.raises(InputError, match="must be numbers, but those of 'f1' are not"):
        model.predict(trained.frame.assign(f1="high"))


def test_many_missing_columns_are_not_all_listed() -> None:
    with pytest.raises(InputError, match=r"'a4' and 95 more \(expected are 100 features\)"):
        inputs(pd.DataFrame(), tuple(Column(f"a{i}") for i in range(100)))


def test_columns_that_are_not_required_may_be_left_out_or_empty() -> None:
    columns = (Column("a"), Column("b", required=False), Column("c", required=False), Column("words", "text"))
    frame = pd.DataFrame({"c": [None, None], "words": ["x y", "z"], "a": [1, 2]})
    numbers, texts, _ = inputs(frame, columns)
    np.testing.assert_array_equal(numbers.numpy(), [[1, np.nan, np.nan], [2, np.nan, np.nan]])
    assert texts == {"words": ["x y", "z"]}
    with pytest.raises(InputError, match=r"no column 'words' \(expected are 'a', 'words'; 'b', 'c' may be left out\)"):
        inputs(frame[["a"]], columns)
    with pytest.raises(InputError, match=r"must be text in 'words', got 3"):
        inputs(frame.assign(words=3), columns)
    with pytest.raises(InputError, match="those of 'b' are not"):
        inputs(frame.assign(b=["one", None]), columns)


def test_an_empty_frame_has_an_empty_answer(trained: Trained) -> None:
    answer = load(trained.folder).predict(trained.frame.iloc[:0])
    assert len(answer) == 0
    assert len(answer.columns) == 6 + len(CLASSES)


def test_loading_leaves_the_random_numbers_of_the_process_alone(nbsr: Trained) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load(nbsr.folder)
    assert torch.equal(torch.rand(3), expected)


def test_nothing_in_the_folder_is_a_pickle_that_runs_code(trained: Trained) -> None:
    """Weights are a zip of tensors that torch reads with `weights_only`; all else is text."""
    for path in trained.folder.rglob("*"):
        if path.is_dir():
            continue
        if path.name == "model.pt":
            assert zipfile.is_zipfile(path)
            torch.load(path, weights_only=True)
        elif path.name == "nbsr.zip":
            names = zipfile.ZipFile(path).namelist()
            assert {Path(name).suffix for name in names} <= {".py", ".c", ".h", ".toml", ".typed"}
        else:
            assert path.suffix in (".json", ".yaml", ".txt", ".py", "")
            path.read_text(encoding="utf-8")
    kept = json.loads((trained.folder / "artifacts/config.json").read_text())
    assert (kept["kind"], kept["class_names"]) == (trained.trial.kind, list(CLASSES))


def test_a_poisoned_file_is_not_run(nbsr: Trained, tmp_path: Path) -> None:
    import pickle
    import shutil

    class Poison:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "ran"),))  # type: ignore[return-value]

    folder = tmp_path / "model"
    shutil.copytree(nbsr.folder, folder)
    torch.save({"x": Poison()}, folder / "artifacts/model.pt")
    with pytest.raises(pickle.UnpicklingError, match=r"(?i)weights.only"):
        load(folder)
    assert not (tmp_path / "ran").exists()


def test_requirements_are_named_and_a_copy_loads_elsewhere(trained: Trained, tmp_path: Path) -> None:
    """On another machine the script that saved the model is not where it was."""
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(trained.folder, folder)
    described = (folder / "MLmodel").read_text()
    assert "serving_model.py" in described
    (folder / "MLmodel").write_text(
        re.sub(r"model_code_path: .*", "model_code_path: /gone/serving_model.py", described)
    )
    named = (folder / "requirements.txt").read_text().split()
    packages = {re.split("==", line)[0] for line in named}
    assert packages >= {"mlflow", "torch", "pandas", "numpy"}
    assert not packages & {"nbsr", "ray", "optuna"}, "ours is on no index, and answering needs no platform"
    assert any(line.startswith("xgboost==") for line in named) == (trained.trial.kind == "xgboost")
    assert not any("+" in line for line in named), "local builds are on no index"
    pd.testing.assert_frame_equal(load(folder).predict(trained.frame), load(trained.folder).predict(trained.frame))


EARLIER_SCRIPT = """
from pathlib import Path

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

from nbsr_platform.serving import CONFIG, WEIGHTS, ServedModel


class NbsrModel(PythonModel):
    def load_context(self, context):
        self.model = ServedModel.load(Path(context.artifacts[CONFIG]), Path(context.artifacts[WEIGHTS]))

    def predict(self, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        return self.model.predict(model_input, params)


set_model(NbsrModel())
"""


def test_models_that_were_stored_without_code_still_load(trained: Trained, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "earlier"
    shutil.copytree(trained.folder, folder, ignore=shutil.ignore_patterns("code"))
    (folder / "serving_model.py").write_text(EARLIER_SCRIPT)
    (folder / "MLmodel").write_text((folder / "MLmodel").read_text().replace("    code: code\n", ""))
    config = json.loads((folder / "artifacts" / CONFIG).read_text())
    del config["left_out"]
    (folder / "artifacts" / CONFIG).write_text(json.dumps(config))
    pd.testing.assert_frame_equal(load(folder).predict(trained.frame), load(trained.folder).predict(trained.frame))


def test_a_fresh_process_loads_it_with_mlflow_alone(nbsr: Trained, tmp_path: Path) -> None:
    nbsr.frame.to_csv(tmp_path / "x.csv", index=False)
    script = (
        "import mlflow, pandas as pd\n"
        f"model = mlflow.pyfunc.load_model({str(nbsr.folder)!r})\n"
        f"model.predict(pd.read_csv({str(tmp_path / 'x.csv')!r})).to_csv({str(tmp_path / 'y.csv')!r}, index=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(tmp_path / "y.csv")
    pd.testing.assert_frame_equal(found, load(nbsr.folder).predict(nbsr.frame), rtol=1e-4)


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Tracker]:
    import mlflow

    uri = store_uri(tmp_path)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    yield Tracker(uri, tmp_path / "artifacts")
    mlflow.set_tracking_uri(before)


def test_a_recorded_trial_brings_its_model(tracker: Tracker, nbsr: Trained, tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "trials")
    store.save(nbsr.result)
    parent = tracker.study_run(ToyStudy(), "abc")
    run_id = tracker.record(parent, nbsr.trial, store.load(nbsr.trial.key), store, with_artifacts=True)
    import mlflow.pyfunc

    model = mlflow.pyfunc.load_model(f"runs:/{run_id}/model")
    answer = model.predict(nbsr.frame)
    accuracy = (answer["label"] == [CLASSES[i] for i in nbsr.splits.test.y]).mean()
    assert accuracy == pytest.approx(nbsr.result.metrics["fast/accuracy"])
    assert answer["depth"].mean() == pytest.approx(nbsr.result.metrics["fast/mean_depth"])
    assert [spec.name for spec in model.metadata.signature.outputs] == list(answer.columns)


def test_a_model_can_be_added_to_a_run(tracker: Tracker, all_trained: dict[str, Trained], tmp_path: Path) -> None:
    import mlflow.pyfunc

    one = all_trained["xgboost"]
    parent = tracker.study_run(ToyStudy(), "abc")
    save_model(tmp_path / "logged" / "model", one.config, one.learner.state())
    tracker.store.call("log_artifacts", parent, str(tmp_path / "logged"))
    uri = f"runs:/{parent}/model"
    pd.testing.assert_frame_equal(mlflow.pyfunc.load_model(uri).predict(one.frame), load(one.folder).predict(one.frame))
    assert mlflow.active_run() is None


def test_models_that_no_longer_exist_are_named(nbsr: Trained) -> None:
    with pytest.raises(InputError, match="no model 'gone'; it has nbsr, mlp, xgboost"):
        load_learner(replace(nbsr.config, kind="gone"), {})
    with pytest.raises(InputError, match="cannot import 'no_such_package'"):
        load_learner(replace(nbsr.config, domain="no_such_package:Domain"), {})
