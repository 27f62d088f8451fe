"""Explanations of stored trials, held against the model itself, and their pictures."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nbsr_platform import explain as explain_module
from nbsr_platform.explain import explain
from nbsr_platform.explanation import Amount, Explanation, Feature, Visit
from nbsr_platform.paths import Home
from nbsr_platform.results import TrialResult
from nbsr_platform.store import ResultStore, seal
from nbsr_platform.study import Study
from nbsr_platform.svg import fit, width_of, wrap
from nbsr_platform.tracking import Tracker
from nbsr_platform.trial import Trial, data_fingerprint, grid
from nbsr_platform.walk_svg import WIDTH, draw_walk
from nbsr_platform.worker import run_trial
from toys import store_uri

from nbsr_core.domains.base import Splits
from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.errors import InputError
from nbsr_core.graph import DecisionGraph
from nbsr_core.learners import NbsrLearner

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
                "bounded": {"kind": "nbsr", "hidden": [16], "experts": {"activation": "exp", "bound": 1.0001}},
                "mlp": {"hidden": [8]},
                "trees": {"kind": "xgboost", "n_estimators": 2, "max_depth": 3},
            },
        }
    )
    trials = {trial.label: trial for trial in grid(study, data_fingerprint(study))}
    for trial in trials.values():
        (*_, result) = run_trial(trial, "cpu")
        assert isinstance(result, TrialResult)
        ResultStore(home.trials).save(result)
    return Trained(home, study, trials)


def rebuilt(trained: Trained, label: str) -> tuple[NbsrLearner, Splits]:
    """The trial's model and data, by another way than `explain` takes."""
    domain = find_domain("medical")
    splits = domain.load(trained.study.data, 0)
    signature = Signature(splits.class_names, splits.feature_names)
    learner = domain.models["nbsr"].build(trained.study.models[label].options, signature)
    assert isinstance(learner, NbsrLearner)
    learner.load_state(trained.store.load_state(trained.trials[label].key))
    return learner, splits


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
        assert visit.belief[0] == Amount(visit.prediction, pytest.approx(float(likeliest.max()), rel=1e-5))
        assert visit.prediction == splits.class_names[int(likeliest.argmax())]
        assert visit.consulted == (visit.depth <= told.exit_depth)


def test_features_are_input_times_gradient_of_the_raw_belief(trained: Trained) -> None:
    learner, splits = rebuilt(trained, "nbsr")
    told = explain(trained.home, trained.trials["nbsr"].key, 3)
    x = splits.test.x[3:4].clone().requires_grad_(True)
    label = list(splits.class_names).index(told.prediction)
    learner.model(x).beliefs[-1][0, label].backward()
    expected = (x * x.grad).detach()[0]
    order = expected.abs().argsort(descending=True)[: len(told.features)]
    assert [feature.name for feature in told.features] == [splits.feature_names[int(i)] for i in order]
    assert [feature.attribution for feature in told.features] == pytest.approx(expected[order].tolist(), rel=1e-4)
    assert {feature.state for feature in told.features} == {"present"}  # an absent symptom contributes nothing
    assert all(visit.features for visit in told.visits)


def test_the_population_stands_beside_the_patient(trained: Trained, tmp_path: Path) -> None:
    told = explain(trained.home, trained.trials["nbsr"].key, 4)
    assert isinstance(told, Explanation)
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
    assert isinstance(without, Explanation)
    assert without.population is None
    assert "over all samples" not in without.text()


def test_experts_at_their_limit_are_pointed_out(trained: Trained) -> None:
    """Where evidence is cut off it has no gradient, and its features would silently be missing."""
    told = explain(trained.home, trained.trials["bounded"].key, 0)
    (note,) = told.notes
    for visit in told.visits:
        assert visit.features == ()
        assert visit.node in note
    assert "at its limit" in note
    assert told.features == ()
    assert "no input has an influence" in told.text()


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
    monkeypatch.setattr(explain_module, "code_version", lambda domain, beside: "another")
    (note,) = explain(trained.home, key, 0).notes
    assert "code has changed" in note


def test_damaged_trials_say_what_is_wrong_with_them(trained: Trained, tmp_path: Path) -> None:
    key = trained.trials["nbsr"].key
    damaged = trained.copy(tmp_path / "a")
    (damaged.store.folder(key) / "model.pt").unlink()
    with pytest.raises(InputError, match=r"model\.pt: No such file or directory; run its study again"):
        explain(damaged.home, key, 0)
    seal(damaged.store.folder(key), key)
    with pytest.raises(InputError, match="without its weights"):
        explain(damaged.home, key, 0)
    damaged = trained.copy(tmp_path / "b")
    shutil.copy(trained.store.folder(trained.trials["mlp"].key) / "model.pt", damaged.store.folder(key) / "model.pt")
    with pytest.raises(InputError, match=r"model\.pt is not what was saved: its checksum differs"):
        explain(damaged.home, key, 0)
    seal(damaged.store.folder(key), key)
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


def texts(svg: str) -> list[tuple[str, float, float, float]]:
    """All texts of a picture with their left edge, right edge and baseline, as far as they can be estimated."""
    found = []
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        title = element.find("{http://www.w3.org/2000/svg}title")
        text = (element.text or "") + ((title.tail or "") if title is not None else "")
        width = width_of(text, float(element.attrib["font-size"]), bold=element.get("font-weight") == "bold")
        left = (
            float(element.attrib["x"]) - {"start": 0, "middle": width / 2, "end": width}[element.attrib["text-anchor"]]
        )
        found.append((text, left, left + width, float(element.attrib["y"])))
    return found


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


def made_up(graph: DecisionGraph, choice: int, exit_depth: int, names: list[str], **changes: Any) -> Explanation:
    """An explanation of a walk that always takes the same child."""
    visits: list[Visit] = []
    node = graph.root
    while node.children:
        children = [graph.nodes[child] for child in node.children]
        node = children[choice % len(children)]
        depth = len(visits) + 1
        visits.append(
            Visit(
                depth=depth,
                node=node.name,
                route_probability=1 / len(children),
                alternatives={child.name: 1 / len(children) for child in children},
                evidence=tuple(Amount(name, 10.0 * depth) for name in names),
                belief=tuple(Amount(name, 1 / len(names)) for name in names),
                belief_shift=1.5,
                entropy=-100.0 - depth,
                vacuity=0.5,
                consulted=depth <= exit_depth,
                features=(),
            )
        )
    parts: dict[str, Any] = {
        "trial": "0" * 16,
        "name": "nbsr seed 0",
        "study": names[0],
        "source": names[0],
        "synthetic": True,
        "sample": 4,
        "test_samples": 10,
        "true_class": names[0],
        "answer": names[-1],
        "confidence": 0.5,
        "prediction": names[-1],
        "eta": -101.5,
        "exit_depth": min(exit_depth, len(visits)),
        "max_vacuity": 0.4,
        "abstained": False,
        "density": 0.25,
        "prior_entropy": -99.0,
        "num_classes": len(names),
        "visits": tuple(visits),
        "features": tuple(Feature(name, 0.5, None, (-1) ** i * 2.0) for i, name in enumerate(names)),
        "notes": ("a note",),
        "graph": graph,
    }
    return Explanation(**{**parts, **changes})


NAMES = st.lists(st.text(min_size=1, max_size=60), min_size=2, max_size=4, unique=True)


@settings(max_examples=60)
@given(
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    choice=st.integers(0, 50),
    exit_depth=st.integers(1, 4),
    names=NAMES,
    abstained=st.booleans(),
)
def test_any_walk_gives_a_well_formed_picture_without_overlaps(
    widths: list[int], choice: int, exit_depth: int, names: list[str], abstained: bool
) -> None:
    levels = [
        ["root"],
        *([f"{number}-Expert of level/{level}" for number in range(n)] for level, n in enumerate(widths)),
    ]
    edges = [(up, down) for above, below in pairwise(levels) for up in above for down in below]
    told = made_up(DecisionGraph.from_edges(edges), choice, exit_depth, names, abstained=abstained)
    rows: dict[float, list[tuple[float, float, str]]] = {}
    for text, left, right, baseline in texts(draw_walk(told)):
        assert left >= 0, text
        assert right <= WIDTH, text
        rows.setdefault(baseline, []).append((left, right, text))
    for row in rows.values():
        row.sort()
        for (_, end, before), (start, _, after) in pairwise(row):
            assert end <= start + 1, (before, after)


def test_of_a_large_graph_only_the_neighbourhood_is_drawn() -> None:
    svg = draw_walk(made_up(DecisionGraph.uniform(2, 30), 17, 2, ["a", "b"]))
    shown = [text for text, *_ in texts(svg)]
    assert "… 23 more" in shown  # 7 of 30
    assert "… 893 more" in shown  # 7 of 900
    assert {"18", "18.18"} <= set(shown)
    assert svg.count("<circle") < 30
    small = draw_walk(made_up(DecisionGraph.uniform(3, 2), 1, 3, ["a", "b"]))
    assert "more" not in small
    assert {"1.2.1", "2.2.2"} <= {text for text, *_ in texts(small)}


def test_hostile_names_stay_text() -> None:
    names = ['<script>alert("1")</script>', "a & b\x00\x1b ]]>", "' onload='x"]
    graph = DecisionGraph.from_edges([("root", names[0]), ("root", names[2])])
    svg = draw_walk(made_up(graph, 0, 1, names))
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
    assert tags == {"svg", "rect", "line", "circle", "path", "text", "title"}


def test_abstention_and_exit_are_marked() -> None:
    graph = DecisionGraph.chain(["Mid", "Leaf"])
    early = [text for text, *_ in texts(draw_walk(made_up(graph, 0, 1, ["a", "b"])))]
    assert "Exits here (entropy < η = −101.5): b, wrong" in early
    assert any("not asked after the exit" in text for text in early)
    vague = [text for text, *_ in texts(draw_walk(made_up(graph, 0, 2, ["a", "b"], abstained=True)))]
    assert "The walk ends here and abstains: vacuity 0.5 > 0.4" in vague
    nothing = [text for text, *_ in texts(draw_walk(made_up(graph, 0, 2, ["a", "b"], features=())))]
    assert any(text.startswith("nothing: no input") for text in nothing)


@given(text=st.text(max_size=80), room=st.floats(20, 400), size=st.floats(8, 20))
def test_fitted_and_wrapped_text_keeps_to_its_room(text: str, room: float, size: float) -> None:
    assert width_of(fit(text, room, size), size) <= room
    lines = wrap(text, room, size)
    assert 1 <= len(lines) <= 2
    assert all(width_of(line, size) <= room for line in lines)


def test_inputs_without_names_are_named_by_their_place(trained: Trained) -> None:
    from nbsr_core.attribution import feature_namer

    _, splits = rebuilt(trained, "nbsr")
    images = replace(splits, test=replace(splits.test, x=torch.zeros(50, 3, 4, 5)), feature_names=["pixels"])
    assert feature_namer(images)(0) == "input [0, 0, 0]"
    assert feature_namer(images)(3 * 4 * 5 - 1) == "input [2, 3, 4]"
    assert feature_namer(splits)(1) == splits.feature_names[1]
