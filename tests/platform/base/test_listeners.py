"""Who can be reached from elsewhere: asked of the kernel, with real sockets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from nbsr_platform.base.listeners import Listener, listeners
from nbsr_platform.inspect import doctor

SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(address: str, *title: str) -> Iterator[tuple[int, int]]:
    """A process that listens and does nothing else; its id and port. The title stands in its command line."""
    command = [sys.executable, "-c", SERVER, address, *title]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()


def of(pid: int) -> list[Listener]:
    return [one for one in listeners() if one.pid == pid]


@pytest.mark.parametrize(
    ("address", "title", "service", "reachable"),
    [
        ("0.0.0.0", ("mlflow", "server"), "an MLflow server", True),
        ("127.0.0.1", ("mlflow", "server"), "an MLflow server", False),
        ("::1", ("ray/dashboard/dashboard.py",), "Ray's dashboard and Jobs", False),
        ("::", ("ray.util.client.server",), "Ray Client", True),
        ("127.0.0.3", ("gcs_server",), "Ray's own parts", False),
    ],
)
def test_servers_are_known_by_what_they_run_and_where_they_listen(
    address: str, title: tuple[str, ...], service: str, reachable: bool
) -> None:
    with listening(address, *title) as (pid, port):
        (found,) = of(pid)
    assert found == Listener(service, pid, address, port)
    assert found.reachable is reachable


def test_other_peoples_servers_are_not_our_business() -> None:
    with listening("127.0.0.1", "a web shop") as (pid, _):
        assert of(pid) == []


def test_the_doctor_warns_of_what_is_open_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening("0.0.0.0", "mlflow", "server") as (pid, port):
        warned = [finding for finding in doctor._reachable() if f"0.0.0.0:{port} (process {pid})" in finding.says]
    assert [finding.state for finding in warned] == ["warn"]
    assert "127.0.0.1" in warned[0].advice
    monkeypatch.setattr(doctor, "listeners", lambda: [Listener("Ray Client", 1, "127.0.0.1", 10001)])
    assert [finding.state for finding in doctor._reachable()] == ["ok"]


def test_addresses_inside_addresses_are_seen_through() -> None:
    assert not Listener("Ray's own parts", 1, "::ffff:127.0.0.1", 1).reachable
    assert Listener("Ray's own parts", 1, "::ffff:10.0.0.1", 1).reachable
