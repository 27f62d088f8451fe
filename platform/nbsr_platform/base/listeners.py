"""Which of our kind of servers on this machine can be reached from others: read from /proc, nothing is asked of them.

A dashboard, Ray's Jobs, Ray Client or an MLflow server hand the machine to whoever reaches them: they should listen on
loopback, or be guarded. Only processes that we may look into are seen: our own, or all of them as root.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"
# What a process is, by words that stand together in its command line or, for Ray's workers, in its title.
SERVICES = {
    ("dashboard/dashboard.py",): "Ray's dashboard and Jobs",
    ("ray.util.client.server",): "Ray Client",
    ("mlflow", "server"): "an MLflow server",
    ("gcs_server",): "Ray's own parts",
    ("raylet",): "Ray's own parts",
    ("ray::",): "Ray's own parts",
    ("ray/_private",): "Ray's own parts",
}


@dataclass(frozen=True)
class Listener:
    """A server and the address that it listens on."""

    service: str
    pid: int
    address: str
    port: int

    @property
    def reachable(self) -> bool:
        """Whether others than this machine may knock."""
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return not (mapped or address).is_loopback


def listeners() -> list[Listener]:
    """All that can be seen; none where there is no /proc."""
    sockets = {inode: place for name in ("tcp", "tcp6") for inode, place in _listening(PROC / "net" / name)}
    found = []
    for folder in PROC.glob("[0-9]*"):
        service = _service(folder)
        if service is None:
            continue
        for inode in _sockets_of(folder):
            if inode in sockets:
                found.append(Listener(service, int(folder.name), *sockets[inode]))
    return sorted(set(found), key=lambda one: (one.service, one.pid, one.port))


def _listening(table: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    """Inode and place of each listening socket of one of the kernel's tables."""
    with suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                address, _, port = fields[1].partition(":")
                yield fields[9], (_spelt(address), int(port, 16))


def _spelt(address: str) -> str:
    """The kernel writes addresses in words of four bytes, each with its bytes in the machine's order."""
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def _service(folder: Path) -> str | None:
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    return next((name for words, name in SERVICES.items() if all(word in command for word in words)), None)


def _sockets_of(folder: Path) -> Iterator[str]:
    with suppress(OSError):
        for link in (folder / "fd").iterdir():
            with suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]
