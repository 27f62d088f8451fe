"""Runs that end before they are done: by a signal, by the loss of Ray, without a reader. The same command goes on."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import COMMAND, NAPS, closed_port, descendants, document, kill, place, recorded, wait_for

SHORT = NAPS.replace("epochs: 20", "epochs: 8")
GOES_ON = "What is done is kept; the same command goes on from here"
# Words of Ray's: none of them is ours to pass on.
OF_RAY = ("Traceback", "***", "(raylet)", "task_manager", "core_worker", "gcs_client")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the study gives when nobody disturbs it."""
    return document(place(tmp_path_factory.mktemp("calm") / "naps", SHORT), "naps.yaml")


@contextmanager
def under_way(folder: Path, *more: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`nbsr run` with a trial done and more to do; whatever is left of it at the end is killed.

    Under nohup a closed terminal is ignored by all that is started; here it is not, however the tests are run.
    """
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **heard, **options}
    command = [*COMMAND, "run", "naps.yaml", *more]
    with subprocess.Popen(command, cwd=folder, text=True, start_new_session=True, **options) as driver:
        try:
            wait_for(lambda: kept(folder) or driver.poll() is not None)
            assert driver.poll() is None
            yield driver
        finally:
            if driver.poll() is None:
                for pid in [driver.pid, *descendants(driver.pid)]:
                    kill(pid)


def kept(folder: Path) -> int:
    return len(list((folder / ".nbsr" / "trials").glob("[!.]*")))


def goes_on(folder: Path, calm: dict[str, Any]) -> None:
    """The same command does the rest, and all is as if nothing had happened."""
    done = kept(folder)
    result = document(folder, "naps.yaml")
    assert result["trials"]["reused"] >= done >= 1
    assert result["table"] == calm["table"]
    assert recorded(result) == recorded(calm)
    left = [path for path in (folder / ".nbsr").rglob("*") if path.name.startswith(".tmp-")]
    assert left == []


def part_of_ray(driver: int, called: str) -> int:
    """By the program that it runs, or its title."""
    (pid,) = [pid for pid in descendants(driver) if called in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]]
    return pid


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("called", "says"),
    [
        ("raylet/raylet", "its node (raylet, process"),
        ("gcs/gcs_server", "its control store (gcs_server, process"),
        ("ray::DashboardAgent", "its node (raylet, process"),
    ],
    ids=["node", "control store", "agent"],
)
def test_a_lost_ray_ends_the_run_with_our_words(tmp_path: Path, calm: dict[str, Any], called: str, says: str) -> None:
    folder = place(tmp_path / "wild", SHORT)
    with under_way(folder) as driver:
        kill(part_of_ray(driver.pid, called))
        output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 2, output + errors
    assert f"Ray was lost: {says}" in errors
    assert GOES_ON in errors
    assert not any(words in output + errors for words in OF_RAY), output + errors
    assert "failed" not in output, "no trial is to blame"
    goes_on(folder, calm)


# As in cluster/local.sh: a head that listens on loopback only.
START = """
import sys
from ray._private import ray_constants
from ray.scripts.scripts import main
ray_constants.ENABLE_RAY_CLUSTER = True
sys.argv[0] = "ray"
main()
"""


@contextmanager
def cluster(folder: Path, port: int) -> Iterator[dict[str, str]]:
    """A head of a cluster of its own, and the environment of those who may use it; it is killed at the end."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    theirs = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    environment = {**os.environ, **theirs}
    options = ["--head", "--block", "--disable-usage-stats", "--include-dashboard=false", "--num-cpus=2"]
    with tempfile.TemporaryDirectory(prefix="nbsr-", dir="/tmp", ignore_cleanup_errors=True) as short:
        place = ["--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={short}"]
        command = [sys.executable, "-c", START, "start", *options, *place]
        log = folder / "head.log"
        with log.open("w") as file:
            head = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        try:
            wait_for(lambda: "--block" in log.read_text())
            yield {**environment, "HEAD": str(head.pid)}
        finally:
            for pid in [*descendants(head.pid), head.pid]:
                kill(pid)
            head.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_lost_cluster_ends_the_run_with_our_words(tmp_path: Path, calm: dict[str, Any]) -> None:
    folder, port = place(tmp_path / "wild", SHORT), closed_port()
    with (
        cluster(tmp_path, port) as environment,
        under_way(folder, "--address", f"127.0.0.1:{port}", env=environment) as driver,
    ):
        kill(part_of_ray(int(environment["HEAD"]), "gcs/gcs_server"))
        output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 2, output + errors
    assert "Ray was lost: the cluster's head has not answered for " in errors
    assert GOES_ON in errors
    assert not any(words in output + errors for words in OF_RAY), output + errors
    goes_on(folder, calm)


def only(driver: subprocess.Popen[str], number: int) -> None:
    driver.send_signal(number)


def everybody(driver: subprocess.Popen[str], number: int) -> None:
    os.killpg(driver.pid, number)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGTERM, only), (signal.SIGTERM, everybody), (signal.SIGHUP, everybody)],
    ids=["asked to end", "all asked to end", "closed terminal"],
)
def test_a_signal_ends_the_run_like_ctrl_c(
    tmp_path: Path, calm: dict[str, Any], number: int, send: Callable[[subprocess.Popen[str], int], None]
) -> None:
    folder = place(tmp_path / "wild", SHORT)
    with under_way(folder) as driver:
        send(driver, number)
        output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 128 + number, output + errors
    assert GOES_ON in output
    assert "nbsr run naps.yaml" in output
    assert errors == ""
    assert not any(words in output for words in OF_RAY), output
    goes_on(folder, calm)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_nobody_reads_goes_on_to_its_end(tmp_path: Path, calm: dict[str, Any]) -> None:
    folder = place(tmp_path / "wild", SHORT)
    ours, theirs = os.pipe()
    with under_way(folder, stdout=theirs, stderr=theirs) as driver:
        os.close(theirs)
        os.close(ours)
        assert driver.wait(300) == 0
    assert kept(folder) == calm["trials"]["total"]
    goes_on(folder, calm)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path, calm: dict[str, Any]) -> None:
    folder = place(tmp_path / "wild", SHORT)
    with under_way(folder) as driver:
        agents = [part_of_ray(driver.pid, title) for title in ("ray::DashboardAgent", "ray::RuntimeEnvAgent")]
        driver.kill()
    assert all(Path(f"/proc/{agent}").exists() for agent in agents)
    assert list((folder / ".nbsr" / "scratch").iterdir())
    goes_on(folder, calm)
    assert not any(Path(f"/proc/{agent}").exists() for agent in agents)
