"""A home may have any name and may be moved or copied: its database and artifacts are in it, and nowhere else."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from nbsr_platform.base.sqlite_address import sqlite_file, sqlite_uri
from nbsr_platform.cli.app import app
from nbsr_platform.tracking.moved_store import follow
from nbsr_platform.tracking.store import checked
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.home import Home
from records import text_of
from toys import ToyStudy, flat_trial, store_uri
from typer.testing import CliRunner

from nbsr_core.errors import InputError

STUDY = ToyStudy()
ODD = ["a%41b", "a?b=c&d", "100%", "a#b", "ä ü", 'it\'s "x"', "a:b@c\\d;e", "a\nb [red]"]


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def used(home: Home) -> str:
    """A home with a study, one of whose trials is recorded; returns the study's run."""
    store_uri(home.root)
    tracker = Tracker.open(home)
    parent = tracker.study_run(STUDY, "abc")
    tracker.record(parent, *flat_trial(), None, with_artifacts=False)
    return parent


def addresses(home: Home) -> set[str]:
    with closing(sqlite3.connect(home.database)) as database:
        rows = database.execute(
            "select artifact_location from experiments where name != 'Default' union select artifact_uri from runs"
        )
        return {address for (address,) in rows}


@pytest.mark.parametrize("name", ODD)
def test_a_home_may_have_any_name(name: str, tmp_path: Path) -> None:
    home = Home.of(tmp_path / name / ".nbsr")
    parent = used(home)
    assert everything(tmp_path) >= {f"{name}/.nbsr/mlflow.db", f"{name}/.nbsr/artifacts"}
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing beside it"
    assert len(list(home.artifacts.rglob("study.yaml"))) == 2
    again = Tracker.open(home)
    assert text_of(again, parent, "study.yaml", tmp_path) == STUDY.to_yaml()
    assert sqlite_file(home.tracking_uri) == home.database
    assert checked(home.tracking_uri) == home.tracking_uri


def test_a_new_store_is_made_in_a_home_of_an_odd_name(tmp_path: Path) -> None:
    home = Home.of(tmp_path / "a%41?#ü [x]'\"b" / ".nbsr")
    Tracker.open(home)
    assert everything(home.root) == {"mlflow.db", "artifacts"}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("command", ["run s.yaml", "plan s.yaml", "ui", "doctor", "report s.yaml", "explain abc"])
def test_a_home_whose_name_is_no_text_is_refused_at_once(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text("name: fine\ndomain: iris\nmodels: {mlp: {}}\n")
    done = CliRunner().invoke(app, [*command.split(), "--home", str(tmp_path / "caf\udce9")])
    assert done.exit_code == 2, (done.output, done.exception)
    assert r"caf\xe9: its path is not UTF-8" in done.output
    assert everything(tmp_path) == {"s.yaml"}


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("sqlite:///x.db?timeout=5&token=hunter2", "sqlite:///x.db: a sqlite file takes no parameters"),
        ("sqlite:///file:x.db?uri=true", "takes no parameters"),
        ("sqlite:///file:x.db", "sqlite needs a file"),
        ("sqlite+pysqlite://", "sqlite needs a file"),
        ("sqlite:x.db", "give sqlite:///path/to/mlflow.db"),
    ],
)
def test_addresses_that_name_no_file_are_refused(uri: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        sqlite_file(uri)
    assert "hunter2" not in str(caught.value)


def test_addresses_are_read_as_sqlalchemy_reads_them() -> None:
    assert sqlite_file("sqlite:////data/a%3Fb.db") == Path("/data/a?b.db")
    assert sqlite_file("sqlite+pysqlite:///here.db") == Path("here.db")
    assert sqlite_file("postgresql://host/db") is None
    assert sqlite_uri(Path("/plain/ü.db")) == "sqlite:////plain/ü.db"


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_home_elsewhere_has_its_artifacts_with_it(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before, after = Home.of(tmp_path / "before" / ".nbsr"), Home.of(tmp_path / "after %41" / ".nbsr")
    parent = used(before)
    if how == "moved":
        before.root.parent.rename(after.root.parent)
    else:
        shutil.copytree(before.root, after.root)
    left = everything(tmp_path / "before") if how == "copied" else set()
    tracker = Tracker.open(after)
    assert "was moved" in caplog.text
    assert all(address.startswith(after.artifacts.as_uri()) for address in addresses(after))
    assert text_of(tracker, parent, "study.yaml", tmp_path) == STUDY.to_yaml()
    assert tracker.study_run(STUDY, "abc") == parent
    tracker.record(parent, *flat_trial(seed=1), None, with_artifacts=False)
    tracker.record(tracker.study_run(STUDY, "other"), *flat_trial(seed=2), None, with_artifacts=False)
    assert len(list(after.artifacts.rglob("study.yaml"))) == 5
    if how == "moved":
        assert not before.root.exists(), "nothing is written to the old place"
    else:
        assert everything(tmp_path / "before") == left
        assert all(address.startswith(before.artifacts.as_uri()) for address in addresses(before))
    caplog.clear()
    Tracker.open(after)
    assert caplog.text == "", "said once"


def test_models_that_were_registered_move_with_their_home(tmp_path: Path) -> None:
    before, after = Home.of(tmp_path / "before"), Home.of(tmp_path / "after")
    parent = used(before)
    tracker = Tracker.open(before)
    experiment = tracker.client.get_run(parent).info.experiment_id
    made = tracker.client.create_logged_model(experiment, "net")
    tracker.client.create_registered_model("net")
    source = tracker.client.get_run(parent).info.artifact_uri + "/model"
    tracker.client.create_model_version("net", source, parent)
    before.root.rename(after.root)
    moved = Tracker.open(after)
    for place in (
        moved.client.get_logged_model(made.model_id).artifact_location,
        moved.client.get_model_version("net", "1").source,
        moved.client.get_model_version_download_uri("net", "1"),
    ):
        assert place.startswith(f"{after.artifacts.as_uri()}/"), place


def test_a_home_without_its_artifacts_gets_new_ones_where_it_is(tmp_path: Path) -> None:
    before, after = Home.of(tmp_path / "before"), Home.of(tmp_path / "after")
    parent = used(before)
    before.root.rename(after.root)
    shutil.rmtree(after.artifacts)
    Tracker.open(after).study_run(STUDY, "abc")
    assert not before.root.exists()
    assert [path.parent.parent.name for path in after.artifacts.rglob("study.yaml")] == [parent]


def test_artifacts_that_were_given_another_place_stay_there(tmp_path: Path) -> None:
    mine, store = Home.of(tmp_path / "mine"), Home.of(tmp_path / "store")
    uri = store_uri(store.root)
    parent = Tracker.open(mine, uri).study_run(STUDY, "abc")
    before = addresses(store)
    for tracker in (Tracker.open(mine, uri), Tracker.open(store)):
        assert tracker.study_run(STUDY, "abc") == parent
        assert addresses(store) == before
    assert list(store.artifacts.rglob("study.yaml")) == []


def test_a_link_to_a_home_is_that_home(tmp_path: Path) -> None:
    home, link = Home.of(tmp_path / "home"), tmp_path / "link"
    used(home)
    before = addresses(home)
    link.symlink_to(home.root)
    Tracker.open(Home.of(link))
    assert addresses(home) == before


def test_many_may_open_a_moved_home_at_once(tmp_path: Path) -> None:
    before, after = Home.of(tmp_path / "before"), Home.of(tmp_path / "after")
    used(before)
    before.root.rename(after.root)
    script = (
        "import sys, pathlib; from nbsr_platform.tracking.moved_store import follow; "
        "print(follow(pathlib.Path(sys.argv[1])))"
    )
    openers = [
        subprocess.Popen([sys.executable, "-c", script, str(after.database)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    corrected = [int(opener.communicate(timeout=60)[0]) for opener in openers]
    assert [opener.returncode for opener in openers] == [0] * 4
    assert sum(corrected) == 1, "by one of them"
    assert all(address.startswith(after.artifacts.as_uri()) for address in addresses(after))
    assert follow(after.database) == 0


def test_what_is_no_store_of_mlflow_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("create table notes (text)")
    before = file.read_bytes()
    assert follow(file) == 0
    assert file.read_bytes() == before
