"""A file and a target are a domain: rows are cut, columns are encoded, every model can be trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tables import animals, table, write_csv

from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.domains.table import SplitOptions, Table, TableData, load_table
from nbsr_core.domains.table.survey import survey
from nbsr_core.errors import InputError
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution, Learner, NbsrLearner
from nbsr_core.learning.splits import Splits
from nbsr_core.options.specs import EvaluationOptions

DOMAIN = find_domain("table")
QUICK: dict[str, dict[str, Any]] = {"xgboost": {"n_estimators": 3}, "hist_boosting": {"max_iter": 3}}


def trained(splits: Splits, kind: str, epochs: int = 2, **options: Any) -> Learner:
    seed_everything(0)
    model = DOMAIN.models[kind]
    learner = model.build(model.options(**{**QUICK.get(kind, {}), **options}), Signature.of(splits))
    for _ in learner.train(splits, TrainingConfig(epochs=epochs, learning_rate=5e-3), 0, Execution()):
        pass
    return learner


class TestLoading:
    def test_columns_are_what_they_look_like_and_useless_ones_are_named(self, tmp_path: Path) -> None:
        found = survey(table(tmp_path))
        assert {look.name: look.kind or look.left_out for look in found.looks} == {
            "tag": "identifier",
            "weight": "numeric",
            "coat": "categorical",
            "indoors": "boolean",
            "born": "date",
            "planet": "constant",
            "owner": "numeric",
        }
        assert "left out: tag (identifier), planet (constant)" in found.about
        assert "240 rows, 3 classes" in found.about

    def test_the_study_has_the_last_word_on_kinds(self, tmp_path: Path) -> None:
        chosen = {"owner": "categorical", "born": "ignore", "planet": "categorical", "weight": "numeric"}
        splits = load_table(table(tmp_path, columns=chosen), 0)
        kinds = {column.name: column.kind for column in splits.encoding.columns}
        assert kinds == {
            "weight": "numeric",
            "coat": "categorical",
            "indoors": "boolean",
            "planet": "categorical",
            "owner": "categorical",
        }

    def test_everything_is_fitted_on_training_rows_alone(self, tmp_path: Path) -> None:
        columns = animals()
        splits = load_table(table(tmp_path, columns), 0)
        strange = {name: list(values) for name, values in columns.items()}
        for row in (*splits.rows.valid.tolist(), *splits.rows.test.tolist()):
            strange["weight"][row], strange["coat"][row], strange["born"][row] = "99999", "scales", "1950-01-01"
        again = load_table(table(tmp_path, strange), 0)
        assert again.encoding == splits.encoding
        assert torch.equal(again.train.x, splits.train.x)
        assert not torch.equal(again.test.x, splits.test.x)

    def test_the_seed_decides_on_the_cut_and_on_nothing_else(self, tmp_path: Path) -> None:
        data = table(tmp_path)
        one, same, other = load_table(data, 3), load_table(data, 3), load_table(data, 4)
        assert one.fingerprint() == same.fingerprint() != other.fingerprint()
        assert one.class_names == other.class_names == ["bird", "cat", "dog"]

    def test_a_parquet_file_gives_what_its_csv_gives(self, tmp_path: Path) -> None:
        import pandas as pd

        data = table(tmp_path)
        frame = pd.read_csv(data.file, keep_default_na=True)
        frame["born"] = pd.to_datetime(frame["born"])
        frame["indoors"] = frame["indoors"] == "yes"
        frame.to_parquet(tmp_path / "table.parquet")
        parquet = load_table(TableData(tmp_path / "table.parquet", "animal"), 0)
        plain = load_table(data, 0)
        assert torch.equal(parquet.train.x, plain.train.x)
        assert parquet.about == plain.about.replace(
            "table.csv (CSV, separator comma, utf-8)", "table.parquet (Parquet)"
        )

    def test_two_classes_and_a_thousand_are_ordinary(self, tmp_path: Path) -> None:
        many: dict[str, list[Any]] = {
            "x": [f"{k}.{turn}" for k in range(1000) for turn in range(4)],
            "y": [k for k in range(1000) for _ in range(4)],
        }
        splits = load_table(table(tmp_path, many, "y"), 0)
        assert splits.num_classes == 1000
        assert splits.class_names[:3] == ["0", "1", "2"]
        assert {len(split.y.unique()) for split in (splits.train, splits.valid, splits.test)} == {1000}
        assert (
            load_table(table(tmp_path, {"x": [*range(30), *range(30)], "y": ["a", "b", "b"] * 20}, "y"), 0).num_classes
            == 2
        )

    def test_rows_without_a_class_are_left_out_and_counted(self, tmp_path: Path) -> None:
        columns = animals()
        columns["animal"][:7] = ["", "NA", "?", "", "", "", ""]
        splits = load_table(table(tmp_path, columns), 0)
        assert sum(map(len, splits.rows)) == 233
        assert "7 rows without a 'animal' are left out" in splits.notes

    def test_a_copy_of_the_target_is_named(self, tmp_path: Path) -> None:
        columns = animals()
        columns["code"] = [{"cat": 3, "dog": 5, "bird": 9}[name] for name in columns["animal"]]
        notes = load_table(table(tmp_path, columns), 0).notes
        assert any("column 'code' says the target of every row" in note for note in notes)
        assert not any("weight" in note for note in notes)


class TestSplits:
    def test_by_chance_each_class_has_its_share(self, tmp_path: Path) -> None:
        splits = load_table(table(tmp_path, split=SplitOptions(valid=0.25, test=0.25)), 1)
        whole = torch.cat([splits.train.y, splits.valid.y, splits.test.y]).bincount()
        for split in (splits.valid, splits.test):
            np.testing.assert_allclose(split.y.bincount(), whole / 4, atol=1)
        rows = np.concatenate(splits.rows)
        assert sorted(rows.tolist()) == list(range(240))

    def test_by_a_column_rows_go_where_it_says(self, tmp_path: Path) -> None:
        columns = animals()
        columns["part"] = ["Train", "valid", "test", "training"] * 60
        splits = load_table(table(tmp_path, columns, split=SplitOptions("column", "part")), 0)
        assert (splits.rows.valid % 4 == 1).all()
        assert (splits.rows.test % 4 == 2).all()
        assert len(splits.train) == 120
        assert "part" not in {column.name for column in splits.encoding.columns}

    def test_a_column_without_validation_rows_has_them_cut_from_training(self, tmp_path: Path) -> None:
        columns = animals()
        columns["part"] = ["train", "test", "train"] * 80
        splits = load_table(table(tmp_path, columns, split=SplitOptions("column", "part")), 0)
        assert len(splits.test) == 80
        assert len(splits.valid) == pytest.approx(32, abs=3)

    def test_by_group_no_group_is_in_two_splits(self, tmp_path: Path) -> None:
        columns = animals()
        data = table(tmp_path, columns, split=SplitOptions("group", "owner"))
        for seed in range(5):
            splits = load_table(data, seed)
            owners = [{columns["owner"][row] for row in rows.tolist()} for rows in splits.rows]
            assert not (owners[0] & owners[1])
            assert not (owners[0] & owners[2])
            assert not (owners[1] & owners[2])
            assert 0.1 < len(splits.test) / 240 < 0.35

    def test_by_time_the_latest_rows_test(self, tmp_path: Path) -> None:
        columns = animals()
        splits = load_table(table(tmp_path, columns, split=SplitOptions("time", "born")), 0)
        days = [[columns["born"][row] for row in rows.tolist()] for rows in splits.rows]
        assert max(days[0]) < min(days[1])
        assert max(days[1]) < min(days[2])
        assert len(splits.test) == pytest.approx(48, abs=2)

    def test_what_a_column_cannot_say_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="'coat' must say train, valid or test, but holds 'feathers'"):
            load_table(table(tmp_path, split=SplitOptions("column", "coat")), 0)
        with pytest.raises(InputError, match="'coat' must hold a date or a number in every row"):
            load_table(table(tmp_path, split=SplitOptions("time", "coat")), 0)


class TestWeights:
    def test_balanced_classes_count_alike(self, tmp_path: Path) -> None:
        rows: dict[str, list[Any]] = {"x": [row / 8 for row in range(100)], "y": ["rare"] * 10 + ["common"] * 90}
        train = load_table(table(tmp_path, rows, "y", class_weights="balanced"), 0).train
        assert train.weight is not None
        sums = [float(train.weight[train.y == k].sum()) for k in (0, 1)]
        assert sums[0] == pytest.approx(sums[1]) == pytest.approx(len(train) / 2)

    def test_a_column_says_how_much_a_row_counts(self, tmp_path: Path) -> None:
        columns = animals()
        columns["count"] = [row % 3 for row in range(240)]
        splits = load_table(table(tmp_path, columns, row_weights="count"), 0)
        assert splits.train.weight is not None
        np.testing.assert_allclose(splits.train.weight.numpy() * np.mean(splits.rows.train % 3), splits.rows.train % 3)
        assert "count" not in {column.name for column in splits.encoding.columns}
        row = int(splits.rows.train[0])
        columns["count"][row] = -1
        with pytest.raises(InputError, match="'count' must hold numbers >= 0, but holds '-1'"):
            load_table(table(tmp_path, columns, row_weights="count"), 0)

    @pytest.mark.parametrize("kind", ["mlp", "nbsr", "xgboost", "cart", "hist_boosting"])
    def test_every_model_learns_with_weights(self, tmp_path: Path, kind: str) -> None:
        """One class is ten times rarer and cannot be told apart: who counts rows never says it, who weighs does."""
        draw = np.random.default_rng(0)
        rows = {"x": draw.normal(size=600).round(3).tolist(), "y": ["rare"] * 50 + ["common"] * 550}
        shares = []
        for weights in ("none", "balanced"):
            splits = load_table(table(tmp_path, rows, "y", class_weights=weights), 0)
            options = {"max_depth": 2} if kind in ("cart", "xgboost") else {}
            learner = trained(splits, kind, 8, **options)
            shares.append(float(learner.raw_probabilities(splits.test.x)[:, 1].mean()))
        assert shares[0] < 0.25 < 0.35 < shares[1]


@pytest.mark.parametrize("kind", sorted(DOMAIN.models))
@pytest.mark.parametrize("classes", [2, 3])
def test_every_model_learns_two_classes_and_more(tmp_path: Path, kind: str, classes: int) -> None:
    columns = animals(120)
    if classes == 2:
        columns["animal"] = ["bird" if name == "bird" else "mammal" for name in columns["animal"]]
    splits = load_table(table(tmp_path, columns), 0)
    learner = trained(splits, kind)
    judged = DOMAIN.judge(learner, splits, EvaluationOptions(audits=2))
    assert learner.probabilities(splits.test.x).shape == (len(splits.test), classes)
    assert 0 <= judged.metrics["test/balanced_accuracy"] <= 1
    assert 0 <= judged.metrics["test/auroc"] <= 1
    named = DOMAIN.figures(None, (), learner, EvaluationOptions())
    assert named is not None
    assert {"test/auroc", "valid/balanced_accuracy"} <= named


def test_nbsr_learns_the_animals(tmp_path: Path) -> None:
    splits = load_table(table(tmp_path, animals(600)), 0)
    learner = trained(splits, "nbsr", 15)
    judged = DOMAIN.judge(learner, splits, EvaluationOptions(audits=3))
    assert judged.metrics["test/accuracy"] > 0.9
    assert judged.metrics["test/auroc"] > 0.95
    words = {feature["name"].split(" (")[0] for audit in judged.audits for feature in audit["features"]}
    assert words <= {"weight", "coat", "indoors", "born", "owner"}, "audits speak of columns, not of features"


def test_a_stored_model_encodes_rows_itself(tmp_path: Path) -> None:
    from nbsr_core.domains.service import Questions

    columns = animals()
    splits = load_table(table(tmp_path, columns), 0)
    learner = trained(splits, "nbsr")
    assert isinstance(learner, NbsrLearner)
    service = Table().service(learner, Signature.of(splits))
    rows = splits.rows.test.tolist()
    values = {column.name: [columns[column.name][row] for row in rows] for column in splits.encoding.columns}
    answer = service.answer(Questions(torch.zeros(len(rows), 0), values=values))
    expected = learner.model.predict(splits.test.x)
    assert answer["label"].tolist() == [splits.class_names[k] for k in expected.label.tolist()]
    np.testing.assert_array_equal(answer["confidence"], expected.probs.double().amax(1))
    assert not any(answer["note"])
    asked = service.example()
    assert set(asked) == {column.name for column in service.inputs}
    assert len(service.answer(Questions(torch.zeros(1, 0), values={k: [v] for k, v in asked.items()}))["label"]) == 1


def test_side_columns_reach_the_routers_alone(tmp_path: Path) -> None:
    data = table(tmp_path, animals(), side=("coat", "owner"))
    splits = load_table(data, 0)
    assert [column.name for column in splits.encoding.columns][-2:] == ["coat", "owner"]
    learner = trained(splits, "nbsr")
    assert isinstance(learner, NbsrLearner)
    side = splits.encoding.side
    assert learner.model.side_dim == side == 4
    changed = splits.test.x.clone()
    changed[:, -side:] = changed[:, -side:].flip(0)
    assert torch.equal(learner.model.oracle(changed), learner.model.oracle(splits.test.x))
    before, after = learner.trace(splits.test.x), learner.trace(changed)
    assert torch.equal(before.beliefs[1], after.beliefs[1]), "the generalist's evidence rests on the other columns"
    logits = [trace.steps[1].logits for trace in (before, after)]
    assert not torch.equal(*logits)
    prediction = learner.model.predict(splits.test.x)
    assert torch.equal(prediction.label, before.beliefs[-1].argmax(-1))


def test_options_are_checked_without_opening_the_file() -> None:
    file = Path("nowhere.csv")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"target": ""}, "target must be the name of a column"),
        ({"separator": ";;"}, "separator must be one character"),
        ({"rare": 0}, "rare must be a whole number >= 1"),
        ({"most_categories": 1}, "most_categories must be"),
        ({"taxonomy": {"a": ["b"]}, "hierarchy": ("c",)}, "give one of them"),
        ({"side": ("y",)}, "side: 'y' is already the column of target"),
        ({"columns": {"y": "ignore"}}, "columns.y: it is ignored, but target needs it"),
    ]
    for wrong, words in refused:
        with pytest.raises(InputError, match=words):
            TableData(**{"file": file, "target": "y", **wrong})
    for options, words in (
        ({"by": "time"}, "split.column must be given"),
        ({"column": "a"}, "split.column must be given"),
        ({"valid": 0.0}, "split.valid must be a share"),
        ({"valid": 0.5, "test": 0.5}, "must leave at least 20%"),
    ):
        with pytest.raises(InputError, match=words):
            SplitOptions(**options)


def test_names_that_the_file_does_not_have_are_answered_with_those_that_it_has(tmp_path: Path) -> None:
    data = table(tmp_path)
    for options, words in (
        ({"target": "species"}, r"target: .* has no column 'species'; it has 'tag', 'weight'"),
        ({"target": "animal", "side": ("colour",)}, "side: .* has no column 'colour'"),
        ({"target": "animal", "columns": {"colour": "ignore"}}, "columns: .* has no column 'colour'"),
    ):
        with pytest.raises(InputError, match=words):
            load_table(TableData(data.file, **options), 0)
    assert write_csv(tmp_path / "x.csv", {"a": [1]}).exists()
