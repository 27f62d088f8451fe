"""`nbsr new` looks at somebody's data and writes a study that runs as it is."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nbsr_platform.cli.app import app
from nbsr_platform.cli.options import separator_named
from nbsr_platform.study.first_study import first_study, yaml_text
from nbsr_platform.study.study import Study
from PIL import Image
from tables import animals, write_csv
from typer.testing import CliRunner

from nbsr_core.domains.table import load_table
from nbsr_core.errors import InputError

QUICK = ("--local", "--home", "home", "--set", "seeds=1", "--set", "training.epochs=2")


def pictures(folder: Path, train: int = 20, test: int = 6) -> Path:
    draw = np.random.default_rng(0)
    for part, count in (("train", train), ("test", test)):
        for channel, name in enumerate(("red", "green", "blue")):
            place = folder / part / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 120, (12, 12, 3), dtype=np.uint8)
                pixels[..., channel] += 90
                Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


def novel(path: Path) -> Path:
    chance = random.Random(0)
    words = ["the", "cat", "dog", "runs", "sleeps", "near", "far", *(f"w{number}" for number in range(60))]
    path.write_text(" ".join(chance.choice(words[: chance.choice((7, 67))]) for _ in range(5000)))
    return path


def nbsr(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


class TestTable:
    def test_it_names_each_column_and_what_is_left_out_and_why(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write_csv(tmp_path / "pets.csv", animals())
        said = nbsr("new", "pets.csv", "--target", "animal")
        for words in (
            "240 rows, 3 classes",
            "tag │ identifier, left out",
            "weight │ numeric",
            "25 missing",
            "coat │ categorical",
            "indoors │ boolean",
            "born │ date",
            "planet │ constant, left out",
            "study pets.yaml",
        ):
            assert words in said
        study = Study.load(tmp_path / "pets.yaml")
        assert study.data.file == tmp_path / "pets.csv"
        assert study.data.columns["tag"] == "ignore"
        assert study.data.columns["born"] == "date"

    def test_the_study_runs_as_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        write_csv(tmp_path / "pets.csv", animals())
        nbsr("new", "pets.csv", "--target", "animal", "--out", "studies/first.yaml")
        said = nbsr("run", "studies/first.yaml", *QUICK)
        assert "3/3 trials" in said
        assert "failed" not in said
        assert (tmp_path / "home" / "reports" / "pets" / "index.html").exists()

    def test_a_study_that_is_there_is_never_written_over(self, tmp_path: Path) -> None:
        data = write_csv(tmp_path / "pets.csv", animals())
        mine = tmp_path / "pets.yaml"
        mine.write_text("name: mine\n")
        done = CliRunner().invoke(app, ["new", str(data), "--target", "animal", "--out", str(mine)])
        assert done.exit_code == 2
        assert "is there already" in done.output
        assert mine.read_text() == "name: mine\n"

    def test_without_a_target_the_columns_are_named(self, tmp_path: Path) -> None:
        data = write_csv(tmp_path / "pets.csv", animals())
        with pytest.raises(InputError, match=r"--target must name the column to predict; .* has 'tag', 'weight'"):
            first_study(data, None, tmp_path / "pets.yaml")

    def test_separator_and_encoding_that_were_given_stand_in_the_study(self, tmp_path: Path) -> None:
        columns = {**animals(), "grün": animals()["coat"]}
        data = write_csv(tmp_path / "pets.csv", columns, "~", "utf-16-le")
        out = tmp_path / "pets.yaml"
        nbsr("new", str(data), "--target", "animal", "--out", str(out), "--separator", "~", "--encoding", "utf-16-le")
        study = Study.load(out)
        assert (study.data.separator, study.data.encoding) == ("~", "utf-16-le")
        assert "grün" in load_table(study.data, 0).encoding.columns[-1].name
        tabbed = write_csv(tmp_path / "tabs.csv", animals(), "\t")
        assert '  separator: "\\t"' in first_study(tabbed, "animal", out, separator_named("tab")).text
        with pytest.raises(InputError, match="--separator must be one character"):
            separator_named("comma")
        with pytest.raises(InputError, match="--encoding is for tables"):
            first_study(novel(tmp_path / "novel.txt"), None, out, encoding="cp1252")

    def test_unequal_classes_and_copies_of_the_target_get_a_word(self, tmp_path: Path) -> None:
        columns = animals()
        columns["animal"] = ["cat"] * 200 + ["dog"] * 40
        columns["code"] = [name[0] for name in columns["animal"]]
        found = first_study(write_csv(tmp_path / "pets.csv", columns), "animal", tmp_path / "pets.yaml")
        assert "the most frequent class has 200 rows, the rarest 40" in found.text.lower()
        assert any("column 'code' says the target of every row" in note for note in found.notes)

    def test_of_thousands_of_columns_the_study_lists_those_that_are_no_plain_numbers(self, tmp_path: Path) -> None:
        rows = 12
        columns: dict[str, list[object]] = {f"x{number}": [*range(rows)] for number in range(1000)}
        columns |= {"colour": ["red", "blue"] * 6, "y": ["a", "b", "c"] * 4}
        found = first_study(write_csv(tmp_path / "wide.csv", columns), "y", tmp_path / "wide.yaml")
        assert "colour: categorical" in found.text
        assert "x17" not in found.text
        assert len(found.text.splitlines()) < 60

    @given(st.lists(st.text(min_size=1, max_size=30), min_size=3, max_size=3, unique_by=str.strip))
    @example(["no", "y: [", "# z"])
    @example(["1", "null", "a\nb"])
    @example(["\x7f\u2028", "😀", "a\tb"])
    @example(["~", "x" * 2000, "'\"\\"])
    def test_whatever_columns_are_called_the_study_can_be_read(
        self, tmp_path_factory: pytest.TempPathFactory, names: list[str]
    ) -> None:
        folder = tmp_path_factory.mktemp("odd")
        first, second, target = names
        columns: dict[str, list[object]] = {first: [*range(24)], second: ["a", "b", "c"] * 8, target: ["u", "v"] * 12}
        try:
            data = write_csv(folder / "odd.csv", columns)
            found = first_study(data, target.strip(), folder / "odd.yaml")
        except (InputError, UnicodeEncodeError):  # files that are no tables have a test of their own
            return
        (folder / "odd.yaml").write_text(found.text, encoding="utf-8")
        study = Study.load(folder / "odd.yaml")
        assert study.data.target == target.strip()
        assert set(study.data.columns) <= {first.strip() or "column 1", second.strip() or "column 2"}
        assert load_table(study.data, 0).num_classes == 2


class TestPictures:
    @pytest.mark.slow
    def test_a_folder_of_pictures_becomes_a_study_that_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        pictures(tmp_path / "colours")
        said = nbsr("new", "colours")
        assert "60 pictures to train on, 18 to test, 3 classes" in said
        said = nbsr("run", "colours.yaml", *QUICK, "--set", "data.size=8")
        assert "2/2 trials" in said
        assert "failed" not in said

    def test_folders_in_another_order_are_told_the_right_one(self, tmp_path: Path) -> None:
        pictures(tmp_path / "colours")
        with pytest.raises(InputError, match=r"no images under train/.* expected are train/CLASS/PICTURE"):
            first_study(tmp_path / "colours" / "test", None, tmp_path / "study.yaml")
        with pytest.raises(InputError, match="--target is for tables"):
            first_study(tmp_path / "colours", "kind", tmp_path / "study.yaml")

    def test_what_is_not_there_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"none\.zip is not there"):
            first_study(tmp_path / "none.zip", None, tmp_path / "study.yaml")


class TestText:
    @pytest.mark.slow
    def test_a_text_becomes_a_study_that_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        novel(tmp_path / "novel.txt")
        assert "5,000 words, 67 different ones" in nbsr("new", "novel.txt")
        said = nbsr("run", "novel.yaml", *QUICK)
        assert "2/2 trials" in said
        assert "failed" not in said

    def test_a_text_that_is_too_short_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "note.txt").write_text("not enough of it")
        with pytest.raises(InputError, match=r"note\.txt has 4 words; at least 2,560"):
            first_study(tmp_path / "note.txt", None, tmp_path / "study.yaml")


@given(st.text())
def test_yaml_reads_back_what_is_quoted(text: str) -> None:
    import yaml

    written = yaml_text(text)
    assert "\n" not in written
    if not any(0xD800 <= ord(letter) < 0xE000 for letter in text):
        assert yaml.safe_load(f"key: {written}") == {"key": text}
