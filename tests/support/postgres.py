"""A Postgres of a test's own, on loopback, where the programs are installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def postgres() -> Iterator[str]:
    """The address of an empty database. It refuses to run as root, so that it then runs as Debian's own user."""
    place = programs()
    if place is None:
        pytest.skip("Postgres is not installed")
    is_root = os.geteuid() == 0
    become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if is_root else []
    folder = Path(tempfile.mkdtemp(prefix="nbsr-postgres-"))
    data = folder / "data"
    try:
        if is_root:
            shutil.chown(folder, "postgres", "postgres")
        initdb = [str(place / "initdb"), f"--pgdata={data}", "--username=nbsr", "--auth=trust", "--no-sync"]
        subprocess.run([*become, *initdb], check=True, capture_output=True, cwd="/", timeout=120)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        server = subprocess.Popen(
            [*become, str(place / "postgres"), "-D", str(data), "-p", str(port), *settings],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            yield f"postgresql+psycopg://nbsr@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="nbsr", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
