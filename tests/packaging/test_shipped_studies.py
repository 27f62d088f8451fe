"""Studies that come with nbsr are found by name, wherever a command is started; one's own files go first."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbsr_platform import Study, load
from nbsr_platform.cli.app import app
from nbsr_platform.cluster.packing import select
from nbsr_platform.study import shipped
from nbsr_platform.study.problems import StudyError
from typer.testing import CliRunner

STUDIES = Path(__file__).parents[2] / "studies"
MINE = "{name: mine, domain: iris, models: {nbsr: {}}}"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_shipped_study_is_found_by_its_name() -> None:
    study = Study.load("medical/quickstart")
    assert study == Study.load(STUDIES / "medical" / "quickstart.yaml")
    assert study.command == "nbsr run medical/quickstart"
    assert len(load("quickstart").studies) == 6


def test_every_file_has_a_name_and_is_listed_with_it() -> None:
    files = sorted(path.relative_to(STUDIES).as_posix() for path in STUDIES.rglob("*.yaml"))
    assert sorted(f"{name}.yaml" for name in shipped.shipped_studies()) == files
    done = CliRunner().invoke(app, ["studies"])
    assert done.exit_code == 0
    assert all(f"{name}  " in done.stdout for name in shipped.shipped_studies())


@pytest.mark.parametrize("place", ["medical/quickstart.yaml", "medical/quickstart"])
def test_a_file_of_that_name_here_goes_first(place: str) -> None:
    Path("medical").mkdir()
    Path(place).write_text(MINE)
    assert Study.load("medical/quickstart").name == "mine"


def test_a_folder_of_studies_here_is_listed_alone() -> None:
    Path("studies").mkdir()
    Path("studies/mine.yaml").write_text(MINE)
    said = CliRunner().invoke(app, ["studies"]).stdout
    assert "studies/mine.yaml" in said
    assert "medical" not in said


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (
            "medical/quikstart",
            "there are medical/best, medical/paper, medical/quickstart, medical/references, medical/search",
        ),
        ("medcal/quickstart", "did you mean 'medical/quickstart'?"),
        ("something", "nbsr studies lists them"),
    ],
)
def test_an_unknown_name_lists_near_ones(name: str, hint: str) -> None:
    with pytest.raises(StudyError) as raised:
        load(name)
    assert str(raised.value) == f"{name}: no such file, and no study of this name comes with nbsr; {hint}"


def test_what_is_not_run_yet_is_said_with_the_name_that_runs_it() -> None:
    for command in (["report", "iris/quickstart"], ["explain", "iris/quickstart"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2, done.output
        assert "nbsr run iris/quickstart" in " ".join(done.output.split())


def test_the_module_beside_an_installed_study_goes_along_with_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    from nbsr_platform.serving import code

    load("theory/bias_variance")
    monkeypatch.setattr(code, "INSTALLED", (STUDIES.parent,))  # as it is where nbsr is installed
    assert set(code.own_code("patches:Patches", None)) == {"patches.py"}


def test_a_study_out_of_the_installed_package_is_sent_without_what_lies_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment often lies in a project, which is not that of the study."""
    from nbsr_platform.cluster import packing

    package = tmp_path / ".venv" / "nbsr_platform"
    study = package / "studies" / "iris" / "quickstart.yaml"
    study.parent.mkdir(parents=True)
    study.write_text(MINE)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "private.py").touch()
    monkeypatch.setattr(packing, "shipped_folder", lambda: package / "studies")
    monkeypatch.setattr(packing, "home_of", lambda _: package)
    selection = select(load(study))
    assert selection.project == package / "studies"
    assert set(selection.of_the_project) == {"project/iris/quickstart.yaml"}
