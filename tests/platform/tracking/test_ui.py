"""MLflow's pages: on the right store, the right experiment, a free port, and gone when we are."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.tracking import ui
from nbsr_platform.tracking.store import TrackingStore
from nbsr_platform.tracking.ui import ServerError, checked_port, find_experiment, free_port, serve
from nbsr_platform.trials.home import Home
from toys import store_uri

from nbsr_core.errors import InputError


def filled(folder: Path) -> tuple[Home, dict[str, str]]:
    """A store with a run in each of two experiments, the later one in medical; and the experiments' ids."""
    home = Home(folder)
    store = TrackingStore(store_uri(folder))
    assert store.uri == home.tracking_uri
    ids = {}
    for start, name in enumerate(("nbsr-iris", "nbsr-medical"), start=1):
        ids[name] = store.call("create_experiment", name)
        store.call("create_run", ids[name], start_time=1000 * start)
    return home, ids


def test_an_empty_store_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no runs yet; `nbsr run"):
        serve(Home(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
    store_uri(tmp_path)
    with pytest.raises(InputError, match="holds no runs yet; `nbsr run"):
        serve(Home(tmp_path))


def test_the_experiment_is_found_by_domain_by_name_or_by_the_last_run(tmp_path: Path) -> None:
    home, ids = filled(tmp_path)
    store = TrackingStore(home.tracking_uri)
    assert find_experiment(store, None) == ids["nbsr-medical"]
    assert find_experiment(store, "iris") == ids["nbsr-iris"]
    assert find_experiment(store, "nbsr-iris") == ids["nbsr-iris"]
    with pytest.raises(InputError, match=r"no runs of 'irsi' in .*; there are: iris, medical"):
        find_experiment(store, "irsi")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1: Address already in use"):
            checked_port("127.0.0.1", port)
    assert checked_port("127.0.0.1", port) == port
    assert checked_port("127.0.0.1", free_port("127.0.0.1"))


@pytest.mark.parametrize("port", [0, -1, 65536, True])
def test_a_port_is_a_port(port: Any) -> None:
    with pytest.raises(InputError, match="port must be from 1 to 65535"):
        checked_port("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(InputError, match=r"192\.0\.2\.1"):
        free_port("192.0.2.1")
    with pytest.raises(InputError, match="no-such-host"):
        free_port("no-such-host.invalid")


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run this instead of MLflow's server."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{textwrap.dedent(script)}")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_server_that_dies_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, _ = filled(tmp_path)
    stand_in(tmp_path, monkeypatch, "import sys; print('first'); sys.exit('no such table')")
    with pytest.raises(ServerError, match=r"(?s)ended with code 1:.*no such table"):
        serve(home)


ANSWERS = """
    import http.server, os, signal, subprocess, sys, threading
    {before}
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            {answered}
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_the_page_of_the_experiment_is_printed_and_the_exit_code_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, ids = filled(tmp_path)
    stand_in(tmp_path, monkeypatch, ANSWERS.format(before="", answered="threading.Timer(0.5, os._exit, [0]).start()"))
    console = Terminal(file=io.StringIO(), width=40)
    port = free_port("127.0.0.1")
    assert serve(home, port=port, open_on="iris", console=console) == 0
    assert isinstance(console.file, io.StringIO)
    page = f"http://127.0.0.1:{port}/#/experiments/{ids['nbsr-iris']}/runs"
    assert page in console.file.getvalue()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("sign", "deaf"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)]
)
def test_on_ctrl_c_or_a_closed_terminal_the_server_and_its_children_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: signal.Signals, deaf: bool
) -> None:
    """Also where they do not listen to it; and nobody else is touched."""
    home, _ = filled(tmp_path)
    monkeypatch.setattr(ui, "ENDING_SECONDS", 2.0)
    before = f"""
    if {deaf}:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
    """
    stand_in(tmp_path, monkeypatch, ANSWERS.format(before=before, answered="pass"))
    bystander = subprocess.Popen(["sleep", "600"])

    class Interrupting(io.StringIO):
        """The signal comes at the moment when the address is read."""

        def write(self, text: str) -> int:
            if "http://" in text:
                signal.raise_signal(sign)
            return super().write(text)

    try:
        assert serve(home, console=Terminal(file=Interrupting(), width=200)) == 0
        server, child = map(int, (tmp_path / "pids").read_text().split())
        assert not alive(server)
        assert not alive(child)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_running_server_is_only_pointed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        is_database, public_uri = False, "http://mlflow.example:5000/"

    monkeypatch.setattr(ui, "TrackingStore", lambda uri: Elsewhere())
    monkeypatch.setattr(ui, "find_experiment", lambda store, open_on: "7")
    monkeypatch.setattr(ui, "_server", lambda *args: pytest.fail("started a server"))
    console = Terminal(file=io.StringIO(), width=40)
    assert serve(Home(Path("unused")), "http://mlflow.example:5000/", console=console) == 0
    assert isinstance(console.file, io.StringIO)
    assert "http://mlflow.example:5000/#/experiments/7/runs" in console.file.getvalue()


@pytest.mark.slow
def test_mlflow_itself_serves_the_store_until_we_are_told_to_end(tmp_path: Path) -> None:
    home, ids = filled(tmp_path)
    script = (
        "import sys; from nbsr_platform.trials.home import Home; from nbsr_platform.tracking.ui import serve; "
        "sys.exit(serve(Home.of(sys.argv[1])))"
    )
    ours = subprocess.Popen(
        [sys.executable, "-u", "-c", script, str(home.root)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert ours.stdout is not None
        said = ours.stdout.readline() + ours.stdout.readline()
        address, _, page = said.split()[-1].partition("/#")
        assert page.startswith(f"/experiments/{ids['nbsr-medical']}/runs")
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"MLflow" in answer.read()
        query = f"{address}/ajax-api/2.0/mlflow/experiments/get?experiment_id={ids['nbsr-iris']}"
        with urllib.request.urlopen(query, timeout=30) as answer:
            assert b"nbsr-iris" in answer.read()
        with pytest.raises(InputError, match="Address already in use"):
            serve(home, port=int(address.rpartition(":")[2]))
        ours.send_signal(signal.SIGTERM)
        assert ours.wait(60) == 0
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))):
                    return
        pytest.fail("somebody still listens")
    finally:
        if ours.poll() is None:
            os.killpg(ours.pid, signal.SIGKILL)
            ours.wait()
        assert ours.stdout is not None
        ours.stdout.close()
