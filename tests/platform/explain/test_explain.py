"""Explanations of stored trials, held against the model itself, and their pictures."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.explain import explain as explain_module
from nbsr_platform.explain.explanation import Explanation
from nbsr_platform.explain.walk_svg import draw_walk
from nbsr_platform.study.study import Study
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.sealed import seal
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid
from toys import store_uri
from walk_pictures import texts

from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.errors import InputError
from nbsr_core.evaluation.after_training import temperatures_in
from nbsr_core.learning.learners import NbsrLearner
from nbsr_core.learning.splits import Splits

PATIENTS = {"train_patients": 400, "valid_patients": 200, "test_patients": 50, "draws": 0}


@dataclass
class Trained:
    """A store with finished trials by label."""

    home: Home
    study: Study
    trials: dict[str, Trial]

    @property
    def store(self) -> ResultStore:
        return ResultStore(self.home.trials)

    def copy(self, folder: Path) -> Trained:
        """The same in another place, to be damaged."""
        shutil.copytree(self.home.root, folder, dirs_exist_ok=True)
        return replace(self, home=Home(folder))

    def weights(self, label: str) -> Path:
        return self.store.weights.folder(self.trials[label].weights_key)

    def rewrite(self, label: str, **changes: Any) -> None:
        result = self.store.load(self.trials[label].key)
        changed = replace(result, trial={**result.trial, **changes.pop("trial", {})}, **changes)
        (self.store.folder(result.key) / "result.json").write_text(changed.to_json())
        seal(self.store.folder(result.key), result.key)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = Home(tmp_path_factory.mktemp("explain") / "home")
    study = Study.from_dict(
        {
            "name": "small",
            "domain": "medical",
            "data": PATIENTS,
            "training": {"epochs": 2, "learning_rate": 0.01},
            "evaluation": {"max_vacuity": 0.6},
            "models": {
                "nbsr": {"hidden": [16], "objective": {"every_depth": 1.0}},
                "dense": {
                    "kind": "nbsr",
                    "hidden": [16],
                    "graph": {"shape": "uniform", "depth": 3, "width": 2},
                    "density": {"enabled": True},
                },
                "bounded": {"kind": "nbsr", "hidden": [16], "experts": {"activation": "exp", "bound": 2.0}},
                "mlp": {"hidden": [8]},
                "trees": {"kind": "xgboost", "n_estimators": 2, "max_depth": 3},
            },
        }
    )
    trials = {trial.label: trial for trial in grid(study, data_fingerprint(study))}
    for trial in trials.values():
        (*_, result) = run_trial(trial, "cpu")
        assert isinstance(result, TrialResult)
        if trial.label == "bounded":
            assert result.state is not None
            for name in [name for name in result.state if name.startswith("experts")]:
                result.state[name] = 1e6 * result.state[name]
        ResultStore(home.trials).save(result)
    return Trained(home, study, trials)


def rebuilt(trained: Trained, label: str) -> tuple[NbsrLearner, Splits]:
    """The trial's model and data, by another way than `explain` takes."""
    domain = find_domain("medical")
    splits = domain.load(trained.study.data, 0)
    signature = Signature.of(splits)
    learner = domain.models["nbsr"].build(trained.study.models[label].options, signature)
    assert isinstance(learner, NbsrLearner)
    state = trained.store.load_state(trained.trials[label].key)
    assert state is not None
    learner.load_state(state)
    learner.use_temperatures(temperatures_in(trained.store.load(trained.trials[label].key).metrics))
    return learner, splits


def explain(home: Home, what: str, sample: int, tracking_uri: str | None = None) -> Explanation:
    """The walk of one sample: this domain has no other answer."""
    told = explain_module.explain(home, what, sample, tracking_uri)
    assert isinstance(told, Explanation)
    return told


@pytest.mark.parametrize("label", ["nbsr", "dense"])
@pytest.mark.parametrize("sample", [0, 17, 49])
def test_the_walk_is_the_one_that_the_model_takes(trained: Trained, label: str, sample: int) -> None:
    learner, splits = rebuilt(trained, label)
    key = trained.trials[label].key
    told = explain(trained.home, key, sample)
    x = splits.test.x[sample : sample + 1]
    with torch.no_grad():
        trace = learner.model(x)
    eta = trained.store.load(key).metrics["fast/eta"]
    said = learner.model.predict(x, eta=eta, max_vacuity=0.6)
    nodes = learner.model.graph.nodes
    assert [visit.node for visit in told.visits] == [nodes[int(index)].name for index in trace.nodes[1:, 0]]
    assert told.graph == learner.model.graph
    assert told.true_class == splits.class_names[int(splits.test.y[sample])]
    assert (told.exit_depth, told.abstained) == (int(said.depth), bool(said.abstained))
    assert told.answer == splits.class_names[int(said.label)]
    assert told.confidence == pytest.approx(float(said.probs.max()), rel=1e-5)
    assert (told.density is None) == (label == "nbsr")
    for visit, evidence, alpha in zip(told.visits, trace.evidence, trace.alpha[1:], strict=True):
        assert visit.route_probability == pytest.approx(max(visit.alternatives.values()))
        assert sum(visit.alternatives.values()) == pytest.approx(1, abs=1e-5)
        assert visit.evidence[0].value == pytest.approx(float(evidence[0].max()), rel=1e-5)
        likeliest = alpha[0] / alpha[0].sum()
        assert visit.belief[0].name == visit.prediction
        assert visit.belief[0].value == pytest.approx(float(likeliest.max()), rel=1e-5)
        assert visit.prediction == splits.class_names[int(likeliest.argmax())]
        assert visit.consulted == (visit.depth <= told.exit_depth)


def test_text_json_and_picture_show_a_ledger_that_adds_up_and_name_the_temperature(trained: Trained) -> None:
    learner, splits = rebuilt(trained, "nbsr")
    told = explain(trained.home, trained.trials["nbsr"].key, 3)
    text, drawn = told.text(), {shown for shown, *_ in texts(draw_walk(told))}
    before = dict.fromkeys(splits.class_names, told.prior_weight / told.num_classes)
    for visit, plain in zip(told.visits, told.to_json()["visits"], strict=True):
        temperature = float(learner.model.calibration.temperature[visit.depth - 1])
        assert plain["temperature"] == visit.temperature == pytest.approx(temperature)
        for entry, line in zip(visit.ledger, plain["ledger"], strict=True):
            assert line["before"] + line["evidence"] == pytest.approx(line["alpha"])
            assert line["alpha"] / plain["precision"] == pytest.approx(line["expected"])
            if entry.name in before:
                assert visit.depth > 1 or entry.before == pytest.approx(before[entry.name])
            for shown in (f"{entry.alpha:.2f}", f"{entry.expected:.1%}", f"{entry.calibrated:.1%}"):
                assert shown in text
                assert shown in drawn
        assert visit.belief[0].value == pytest.approx(visit.ledger[0].calibrated, rel=1e-5)
        assert f"T = {temperature:.3g}" in text
        assert f"T = {temperature:.3g}" in drawn
        assert visit.measures in " ".join(text.split())


def test_features_are_input_times_gradient_of_the_raw_belief(trained: Trained) -> None:
    learner, splits = rebuilt(trained, "nbsr")
    told = explain(trained.home, trained.trials["nbsr"].key, 3)
    x = splits.test.x[3:4].clone().requires_grad_(True)
    label = list(splits.class_names).index(told.prediction)
    learner.model(x).beliefs[-1][0, label].backward()
    assert x.grad is not None
    expected = (x * x.grad).detach()[0]
    order = expected.abs().argsort(descending=True)[: len(told.features)]
    assert [feature.name for feature in told.features] == [splits.feature_names[int(i)] for i in order]
    assert [feature.attribution for feature in told.features] == pytest.approx(expected[order].tolist(), rel=1e-4)
    assert {feature.state for feature in told.features} == {"present"}  # an absent symptom contributes nothing
    assert all(visit.features for visit in told.visits)


def test_the_population_stands_beside_the_patient(trained: Trained, tmp_path: Path) -> None:
    told = explain(trained.home, trained.trials["nbsr"].key, 4)
    population = told.population
    assert population is not None
    assert (population.trial, population.name) == (trained.trials["trees"].key, "trees seed 0")
    assert sum(feature.value for feature in population.features) == pytest.approx(1.0)
    shares = [feature.value for feature in population.features]
    assert shares == sorted(shares, reverse=True)
    first = population.features[0].name
    assert population.rank(first) == 1
    assert population.rank("no such symptom") is None
    assert f"what trees seed 0 (trial {population.trial}) looks at over all samples" in told.text()
    assert f"{told.features[0].name} {population.rank(told.features[0].name) or 'unused'}" in " ".join(
        told.text().split()
    )
    assert told.to_json()["population"]["features"][0] == {"name": first, "value": shares[0]}
    alone = trained.copy(tmp_path / "alone")
    alone.rewrite("trees", trial={"seed": 7})
    without = explain(alone.home, trained.trials["nbsr"].key, 4)
    assert without.population is None
    assert "over all samples" not in without.text()


def test_experts_at_their_limit_are_pointed_out(trained: Trained) -> None:
    """So near to a bound that no gradient is left: its features would silently be missing."""
    told = explain(trained.home, trained.trials["bounded"].key, 0)
    (note,) = told.notes
    for visit in told.visits:
        assert visit.features == ()
        assert visit.node in note
    assert "at its limit" in note
    assert told.features == ()
    assert "nothing: small changes of the inputs change nothing along this path" in told.text()


def test_text_and_json_tell_the_same(trained: Trained) -> None:
    told = explain(trained.home, trained.trials["nbsr"].key, 5)
    document = json.loads(json.dumps(told.to_json(), allow_nan=False))
    text = told.text()
    assert document["sample"] == 5
    assert [visit["node"] for visit in document["visits"]] == [visit.node for visit in told.visits]
    for words in ("(synthetic)", told.true_class, told.answer, "belief shift", "vacuity", "stops here"):
        assert words in text
    for visit in told.visits:
        assert f"{visit.depth}. {visit.node}" in text
    for feature in told.features:
        assert f"{feature.name}" in text
    assert max(map(len, text.splitlines()[2:])) <= 120


@pytest.mark.parametrize(
    ("recorded", "exited", "depth"), [(None, 0.0, 2), (None, 0.4, 1), (1e9, 0.4, 1), (-1e9, 0.0, 2)]
)
def test_thresholds_without_a_number_are_never_and_always(
    trained: Trained, tmp_path: Path, recorded: float | None, exited: float, depth: int
) -> None:
    damaged = trained.copy(tmp_path)
    metrics: Any = {"fast/eta": recorded, "fast/exited": exited}
    damaged.rewrite("nbsr", metrics=metrics)
    told = explain(damaged.home, damaged.trials["nbsr"].key, 0)
    assert told.exit_depth == depth
    assert told.exits_early == (depth == 1)
    json.dumps(told.to_json(), allow_nan=False)
    told.text()
    draw_walk(told)


def test_a_unique_beginning_of_a_key_is_enough(trained: Trained) -> None:
    key = trained.trials["nbsr"].key
    assert explain(trained.home, key[:10], 0).trial == key


def test_unknown_and_ambiguous_keys_name_the_trials(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no trial 'zz'.*small: nbsr seed 0"):
        explain(trained.home, "zz", 0)
    with pytest.raises(InputError, match="no trial ''"):
        explain(trained.home, "", 0)
    with pytest.raises(InputError, match="none yet; `nbsr run STUDY`"):
        explain(Home(tmp_path / "empty"), "abc", 0)
    with pytest.raises(InputError, match=r"no trial '\.\./\.\.'"):
        explain(trained.home, "../..", 0)
    twin = trained.copy(tmp_path)
    key = trained.trials["nbsr"].key
    other = key[:12] + ("0000" if key[12:] != "0000" else "1111")
    shutil.copytree(twin.store.folder(key), twin.store.folder(other))
    with pytest.raises(InputError, match=f"beginning of 2 trials.*{key[:12]}"):
        explain(twin.home, key[:12], 0)


@pytest.mark.parametrize("sample", [50, -1, 10**9, True])
def test_a_sample_out_of_range_names_the_range(trained: Trained, sample: Any) -> None:
    with pytest.raises(InputError, match="from 0 to 49"):
        explain(trained.home, trained.trials["nbsr"].key, sample)


def test_a_baseline_cannot_be_explained_by_a_walk(trained: Trained) -> None:
    with pytest.raises(
        InputError, match=r"only NBSR.*'mlp seed 0' of study 'small' is a baseline of kind 'mlp'"
    ) as error:
        explain(trained.home, trained.trials["mlp"].key, 0)
    assert trained.trials["nbsr"].key in str(error.value)


def test_what_has_changed_since_is_said(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = trained.trials["nbsr"].key
    assert explain(trained.home, key, 0).notes == ()
    damaged = trained.copy(tmp_path)
    damaged.rewrite("nbsr", trial={"data_fingerprint": "0" * 16})
    (note,) = explain(damaged.home, key, 0).notes
    assert "data has changed" in note
    assert note in explain(damaged.home, key, 0).text()
    monkeypatch.setattr(explain_module, "training_code", lambda domain, beside: "another")
    (note,) = explain(trained.home, key, 0).notes
    assert "code has changed" in note


def test_damaged_trials_say_what_is_wrong_with_them(trained: Trained, tmp_path: Path) -> None:
    key = trained.trials["nbsr"].key
    damaged = trained.copy(tmp_path / "a")
    (damaged.weights("nbsr") / "model.pt").unlink()
    with pytest.raises(InputError, match=r"model\.pt: No such file or directory; run its study again"):
        explain(damaged.home, key, 0)
    damaged.rewrite("nbsr", weights="")
    with pytest.raises(InputError, match="without its weights"):
        explain(damaged.home, key, 0)
    damaged = trained.copy(tmp_path / "b")
    shutil.copy(damaged.weights("mlp") / "model.pt", damaged.weights("nbsr"))
    with pytest.raises(InputError, match=r"model\.pt is not what was saved: its checksum differs"):
        explain(damaged.home, key, 0)
    seal(damaged.weights("nbsr"), trained.trials["nbsr"].weights_key)
    with pytest.raises(InputError, match="do not fit the model"):
        explain(damaged.home, key, 0)
    damaged = trained.copy(tmp_path / "c")
    damaged.rewrite("nbsr", trial={"nonsense": 1})
    with pytest.raises(InputError, match="without its own description"):
        explain(damaged.home, key, 0)
    damaged = trained.copy(tmp_path / "d")
    (damaged.store.folder(key) / "result.json").write_text("{")
    seal(damaged.store.folder(key), key)
    with pytest.raises(InputError, match="not a readable trial result"):
        explain(damaged.home, key, 0)
    with pytest.raises(InputError, match=r"no trial 'zz'.*dense seed 0"):  # which does not hide the others
        explain(damaged.home, "zz", 0)


def test_runs_of_mlflow_lead_to_their_trials(trained: Trained, tmp_path: Path) -> None:
    missing = "f" * 32
    with pytest.raises(InputError, match="no tracking store"):
        explain(Home(tmp_path / "nowhere"), missing, 0)
    uri, trial = store_uri(tmp_path), trained.trials["nbsr"]
    tracker = Tracker(uri, tmp_path / "artifacts")
    parent = tracker.study_run(trained.study, "key")
    result = trained.store.load(trial.key)
    run = tracker.record(parent, trial, result, None, with_artifacts=False)
    told = explain(trained.home, run, 7, uri)
    assert (told.trial, told.sample) == (trial.key, 7)
    with pytest.raises(InputError, match=rf"a whole study; name one of the trials: {run} \(nbsr seed 0\)"):
        explain(trained.home, parent, 7, uri)
    with pytest.raises(InputError, match=f"no run {missing} in "):
        explain(trained.home, missing, 7, uri)
    with pytest.raises(InputError, match=f"{trial.key}, which is not among the finished trials"):
        explain(Home(tmp_path / "elsewhere"), run, 7, uri)
    other = tracker.client.create_run(tracker.client.create_experiment("else")).info.run_id
    with pytest.raises(InputError, match="not a trial's"):
        explain(trained.home, other, 7, uri)


def test_the_picture_shows_the_walk(trained: Trained) -> None:
    told = explain(trained.home, trained.trials["nbsr"].key, 1)
    svg = draw_walk(told)
    shown = {text for text, *_ in texts(svg)}
    for visit in told.visits:
        assert f"{visit.depth}. {visit.node}" in shown
        assert f"{visit.route_probability:.2f}" in shown
    assert any(text.startswith("True class: ") for text in shown)
    assert any("Exits here" in text or "The walk ends here" in text for text in shown)
    for outside in ("<script", "<image", "href", "url(", "@import", "http://", "https://"):
        assert outside not in svg.replace("http://www.w3.org/2000/svg", "")


def test_inputs_without_names_are_named_by_their_place(trained: Trained) -> None:
    from nbsr_core.evaluation.attribution import feature_namer

    _, splits = rebuilt(trained, "nbsr")
    images = replace(splits, test=replace(splits.test, x=torch.zeros(50, 3, 4, 5)), feature_names=["pixels"])
    assert feature_namer(images)(0) == "input [0, 0, 0]"
    assert feature_namer(images)(3 * 4 * 5 - 1) == "input [2, 3, 4]"
    assert feature_namer(splits)(1) == splits.feature_names[1]
