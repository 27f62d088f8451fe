"""Every shipped domain's model says what it wants, answers it in a new process, and tells what somebody can act on."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from nbsr_platform.serving.predictions import predict_file
from nbsr_platform.serving.served_model import ServedModel
from served import MODELS, PYTHON, Stored, ask, store

from nbsr_core.domains.acquisition.learners import AcquisitionLearner
from nbsr_core.domains.language.grammar import VOCABULARY
from nbsr_core.domains.navigation.learners import ClonedNbsr
from nbsr_core.errors import InputError

ETA, MAX_VACUITY = 0.5, 0.9


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    folder = tmp_path_factory.mktemp("stored")
    return {name: store(name, folder, ETA, MAX_VACUITY) for name in MODELS}


@pytest.fixture(autouse=True)
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def loaded(stored: Stored) -> Any:
    import mlflow.pyfunc

    return mlflow.pyfunc.load_model(str(stored.folder))


def directly(stored: Stored) -> ServedModel:
    return ServedModel(stored.config, stored.learner)


def test_all_answer_their_own_example_in_a_new_process_without_nbsr_installed(
    models: dict[str, Stored], tmp_path: Path
) -> None:
    done = ask(PYTHON, [one.folder for one in models.values()], tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "nbsr.zip" in told["nbsr"]
    assert len(told["said"]) == len(MODELS)
    for one in models.values():
        (answer,) = told["said"][one.folder.name]
        assert answer["label"] in one.config.class_names
        walks = answer["vacuity"] is not None
        assert walks == (one.config.kind not in ("xgboost", "standard", "cnn_gru"))


@pytest.mark.parametrize("name", MODELS)
def test_the_signature_names_every_column_of_question_and_answer(models: dict[str, Stored], name: str) -> None:
    model = loaded(models[name])
    signature, answer = model.metadata.signature, model.predict(model.input_example)
    assert signature.outputs.input_names() == list(answer.columns)
    assert set(model.input_example.columns) <= set(signature.inputs.input_names())
    assert set(signature.inputs.required_input_names()) <= set(model.input_example.columns)
    expected = {"eta": ETA, "max_vacuity": MAX_VACUITY} | ({"budget": None} if name.startswith("triage") else {})
    assert {spec.name: spec.default for spec in signature.params} == expected


def test_a_language_model_reads_words_and_says_the_next_one(models: dict[str, Stored]) -> None:
    stored = models["language nbsr"]
    texts = ["the dog", "the dog is by the", "a"]
    answer = loaded(stored).predict(pd.DataFrame({"text": texts}), params={"eta": None})
    for row, text in enumerate(texts):
        tokens = torch.tensor([[1, *(VOCABULARY.index(word) for word in text.split())]])
        expected = stored.learner.probabilities(tokens)[-1].double().numpy()
        np.testing.assert_allclose(answer.filter(regex=r"^p\(").to_numpy()[row], expected, atol=1e-6)
    strange = loaded(stored).predict(pd.DataFrame({"text": ["the", "zebra zebra zebra"]}))
    assert strange["vacuity"][1] > strange["vacuity"][0]


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "text in row 1: the prompt is empty"), ("the " * 9, "text in row 1: the prompt has 9 words; .* 5 at most")],
)
def test_a_text_that_cannot_be_read_is_named(models: dict[str, Stored], text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        loaded(models["language standard"]).predict(pd.DataFrame({"text": ["the dog", text]}))


@pytest.mark.parametrize("kind", ["ar_nbsr", "planner"])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_triage_followed_step_by_step_buys_what_the_policy_would(
    models: dict[str, Stored], kind: str, share: float
) -> None:
    stored = models[f"triage {kind}"]
    learner, x = stored.learner, stored.splits.test.x[:20]
    assert isinstance(learner, AcquisitionLearner)
    model, served, panels = learner.model, directly(stored), learner.model.panels
    eta = float(learner.trace(x).doubt[1:-1].quantile(share))
    expected, spent = model.predict(x, eta, learner.policy(x))
    whole = pd.DataFrame(x.numpy(), columns=stored.splits.feature_names)
    known = whole.iloc[:, : panels.free].reindex(columns=whole.columns)
    for _ in range(len(panels) + 1):
        answer = served.predict(known, {"eta": eta})
        if answer["stop"].all():
            break
        for row, name in answer.loc[~answer["stop"], "next_panel"].items():
            assert answer["next_cost"][row] == panels.costs[panels.names.index(name)]
            start = panels.free + panels.names.index(name) * panels.width
            known.iloc[row, start : start + panels.width] = whole.iloc[row, start : start + panels.width]
    np.testing.assert_array_equal(answer["depth"], expected.depth.numpy())
    np.testing.assert_allclose(answer["spent"], spent.numpy())
    np.testing.assert_allclose(answer.filter(regex=r"^p\(").to_numpy(), expected.probs.numpy(), atol=1e-6)
    assert set(answer["next_panel"]) == {""}
    assert answer["next_cost"].isna().all()
    assert 1 < answer["depth"].mean() < len(panels)


def test_triage_without_a_panel_guesses_and_says_so(models: dict[str, Stored]) -> None:
    stored = models["triage planner"]
    free = list(stored.splits.feature_names[:12])
    frame = pd.DataFrame(stored.splits.test.x[:3, :12].numpy().astype(float), columns=free)
    answer = loaded(stored).predict(frame)
    assert (answer["vacuity"] == 1).all()
    assert answer["abstained"].all()
    assert not answer["stop"].any()
    assert (answer["spent"] == 0).all()
    assert set(answer["next_panel"]) <= set(stored.learner.model.panels.names)  # type: ignore[attr-defined]


def test_triage_with_everything_answers_with_everything(models: dict[str, Stored]) -> None:
    stored = models["triage ar_nbsr"]
    x = stored.splits.test.x[:8]
    answer = loaded(stored).predict(pd.DataFrame(x.double().numpy(), columns=stored.splits.feature_names))
    expected = stored.learner.probabilities(x).numpy()
    np.testing.assert_allclose(answer.filter(regex=r"^p\(").to_numpy(), expected, atol=1e-5)
    assert answer["stop"].all()
    assert (answer["spent"] == 125).all()
    assert all(bought.count(",") == 4 for bought in answer["bought"])


def test_a_panel_that_is_torn_apart_is_refused_by_name(models: dict[str, Stored]) -> None:
    stored = models["triage planner"]
    names = list(stored.splits.feature_names)
    frame = pd.DataFrame(stored.splits.test.x[:2, :14].double().numpy(), columns=names[:14])
    with pytest.raises(InputError, match=rf"there are some values of 'Basic Metabolic Panel', but not '{names[14]}'"):
        loaded(stored).predict(frame)


def test_a_file_of_texts_is_answered(models: dict[str, Stored], tmp_path: Path) -> None:
    words = " ".join([word for word in VOCABULARY if word.isalpha()][:2])
    (tmp_path / "texts.csv").write_text(f"text\n{words}\n{words}\n")
    found = predict_file(directly(models["language nbsr"]), tmp_path / "texts.csv", tmp_path / "out.csv")
    assert (found.rows, found.unanswered) == (2, 0)


@pytest.mark.parametrize("kind", ["nbsr_mem", "cnn_gru"])
def test_an_agent_remembers_the_frames_of_an_episode_and_keeps_episodes_apart(
    models: dict[str, Stored], kind: str
) -> None:
    stored = models[f"navigation {kind}"]
    episodes = stored.splits.test.x[:3]
    frames = pd.DataFrame(episodes.flatten(0, 1).flatten(1).double().numpy(), columns=stored.splits.feature_names)
    frames["episode"] = np.repeat([7, 3, 5], episodes.shape[1])
    frames = frames.drop(index=[3, 6, 7])  # episodes of unequal length
    expected = stored.learner.probabilities(episodes).numpy()[frames.index]
    shuffled = frames.sort_index(key=lambda index: index % 4, kind="stable")  # in turns, each in its own order
    answer = directly(stored).predict(shuffled, {"eta": None}).sort_index()
    np.testing.assert_allclose(answer.filter(regex=r"^p\(").to_numpy(), expected, atol=1e-5)
    alone = directly(stored).predict(frames.drop(columns="episode"), {"eta": None})
    first = frames.index % episodes.shape[1] == 0
    np.testing.assert_allclose(alone["p(up)"][first], answer["p(up)"][first], atol=1e-5)
    assert not np.allclose(alone["p(up)"][~first], answer["p(up)"][~first], atol=1e-5), "memory should matter"


def test_an_agent_halts_before_what_it_has_never_seen(models: dict[str, Stored]) -> None:
    stored = models["navigation nbsr_mem"]
    assert isinstance(stored.learner, ClonedNbsr)
    frame = pd.DataFrame(stored.splits.test.x[:4, 0].flatten(1).double().numpy(), columns=stored.splits.feature_names)
    strange = loaded(stored).predict(frame + 50)
    assert (strange["vacuity"] > loaded(stored).predict(frame)["vacuity"]).all()
    assert strange["abstained"].all()


def test_the_examples_of_the_documentation_run(models: dict[str, Stored], capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
    load, walk = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    stored = models["triage planner"]
    tracking = 'mlflow.set_tracking_uri("sqlite:///.nbsr/mlflow.db")'
    assert tracking in load
    names, panels = list(stored.splits.feature_names), stored.learner.model.panels  # type: ignore[attr-defined]

    def results_of(panel: str) -> pd.DataFrame:
        start = panels.free + panels.names.index(panel) * panels.width
        return pd.DataFrame([[1.0] * panels.width], columns=names[start : start + panels.width])

    known: dict[str, Any] = {"results_of": results_of}
    exec(load.replace(tracking, "").replace("runs:/RUN/model", str(stored.folder)), known)
    exec(walk, known)
    told = capsys.readouterr().out
    assert "next_panel" in told
    assert told.strip().endswith("next nothing")
