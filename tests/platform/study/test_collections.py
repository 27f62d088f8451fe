"""Several studies as one."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbsr_platform.study.problems import StudyError
from nbsr_platform.study.study import Collection, Study, load
from study_toys import ONE, complaints, write


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class TestCollections:
    def members(self) -> None:
        write(ONE, "iris/quick.yaml")
        write(
            ONE.replace("name: toy", "name: other") + "  flat: {kind: mlp, training: {epochs: 3}}\n",
            "medical/quick.yaml",
        )
        write("name: all\nquestion: Everything?\ninclude: [iris/quick.yaml, medical/quick.yaml]\n", "all.yaml")

    def test_loads_members_relative_to_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members()
        Path("elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        found = load("../all.yaml")
        assert isinstance(found, Collection)
        assert (found.name, found.question) == ("all", "Everything?")
        assert [study.name for study in found.studies] == ["toy", "other"]
        assert found.studies[0].path == Path("../iris/quick.yaml")

    def test_a_study_stands_where_a_collection_may(self) -> None:
        self.members()
        study = Study.load("iris/quick.yaml")
        assert study.studies == (study,)
        assert [load(path).studies[0].name for path in ("iris/quick.yaml", "all.yaml")] == ["toy", "toy"]

    def test_nested_and_twice_the_same_file(self) -> None:
        self.members()
        write("name: more\ninclude: [all.yaml, iris/quick.yaml]\n", "more.yaml")
        found = load("more.yaml")
        assert isinstance(found, Collection)
        assert [study.name for study in found.studies] == ["toy", "other"]

    def test_overrides_reach_who_has_the_key(self) -> None:
        self.members()
        found = load("all.yaml", ["seeds=2", "training.epochs=9", "models.flat.hidden=[3]", "name=renamed"])
        assert isinstance(found, Collection)
        first, second = found.studies
        assert (found.name, first.seeds, second.seeds) == ("renamed", (0, 1), (0, 1))
        assert (first.models["nbsr"].training.epochs, second.models["flat"].training.epochs) == (9, 9)
        assert list(first.models) == ["nbsr"]
        assert second.models["flat"].options.hidden == (3,)

    def test_an_override_that_reaches_nobody(self) -> None:
        self.members()
        with pytest.raises(
            StudyError, match=r"^--set models.tree.depth=3: models.tree.depth: no study of this collection has"
        ):
            load("all.yaml", ["models.tree.depth=3"])

    def test_a_bad_value_in_an_override(self) -> None:
        self.members()
        with pytest.raises(
            StudyError, match=r"^--set models.flat.hidden=3: models.flat.hidden: expected a list of whole"
        ):
            load("all.yaml", ["models.flat.hidden=3"])

    def test_study_load_wants_one_study(self) -> None:
        self.members()
        with pytest.raises(StudyError, match=r"^all.yaml: holds several studies, not one"):
            Study.load("all.yaml")

    def test_both_kinds_at_once(self) -> None:
        self.members()
        assert complaints(ONE + "include: [iris/quick.yaml]\n") == [
            "study.yaml:2: domain: a file that includes others says no more than name and question; drop one of them",
            "study.yaml:3: models: a file that includes others says no more than name and question; drop one of them",
        ]

    def test_missing_member_names_both_files(self) -> None:
        self.members()
        assert complaints("name: all\ninclude:\n- iris/quick.yaml\n- iris/quik.yaml\n- medical\n") == [
            "study.yaml:4: include[1]: iris/quik.yaml: no such file; did you mean 'iris/quick.yaml'?",
            "study.yaml:5: include[2]: medical: is a folder; name a study file in it",
        ]

    def test_problems_of_all_members_come_together(self) -> None:
        write(ONE + "seeds: -1\n", "a.yaml")
        write(ONE + "seeds: -2\n", "b.yaml")
        lines = complaints("name: all\ninclude: [a.yaml, b.yaml]\nquestion: 3\n")
        assert [line.split(": ")[:2] for line in lines] == [
            ["study.yaml:3", "question"],
            ["a.yaml:5", "seeds"],
            ["b.yaml:5", "seeds"],
        ]

    def test_circles(self) -> None:
        write("name: b\ninclude: [study.yaml]\n", "b.yaml")
        assert complaints("name: a\ninclude: [b.yaml]\n") == [
            "b.yaml:2: include[0]: includes itself: b.yaml includes study.yaml"
        ]
        assert complaints("name: a\ninclude: [./study.yaml]\n") == [
            "study.yaml:2: include[0]: includes itself: study.yaml includes study.yaml"
        ]

    def test_two_studies_of_one_name(self) -> None:
        write(ONE, "a.yaml")
        write(ONE, "b.yaml")
        assert complaints("name: all\ninclude: [a.yaml, b.yaml]\n") == [
            "study.yaml:2: include: two studies are called 'toy': a.yaml and b.yaml; rename one"
        ]

    @pytest.mark.parametrize(
        ("include", "message"),
        [
            ("x.yaml", "include: expected a list of texts, got 'x.yaml'"),
            ("[]", "include: expected a list of study files, got []"),
            ("[3]", "include[0]: expected text, got 3; put it in quotes"),
        ],
    )
    def test_include_is_a_list_of_files(self, include: str, message: str) -> None:
        assert complaints(f"name: all\ninclude: {include}\n") == [f"study.yaml:2: {message}"]
