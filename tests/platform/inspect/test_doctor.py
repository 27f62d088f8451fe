"""The doctor: what it finds, what it calls missing, and that it changes nothing."""

from __future__ import annotations

import http.server
import io
import re
import socket
import sqlite3
import threading
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import ray
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.inspect import doctor
from nbsr_platform.inspect.doctor import Finding, examine, render
from nbsr_platform.trials.home import Home

from nbsr_core.files import size


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data, no cluster, no token, and a torchvision that answers at once."""
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere")
    monkeypatch.delenv("NBSR_DATA", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(doctor, "TORCHVISION", "print('whole')")


def by_topic(home: Home, tracking_uri: str | None = None) -> dict[str, Finding]:
    return {finding.topic: finding for finding in examine(home, tracking_uri)}


def test_a_fresh_place_is_fine_and_stays_as_it_is(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    found = by_topic(home)
    assert set(found) == {
        "Python",
        "packages",
        "compiled walks",
        "code",
        "torchvision",
        "machine",
        "GPUs",
        "data",
        "store",
        "MLflow",
        "Ray",
        "network",
    }
    assert not [finding for finding in found.values() if finding.state == "missing"]
    for name in ("torch 2.", "ray ", "mlflow ", "optuna ", "xgboost "):
        assert name in found["packages"].says
    assert "CPU" in found["machine"].says
    assert "not there yet" in found["store"].says
    assert "not there yet" in found["MLflow"].says
    assert found["data"].state == "warn"
    assert "NBSR_DATA" in found["data"].advice
    assert not home.root.exists()
    assert not ray.is_initialized()


def test_walks_that_are_not_compiled_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "at the first walk" in by_topic(Home(tmp_path))["compiled walks"].says
    monkeypatch.setenv("NBSR_NATIVE", "0")
    finding = by_topic(Home(tmp_path))["compiled walks"]
    assert (finding.state, finding.says) == ("warn", "switched off by NBSR_NATIVE=0")
    assert not (tmp_path / "cache").exists(), "the doctor compiles nothing"


def test_a_cache_that_others_may_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tmp_path.chmod(0o777)
    finding = by_topic(Home(tmp_path))["compiled walks"]
    assert finding.state == "warn"
    assert f"{tmp_path} can be written by others" in finding.advice


UNWRITABLE = "/proc/self"  # nobody, root included, can make anything there


def test_a_home_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", UNWRITABLE)
    monkeypatch.delenv("NBSR_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    found = by_topic(Home(tmp_path))
    assert found["home folder"].state == "warn"
    assert f"kept in {tmp_path / 'cache'}" in found["home folder"].says
    assert not [finding for finding in found.values() if finding.state == "missing"], "studies run all the same"


def test_no_place_for_ray_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", UNWRITABLE)
    found = by_topic(Home(tmp_path))["Ray"]
    assert found.state == "missing"
    assert UNWRITABLE in found.says
    assert "RAY_TMPDIR" in found.advice


def test_a_missing_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("torch", "no-such-package"))
    found = by_topic(Home(tmp_path))["packages"]
    assert found.state == "missing"
    assert "no-such-package not installed (found: torch" in found.says
    assert "make install" in found.advice


def test_extras_are_those_of_the_project() -> None:
    """What is advised for a package installs it: every package that is looked for stands in the extra that is named."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for extra, packages in doctor.EXTRAS.items():
        listed = [re.split(r"[\[<>=]", text)[0] for text in project["optional-dependencies"][extra]]
        assert set(packages) <= set(listed), extra
    platform = [*project["dependencies"], *project["optional-dependencies"]["platform"]]
    required = {re.split(r"[\[<>=]", text)[0] for text in platform}
    assert set(doctor.PACKAGES) <= required, "they come with the platform itself"


def test_the_extra_that_has_what_is_missing_is_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TORCHVISION", "print('absent')")
    absent = {"psycopg", "efficientnet_lite_pytorch", "xgboost"}
    monkeypatch.setattr(doctor, "_is_installed", lambda name: name not in absent)
    assert "Postgres" not in by_topic(Home(tmp_path)), "nobody asked for it"
    found = by_topic(Home(tmp_path), "postgresql+psycopg://nobody@127.0.0.1:9/none")
    assert found["torchvision"].advice == found["backbones"].advice == "pip install 'nbsr[vision]'"
    assert "efficientnet_lite_pytorch not installed" in found["backbones"].says
    assert (found["trees"].state, found["trees"].advice) == ("warn", "pip install 'nbsr[trees]'")
    assert (found["Postgres"].state, found["Postgres"].advice) == ("missing", "pip install 'nbsr[cluster]'")


@pytest.mark.parametrize(
    ("script", "state", "says"),
    [
        ("print('whole')", "ok", "compiled operators"),
        ("print('no operators')", "warn", "do not fit this torch"),
        ("print('absent')", "warn", "not installed"),
        ("print('broken: odd')", "warn", "broken: odd"),
        ("import os; os.abort()", "warn", "ended the process"),
    ],
)
def test_whatever_torchvision_does_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, state: str, says: str
) -> None:
    monkeypatch.setattr(doctor, "TORCHVISION", script)
    found = by_topic(Home(tmp_path))["torchvision"]
    assert found.state == state
    assert says in found.says


def test_the_real_torchvision_gives_a_known_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = by_topic(Home(tmp_path))["torchvision"]
    assert any(words in found.says for words in ("with its compiled", "do not fit this torch", "not installed"))


def test_data_sets_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, data = Home(tmp_path / "home"), tmp_path / "data"
    monkeypatch.setenv("NBSR_DATA", str(data))
    assert by_topic(home)["data"].state == "warn"
    assert "is not a folder" in by_topic(home)["data"].says
    (data / "medical").mkdir(parents=True)
    (data / "medical" / "Training.csv").write_text("a,b\n")
    (data / "medical" / "Testing.csv").touch()  # empty: cut off while it was copied
    (data / "cifar10").mkdir()
    (data / "mnist").mkdir()
    (data / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(b"x")
    found = by_topic(home)
    assert found["data"].state == "ok"
    assert found["data: medical"] == Finding(
        "data: medical", "warn", "medical/Testing.csv not found there", found["data: medical"].advice
    )
    assert "kaushil268" in found["data: medical"].advice
    assert found["data: cifar10"].state == "warn"
    assert found["data: mnist"].state == "ok"


def test_the_store_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    for key in ("a" * 16, "b" * 16, ".half-written"):
        (home.trials / key).mkdir(parents=True)
        (home.trials / key / "result.json").write_text("x" * 1000)
    found = by_topic(home)["store"]
    assert found.state == "ok"
    assert "2 finished trials, 3 kB" in found.says
    monkeypatch.setattr(doctor, "LOW_DISK", 1e30)
    assert by_topic(home)["store"].state == "warn"


def test_a_store_that_cannot_be_written_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        found = by_topic(Home(place))["store"]
        assert found.state == "missing"
        assert str(place) in found.says
        assert "--home" in found.advice


def test_sqlite_stores_are_opened_but_not_made(tmp_path: Path) -> None:
    home, file = Home(tmp_path), tmp_path / "mlflow.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("create table runs (id int)")
        database.execute("insert into runs values (1), (2)")
        database.commit()
    assert by_topic(home)["MLflow"].says.endswith("2 runs")
    file.write_text("no database at all, but long enough to be looked at")
    assert by_topic(home)["MLflow"].state == "missing"
    assert "is no MLflow store" in by_topic(home)["MLflow"].says


@pytest.fixture
def server() -> Iterator[str]:
    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Healthy) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def test_servers_and_databases_are_asked(tmp_path: Path, server: str) -> None:
    home = Home(tmp_path)
    assert by_topic(home, server)["MLflow"] == Finding("MLflow", "ok", f"{server} answers")
    database = server.replace("http", "postgresql") + "/mlflow"
    assert by_topic(home, database)["MLflow"].state == "ok"
    assert by_topic(home, f"{server}/elsewhere")["MLflow"].state == "missing"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    for uri in (f"http://127.0.0.1:{nobody}", f"postgresql://me:secret@127.0.0.1:{nobody}/x"):
        found = by_topic(home, uri)["MLflow"]
        assert found.state == "missing"
        assert "does not answer" in found.says
        assert "secret" not in found.says


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns", "http://", "gopher://host"])
def test_what_is_no_tracking_store_is_told_what_would_be(tmp_path: Path, uri: str) -> None:
    found = by_topic(Home(tmp_path), uri)["MLflow"]
    assert found.state == "missing"
    assert "sqlite:///" in found.advice


def test_a_cluster_in_the_environment_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    found = by_topic(Home(tmp_path))["Ray"]
    assert found.state == "warn"
    assert "10.0.0.1:6379" in found.says
    assert "--address" in found.advice


def test_a_token_that_others_can_read_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("secret-token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    token.chmod(0o644)
    (finding,) = doctor._token()
    assert (finding.state, finding.advice) == ("warn", f"chmod 600 {token}")
    assert "secret-token" not in finding.says
    token.chmod(0o600)
    assert list(doctor._token()) == []
    token.unlink()
    assert list(doctor._token()) == []


def test_findings_are_shown_with_their_advice() -> None:
    console = Terminal(file=io.StringIO(), width=100)
    render([Finding("a", "ok", "fine [bold]"), Finding("b", "missing", "gone", "look [here]")], console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "fine [bold]" in text
    assert "→ look [here]" in text
    assert "no study can run without: b" in text
    render([Finding("a", "warn", "so so")], console)
    assert "studies can run here" in console.file.getvalue()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (25_300_000, "25 MB"), (8.2e10, "82 GB"), (3.25e12, "3.2 TB")]
)
def test_sizes_are_words(count: float, text: str) -> None:
    assert size(count) == text
