"""`nbsr predict` answers a file as the served model would, says what is strange about rows, and leaves whole files."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow import MlflowClient
from nbsr_platform.serving import predictions
from nbsr_platform.serving.predictions import predict_file
from nbsr_platform.study.options import from_plain
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from tables import animals, write_csv
from trained_tables import STUDY, Trained, nbsr

from nbsr_core.domains.table import TableData, load_table
from nbsr_core.errors import InputError


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("pets"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def new_rows(folder: Path, count: int = 40, **changed: Any) -> Path:
    return write_csv(folder / "new.csv", {**animals(count, seed=7), **changed})


def frame(path: Path, names: Sequence[str]) -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False)[list(names)]


def test_answers_are_those_of_the_model_in_mlflow_bit_by_bit(trained: Trained, tmp_path: Path) -> None:
    import mlflow.pyfunc

    uri = f"sqlite:///{trained.home / 'mlflow.db'}"
    client = MlflowClient(uri)
    (run,) = client.search_runs(
        [experiment.experiment_id for experiment in client.search_experiments()],
        f"tags.`nbsr.trial_key` = '{trained.keys['nbsr']}'",
    )
    mlflow.set_tracking_uri(uri)
    served = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model")
    data = new_rows(tmp_path)
    expected = served.predict(frame(data, served.metadata.signature.inputs.input_names()))
    for which, what in enumerate((trained.keys["nbsr"], run.info.run_id, "pets")):
        out = tmp_path / f"{which}.csv"
        nbsr("predict", what, str(data), "--out", str(out), "--home", str(trained.home))
        found = rows(out)
        assert set(found[0]) == {*expected.columns, "note"}
        for name in ("confidence", "depth", "vacuity", "p(cat)", "p(dog)", "p(bird)"):
            assert [float(row[name]) for row in found] == expected[name].tolist(), name
        assert [row["label"] for row in found] == expected["label"].tolist()
        assert [row["path"] for row in found] == expected["path"].tolist()
        assert [row["abstained"] == "true" for row in found] == expected["abstained"].tolist()


def test_the_path_names_the_experts_that_were_asked(trained: Trained, tmp_path: Path) -> None:
    model = trained.model()
    data = new_rows(tmp_path)
    deep = model.predict(frame(data, [column.name for column in model.service.inputs]), {"eta": None})
    assert set(deep["depth"]) == {len(path.split(" > ")) for path in deep["path"]}
    predict_file(trained.model("xgboost"), data, tmp_path / "out.csv")
    assert {row["path"] for row in rows(tmp_path / "out.csv")} == {""}
    assert {row["depth"] for row in rows(tmp_path / "out.csv")} == {""}


def test_what_is_whole_is_written_whole(trained: Trained, tmp_path: Path) -> None:
    predict_file(trained.model(), new_rows(tmp_path), tmp_path / "out.csv")
    found = rows(tmp_path / "out.csv")
    assert {row["depth"] for row in found} <= {"1", "2"}
    assert {row["abstained"] for row in found} <= {"true", "false"}


@settings(max_examples=10)
@given(chunk=st.integers(1, 45))
def test_however_a_file_is_cut_the_answers_are_the_same(
    trained: Trained, tmp_path_factory: pytest.TempPathFactory, chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    data = new_rows(folder)
    model = trained.model()
    predict_file(model, data, folder / "whole.csv")
    predict_file(model, data, folder / "pieces.csv", chunk=chunk)
    whole, pieces = rows(folder / "whole.csv"), rows(folder / "pieces.csv")
    assert [row["path"] for row in whole] == [row["path"] for row in pieces]
    for name in ("confidence", "vacuity", "p(cat)"):
        np.testing.assert_allclose(
            [float(row[name]) for row in whole], [float(row[name]) for row in pieces], rtol=1e-5, err_msg=name
        )


def test_strange_cells_get_a_word_and_an_answer(trained: Trained, tmp_path: Path) -> None:
    columns = animals(6, seed=7)
    columns["coat"][0] = "scales"
    columns["weight"][1] = "heavy"
    columns["born"][2] = ""
    columns["weight"][3] = "1e308"
    columns["indoors"][4] = "perhaps"
    data = write_csv(tmp_path / "new.csv", columns)
    said = nbsr("predict", "pets", str(data), "--out", str(tmp_path / "o.csv"), "--home", str(trained.home))
    found = rows(tmp_path / "o.csv")
    notes = [row["note"] for row in found]
    assert notes[0] == "coat is 'scales', an unknown category"
    assert notes[1] == "weight is 'heavy', not a number: taken as missing"
    assert notes[2] == "born is missing, which no training row's was"
    assert "indoors is 'perhaps', not one of 'no', 'yes'" in notes[4]
    assert notes[5] == ""
    assert all(row["label"] in ("cat", "dog", "bird") for row in found)
    assert "not answered: 0, answered though strange: 4; `note` says why" in said


def test_a_column_that_is_not_there_counts_as_missing_and_each_row_says_so(trained: Trained, tmp_path: Path) -> None:
    columns = animals(5, seed=7)
    del columns["coat"]
    data = write_csv(tmp_path / "new.csv", columns)
    said = nbsr("predict", "pets", str(data), "--out", str(tmp_path / "o.csv"), "--home", str(trained.home))
    assert "columns that the model misses: coat" in said
    assert {row["note"] for row in rows(tmp_path / "o.csv")} == {"coat is missing, which no training row's was"}


def test_columns_may_be_kept_and_others_are_named(trained: Trained, tmp_path: Path) -> None:
    data = new_rows(tmp_path, 5)
    words = ("predict", "pets", str(data), "--out", str(tmp_path / "o.csv"), "--home", str(trained.home))
    said = nbsr(*words, "--keep", "tag", "--keep", "animal")
    assert "columns that the model does not use: tag, planet, animal" in said
    assert [row["tag"] for row in rows(tmp_path / "o.csv")] == animals(5, seed=7)["tag"]
    assert list(rows(tmp_path / "o.csv")[0])[:3] == ["tag", "animal", "label"]
    assert "--keep: " in nbsr(*words, "--keep", "colour", code=2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("\n\n", "is empty"),
        ("weight;coat\n1;2,5;3\n", "line 2: 3 fields, but the head names 2 columns"),
        ("1,2\n3,4\n", "first line must name the columns"),
        ('weight,coat\n1,"long\n', "is a quotation mark not closed?"),
        ('[{"weight": 1, "coat": "long"}]', "is no table but JSON"),
        ("<html>weight, coat</html>", "is no table but a web page"),
        ("weight,coat\n1,\0\n", "is not text: it holds NUL bytes"),
        ("PAR1weight,coat", "is no whole Parquet file"),
        ("PK\x03\x04", "save the sheet as CSV"),
        ("a,b\n1,2\n", "has no column 'weight', 'coat', 'indoors', 'born', 'owner', which the model needs"),
        ("", "is empty"),
        ("weight,coat\n1,2,3\n", "line 2: 3 fields, but the head names 2 columns"),
        ("weight,weight\n1,2\n", "more than one column 'weight'"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_cannot_be_asked_about_are_refused_and_nothing_is_left(
    trained: Trained, tmp_path: Path, content: str | None, said: str
) -> None:
    data = tmp_path / "new.csv"
    if content is not None:
        data.write_text(content)
    out = tmp_path / "made" / "out.csv"
    words = ("predict", "pets", str(data), "--out", str(out), "--home", str(trained.home))
    assert said in nbsr(*words, code=2)
    assert not out.exists()
    assert not [*out.parent.glob(".*")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_marks_and_encodings_are_found_out(trained: Trained, tmp_path: Path, encoding: str) -> None:
    data = write_csv(tmp_path / "new.csv", {**animals(6, seed=7), "coat": ["grün"] * 6}, ";", encoding)
    assert predict_file(trained.model(), data, tmp_path / "out.csv").unanswered == 0
    assert {row["note"] for row in rows(tmp_path / "out.csv")} == {"coat is 'grün', an unknown category"}


def test_a_file_may_have_one_column(trained: Trained, tmp_path: Path) -> None:
    data = tmp_path / "new.csv"
    data.write_text("weight\n4.1\n0.2\n")
    assert predict_file(trained.model(), data, tmp_path / "out.csv").rows == 2
    data.write_text("coat\nshort, and brown\nlong, and grey\n")
    predict_file(trained.model(), data, tmp_path / "out.csv")
    assert "coat is 'short, and brown', an unknown category" in rows(tmp_path / "out.csv")[0]["note"]


def test_columns_without_cells_matter_only_where_the_model_needs_them(trained: Trained, tmp_path: Path) -> None:
    data = tmp_path / "new.parquet"
    frame = pd.DataFrame({**animals(5, seed=7), "lists": [[1]] * 5})
    frame.to_parquet(data)
    found = predict_file(trained.model(), data, tmp_path / "out.csv")
    assert (found.rows, found.unanswered) == (5, 0)
    assert "lists" in found.ignored
    frame.assign(coat=[[1]] * 5).to_parquet(data)
    with pytest.raises(InputError, match="column 'coat' cannot be used: it holds lists"):
        predict_file(trained.model(), data, tmp_path / "out.csv")


def test_files_are_read_as_the_study_says_or_as_one_is_told(tmp_path: Path) -> None:
    write_csv(tmp_path / "pets.csv", {**animals(90), "grün": animals(90)["coat"]}, "~", "utf-16-le")
    study = STUDY.replace("target: animal", "target: animal, separator: '~', encoding: utf-16-le")
    (tmp_path / "pets.yaml").write_text(study.replace(", xgboost: {n_estimators: 3}", ""))
    home = ("--home", str(tmp_path / "home"))
    nbsr("run", str(tmp_path / "pets.yaml"), "--local", *home)
    out = tmp_path / "out.csv"
    said = nbsr("predict", "pets", str(tmp_path / "pets.csv"), "--out", str(out), *home)
    assert "answers 90" in said
    assert "misses" not in said
    other = write_csv(tmp_path / "other.csv", {**animals(7), "grün": animals(7)["coat"]}, "\t", "cp1252")
    words = ("predict", "pets", str(other), "--out", str(out), *home)
    assert "answers 7" in nbsr(*words, "--separator", "tab", "--encoding", "cp1252")
    nbsr(*words, code=2)


def test_a_model_without_a_belief_abstains_as_it_was_judged(trained: Trained, tmp_path: Path) -> None:
    words = ("predict", trained.keys["xgboost"], str(trained.folder / "pets.csv"), "--out", str(tmp_path / "out.csv"))
    said = nbsr(*words, "--home", str(trained.home))
    result = ResultStore(Home(trained.home).trials).load(trained.keys["xgboost"])
    limit = result.metrics["test/max_doubt"]
    assert f"abstains below a confidence of {1 - limit:.4g}, as the trial was judged" in said
    assert "never exits early, abstains" in said
    data: Any = from_plain(TableData, result.trial["data"])
    test, found = load_table(data, result.trial["seed"]).rows.test, rows(tmp_path / "out.csv")
    abstained = [found[row]["abstained"] == "true" for row in test]
    assert np.mean(abstained) == pytest.approx(result.metrics["test/abstained"])
    stricter = predict_file(
        trained.model("xgboost"), trained.folder / "pets.csv", tmp_path / "out.csv", options={"max_doubt": 0.05}
    )
    assert 0 < stricter.abstained < stricter.rows
    assert all(
        (row["abstained"] == "true") == (1 - float(row["confidence"]) > 0.05) for row in rows(tmp_path / "out.csv")
    )


def test_a_budget_is_for_models_that_buy(trained: Trained, tmp_path: Path) -> None:
    data = new_rows(tmp_path)
    words = ("predict", "pets", str(data), "--out", str(tmp_path / "o.csv"), "--home", str(trained.home))
    assert "only models that buy panels have one" in nbsr(*words, "--budget", "3", code=2)
    told = nbsr("explain", "pets", "--budget", "3", "--home", str(trained.home), code=2)
    assert "only models that buy panels have one" in told


def test_a_folder_is_no_file_of_rows(trained: Trained, tmp_path: Path) -> None:
    words = ("predict", "pets", str(tmp_path), "--out", str(tmp_path / "o.csv"), "--home", str(trained.home))
    assert "cannot be read: Is a directory" in nbsr(*words, code=2)


def test_a_file_that_breaks_late_leaves_the_old_answers(trained: Trained, tmp_path: Path) -> None:
    data = new_rows(tmp_path)
    data.write_text(data.read_text() + "one,field,too,few\n")
    (tmp_path / "out.csv").write_text("from yesterday\n")
    with pytest.raises(InputError, match="line 42: 4 fields"):
        predict_file(trained.model(), data, tmp_path / "out.csv", chunk=10)
    assert (tmp_path / "out.csv").read_text() == "from yesterday\n"
    assert sorted(os.listdir(tmp_path)) == ["new.csv", "out.csv"]


def test_ctrl_c_leaves_nothing_half_written(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(predictions, "_answered", interrupted)
    with pytest.raises(KeyboardInterrupt):
        predict_file(trained.model(), new_rows(tmp_path), tmp_path / "out.csv")
    assert os.listdir(tmp_path) == ["new.csv"]


def test_the_questions_are_never_written_over(trained: Trained, tmp_path: Path) -> None:
    data = new_rows(tmp_path)
    before = data.read_text()
    with pytest.raises(InputError, match="is the file of the questions"):
        predict_file(trained.model(), data, data)
    assert data.read_text() == before


def test_a_head_without_rows_gives_a_head_without_rows(trained: Trained, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "new.csv", {name: [] for name in animals()})
    assert predict_file(trained.model(), data, tmp_path / "out.csv").rows == 0
    assert (tmp_path / "out.csv").read_text().startswith("label,confidence,depth,vacuity,abstained,path,p(bird)")


def test_a_trial_that_is_not_there_is_said(trained: Trained, tmp_path: Path) -> None:
    words = ("predict", "nobody", str(new_rows(tmp_path)), "--out", str(tmp_path / "o.csv"))
    assert "nobody" in nbsr(*words, "--home", str(trained.home), code=2)
