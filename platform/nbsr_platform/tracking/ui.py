"""MLflow's own pages on a store, in a process of ours that ends when we do."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import IO

from nbsr_core.errors import InputError, NbsrError
from nbsr_platform.base.credentials import masked, scrubbed
from nbsr_platform.base.endings import interruptible
from nbsr_platform.base.sqlite_address import sqlite_file
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.tracking.names import experiment_name
from nbsr_platform.tracking.store import TrackingStore
from nbsr_platform.trials.home import Home

# Nobody but us asks this server: one worker, no background jobs, no usage reports.
SETTINGS = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
READY_SECONDS, ENDING_SECONDS, PAUSE = 120.0, 10.0, 0.2
LAST_WORDS = 1500
# Without its parameter, MLflow opens on its pages for language models.
PAGE = "#/experiments/{}/runs?workflowType=machine_learning"
EMPTY = "holds no runs yet; `nbsr run studies/quickstart.yaml` makes some"


class ServerError(NbsrError, RuntimeError):
    """MLflow's server did not come up; the message has its last words."""


def serve(
    home: Home,
    tracking_uri: str | None = None,
    port: int | None = None,
    host: str = "127.0.0.1",
    open_on: str | None = None,
    console: Terminal | None = None,
) -> int:
    """Serve MLflow's pages until Ctrl-C; returns the server's exit code, 0 where we ended it.

    Args:
        home: whose store to show.
        tracking_uri: another store; of a server that runs already only the address is printed.
        port: a free one by default.
        host: where to listen; this machine only by default.
        open_on: domain, or name of the experiment, whose page to name; that of the last run by default.
        console: where to print.
    """
    console = console or Terminal()
    uri = tracking_uri or home.tracking_uri
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise InputError(f"{masked(uri)} {EMPTY}")
    store = TrackingStore(uri)
    page = PAGE.format(find_experiment(store, open_on))
    if not store.is_database:
        console.say(f"{store.public_uri.rstrip('/')}/{page}")
        return 0
    port = free_port(host) if port is None else checked_port(host, port)
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://{f'[{reached}]' if ':' in reached else reached}:{port}"
    try:
        with tempfile.TemporaryFile() as log, _server(home, store.uri, host, port, log) as server:
            _wait_until_ready(server, f"{address}/health")
            if server.poll() is None:
                console.say(f"MLflow on {store.public_uri}; Ctrl-C ends it")
                console.say(f"  {address}/{page}")
            code = server.wait()
            if code:
                raise ServerError(f"MLflow's server ended with code {code}:\n{_last_words(log, store)}")
            return code
    except KeyboardInterrupt:
        return 0


def find_experiment(store: TrackingStore, open_on: str | None) -> str:
    """The id of a domain's experiment, or of the one with the latest run."""
    if open_on is not None:
        for name in (experiment_name(open_on), open_on):
            found = store.call("get_experiment_by_name", name)
            if found is not None:
                return str(found.experiment_id)
    known = {experiment.experiment_id: experiment.name for experiment in store.call("search_experiments")}
    latest = store.call("search_runs", list(known), order_by=["attributes.start_time DESC"], max_results=1)
    if not latest:
        raise InputError(f"{store.public_uri} {EMPTY}")
    if open_on is not None:
        names = ", ".join(sorted(name.removeprefix("nbsr-") for name in known.values() if name != "Default"))
        raise InputError(f"no runs of {open_on!r} in {store.public_uri}; there are: {names}")
    return str(latest[0].info.experiment_id)


def free_port(host: str) -> int:
    """A port that nobody listens on; whoever is quicker than us may still take it."""
    with _socket(host, 0) as found:
        port: int = found.getsockname()[1]
        return port


def checked_port(host: str, port: int) -> int:
    """The port, if it can be listened on."""
    if isinstance(port, bool) or not 0 < port < 65536:
        raise InputError(f"port must be from 1 to 65535, got {port!r}")
    _socket(host, port).close()
    return port


def _socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    # As servers do: a port whose last connections are only just closed is free.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        if isinstance(error, socket.gaierror):
            raise InputError(f"host {host!r}: {error.strerror}") from None
        raise InputError(
            f"cannot listen on port {port} of {host}: {error.strerror}; choose another port, or none for a free one"
        ) from None
    return found


@contextlib.contextmanager
def _server(home: Home, uri: str, host: str, port: int, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The server as a child with a process group of its own, which is ended whatever happens to us short of kill -9.

    The address of the store may hold a password: it goes through the environment, which others cannot read. It works in
    an empty folder of its own: Python and its web server import what stands in the current one before all else.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    command += ["--default-artifact-root", home.artifacts.as_uri(), "--artifacts-destination", home.artifacts.as_uri()]
    environment = {**os.environ, **SETTINGS, "MLFLOW_BACKEND_STORE_URI": uri}
    home.artifacts.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nbsr-") as empty:
        server = subprocess.Popen(
            command, env=environment, cwd=empty, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            with interruptible():
                yield server
        finally:
            _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ask the process group that we started to end; insist after a while, or at the next Ctrl-C."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(KeyboardInterrupt):
            deadline = time.monotonic() + ENDING_SECONDS
            _signal(server, sign)
            while time.monotonic() < deadline:
                server.poll()
                if not _signal(server, 0):
                    return
                time.sleep(PAUSE)


def _signal(server: subprocess.Popen[bytes], sign: int) -> bool:
    """Whether there was anybody left to receive it."""
    try:
        os.killpg(server.pid, sign)
    except ProcessLookupError:
        return False
    return True


def _wait_until_ready(server: subprocess.Popen[bytes], health: str) -> None:
    """Return when the server answers, or has ended."""
    deadline = time.monotonic() + READY_SECONDS
    while server.poll() is None:
        with contextlib.suppress(OSError):  # refused, reset, timed out
            urllib.request.urlopen(health, timeout=5).close()
            return
        if time.monotonic() > deadline:
            raise ServerError(f"MLflow's server does not answer at {health} after {READY_SECONDS:.0f} s")
        time.sleep(PAUSE)


def _last_words(log: IO[bytes], store: TrackingStore) -> str:
    """The end of what the server wrote, without passwords. Its place in the file is shared with us, so no seeking."""
    end = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), LAST_WORDS, max(0, end - LAST_WORDS)).decode(errors="replace")
    return scrubbed(text, store.secrets).strip() or "it said nothing"
