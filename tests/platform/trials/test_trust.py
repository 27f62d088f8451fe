"""Whose code runs: what is installed, and what stands in a folder that the user named; nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nbsr_platform.cli.app import app
from nbsr_platform.explain.explain import explain
from nbsr_platform.report.find import find, of_study
from nbsr_platform.study.study import Study, load
from nbsr_platform.tracking.rerun import write_study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid
from processes import COMMAND, GRID, NAPS, nbsr, place
from typer.testing import CliRunner

from benchmarks.reliability.hostile.case import KEY, OWNED, trained
from nbsr_core.code import named as named_code
from nbsr_core.errors import InputError

FLOWERS = "from nbsr_core.domains.iris import Iris\n\n\nclass Flowers(Iris):\n    name = 'flowers'\n"
INSTALLED = [str(Path(sys.executable).with_name("nbsr"))]
SHADOWS = ("scipy", "queue", "yaml", "torchvision", "nbsr_core")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A store with a trial of a domain of its own, whose module is in the folder `mine`, not in the one it names."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "nbsr_trust_flowers.py").write_text(FLOWERS)
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "nbsr_trust_flowers.py").write_text(f"open({OWNED!r}, 'w')\n" + FLOWERS)
    found, home = trained(), Home(tmp_path / "home")
    own = {"domain": "nbsr_trust_flowers:Flowers", "beside": str(tmp_path / "planted")}
    ResultStore(home.trials).save(replace(found, key=KEY, trial={**found.trial, **own}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(named_code, "_folders", [])
    yield home
    assert not (tmp_path / OWNED).exists()
    sys.modules.pop("nbsr_trust_flowers", None)


def test_a_stored_trial_is_explained_with_the_code_that_the_user_names(store: Home) -> None:
    with pytest.raises(InputError, match=rf"trial {KEY} uses .* it ran from .*planted: add --code .*planted if you"):
        explain(store, KEY, 0)
    told = explain(store, KEY, 0, code=Path("mine"))
    assert told.text
    assert str(Path("mine").absolute()) in sys.path[-1:]


def test_a_stored_trial_is_reported_with_the_code_that_the_user_names(store: Home) -> None:
    with pytest.raises(InputError, match="add --code"):
        find(store, KEY)
    (study_results,) = find(store, KEY, code=Path("mine"))
    assert study_results.study.domain_object.name == "flowers"
    assert study_results.study.folder == Path("mine").absolute()


def test_a_trials_study_is_written_beside_the_code_that_the_user_names(store: Home) -> None:
    with pytest.raises(InputError, match="add --code"):
        write_study(store, KEY)
    path = write_study(store, KEY, code=Path("mine"))
    assert path.parent == Path("mine")
    study = load(path)
    assert isinstance(study, Study)
    assert study.domain_object.name == "flowers"
    assert write_study(store, KEY, code=Path("mine")) == path
    assert not store.studies.exists()


def test_a_trials_study_in_the_home_has_no_modules_beside_it(store: Home) -> None:
    ResultStore(store.trials).save(trained())
    done = CliRunner().invoke(app, ["run", "--from-trial", trained().key, "--home", str(store.root)])
    assert done.exit_code == 0, done.output
    assert list(store.studies.iterdir()) == [store.studies / "real-nbsr.yaml"]
    assert named_code._folders == [], "a store is no place for code"


def test_a_study_file_is_never_written_through_a_link(store: Home, tmp_path: Path) -> None:
    ResultStore(store.trials).save(trained())
    written = write_study(store, trained().key)
    written.unlink()
    written.symlink_to(tmp_path / "elsewhere.yaml")
    with pytest.raises(InputError, match="says something else"):
        write_study(store, trained().key)
    assert not (tmp_path / "elsewhere.yaml").exists()


def test_a_store_has_no_say_in_the_domain_of_a_study(store: Home) -> None:
    """A study's results are found by its own trials, whatever domain a result claims to be of."""
    study = Study.from_dict({"name": "real", "domain": "iris", "models": {"nbsr": {}}, "training": {"epochs": 1}})
    (trial,) = grid(study, data_fingerprint(study))
    found = replace(trained(), trial={**trained().trial, "domain": "nbsr_trust_flowers:Flowers"})
    ResultStore(store.trials).save(found)
    assert [ended.domain for ended, _ in of_study(store, study).finished] == ["iris"]
    assert trial.key == found.key


def test_studies_are_not_looked_for_in_a_store(tmp_path: Path) -> None:
    hidden = tmp_path / ".nbsr" / "studies"
    place(tmp_path / "open", NAPS)
    hidden.mkdir(parents=True)
    (hidden / "evil.py").write_text(f"open({str(tmp_path / OWNED)!r}, 'w')\n")
    (hidden / "evil.yaml").write_text("name: evil\ndomain: evil:Evil\nmodels: {nbsr: {}}\n")
    done = CliRunner().invoke(app, ["studies", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "naps.yaml" in done.output
    assert "evil" not in done.output
    assert not (tmp_path / OWNED).exists()


def shadowed(folder: Path, study: str) -> Path:
    """A folder with a study and modules that have the names of packages, and leave a file when they are imported."""
    folder.mkdir()
    (folder / "tiny.yaml").write_text(study)
    for name in SHADOWS:
        mark = folder / f"{name}-was-imported"
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\nraise ImportError('the one beside you')\n")
    return folder


def test_the_current_folder_hides_no_package_from_the_command(tmp_path: Path) -> None:
    here = shadowed(tmp_path / "here", GRID)
    for command in (COMMAND, INSTALLED):
        done = subprocess.run([*command, "validate", "tiny.yaml"], cwd=here, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert list(here.glob("*-was-imported")) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_current_folder_hides_no_package_from_workers(tmp_path: Path) -> None:
    here = shadowed(tmp_path / "here", GRID.replace("seeds: 3", "seeds: 1"))
    done = subprocess.run([*INSTALLED, "run", "tiny.yaml", "--json"], cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"]["finished"] == 2
    assert list(here.glob("*-was-imported")) == []
    # Nor does the study's own folder, from which its domain's module comes.
    naps = place(tmp_path / "naps", NAPS)
    for name in SHADOWS:
        shutil.copy(here / f"{name}.py", naps)
    done = nbsr("run", "naps.yaml", "--json", "--set", "data.seconds=0", "--set", "seeds=1", cwd=naps)
    assert done.returncode == 0, done.stderr
    assert list(here.glob("*-was-imported")) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_modules_on_pythonpath_are_found_by_workers(tmp_path: Path) -> None:
    modules = place(tmp_path / "modules", NAPS)
    (tmp_path / "here").mkdir()
    (modules / "naps.yaml").rename(tmp_path / "here" / "naps.yaml")
    path = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
    short = ("--set", "data.seconds=0", "--set", "seeds=1")
    done = nbsr("run", "naps.yaml", "--json", *short, cwd=tmp_path / "here", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"]["finished"] == 2
