"""`cluster/local.sh` believes in a server only if it is its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "cluster" / "local.sh"
PORTS = ("postgres_port", "mlflow_port", "gcs_port", "dashboard_port", "client_port")


@pytest.fixture
def squatter() -> Iterator[socket.socket]:
    """Somebody who listens on a port that is ours."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def local(folder: Path, *command: str, python: str = "/bin/false", **more: str) -> subprocess.Popen[str]:
    given = {**os.environ, "NBSR_CLUSTER_FOLDER": str(folder), "NBSR_PYTHON": python, **more}
    return subprocess.Popen(
        [str(SCRIPT), *command], env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def settle(folder: Path, **ports: int) -> None:
    """The settings of a cluster that was up before."""
    folder.mkdir()
    text = " ".join(f"{name}={ports.get(name, 9)}" for name in PORTS)
    (folder / "settings.sh").write_text(f"{text} head_agent_port=9 worker_agent_port=9 ray_temp={folder}/ray\n")


@pytest.mark.parametrize(
    ("part", "port", "called"),
    [
        ("mlflow", "mlflow_port", "MLflow"),
        ("head", "gcs_port", "the head"),
        ("head", "dashboard_port", "the head's dashboard"),
    ],
)
def test_a_port_that_is_taken_is_said_at_once(
    tmp_path: Path, squatter: socket.socket, part: str, port: str, called: str
) -> None:
    folder, taken = tmp_path / "cluster", squatter.getsockname()[1]
    settle(folder, **{port: taken})
    process = local(folder, "start", part)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"port {taken} of {called} is taken by another process" in said
    assert not list(folder.glob("pids/*")), "nothing was started"


def test_somebody_elses_server_is_not_taken_for_ours(tmp_path: Path) -> None:
    """One that comes between the look at the port and the start of our own."""
    folder, sleeper = tmp_path / "cluster", tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 100\n")
    sleeper.chmod(0o755)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        settle(folder, mlflow_port=server.getsockname()[1])
        process = local(folder, "start", "mlflow", python=str(sleeper), NBSR_PATIENCE="4")
        while not (folder / "pids" / "mlflow").exists() and process.poll() is None:
            time.sleep(0.02)
        server.listen()
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 2, said
    assert "the MLflow server does not answer after 4 s" in said
    assert not list(folder.glob("pids/*")), "what was started is ended"


def test_a_part_that_ends_at_once_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        settle(folder, mlflow_port=probe.getsockname()[1])
    process = local(folder, "start", "mlflow", NBSR_PATIENCE="300")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"the MLflow server has ended; see {folder}/logs/mlflow.log" in said
