"""`cluster/local.sh` from Python: two Ray nodes, an MLflow server and Postgres, all of which can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "cluster" / "local.sh"
# As `nbsr` itself: it looks for no modules where it is started.
NBSR = [sys.executable, "-P", "-m", "nbsr_platform.cli"]


def working_folder(given: Path | None) -> Path:
    """The given folder, or a temporary one that Postgres, which runs as a user of its own under root, can reach."""
    if given is None:
        given = Path(tempfile.mkdtemp(prefix="nbsr-"))
        given.chmod(0o755)
    given.mkdir(parents=True, exist_ok=True)
    return given.resolve()


class LocalCluster:
    """A cluster in a folder of its own.

    Args:
        folder: where its stores and logs go; what is in it stays after `down`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = os.pathsep.join([str(ROOT), str(ROOT / "platform"), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.settings = {
            **os.environ,
            "PYTHONPATH": paths,
            "NBSR_PYTHON": sys.executable,
            "NBSR_CLUSTER_FOLDER": str(folder),
        }
        self.is_up = False

    def up(self) -> None:
        if ": down" in self("status"):
            self("down")
            self("up")
        self.is_up = True

    def down(self) -> None:
        if self.is_up:
            self("down")
        self.is_up = False

    def __call__(self, *command: str) -> str:
        """One command of the script; raises where it fails."""
        done = subprocess.run([str(SCRIPT), *command], env=self.settings, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise RuntimeError(f"local.sh {' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def environment(self) -> dict[str, str]:
        """What a client of the cluster exports."""
        told = subprocess.run(
            ["bash", "-c", f'eval "$({SCRIPT} env)"; env -0'], env=self.settings, capture_output=True, text=True
        )
        return dict(line.partition("=")[::2] for line in told.stdout.split("\0") if line)

    def submit(self, study: Path, *options: str, token: bool = True) -> subprocess.Popen[str]:
        """`nbsr submit`, under way."""
        environment = self.environment
        if not token:
            environment.pop("RAY_AUTH_TOKEN_PATH")
        return subprocess.Popen(
            [*NBSR, "submit", study.name, "--project", ".", *options],
            cwd=study.parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def jobs(self) -> list[dict[str, Any]]:
        """What `nbsr jobs --json` says."""
        done = subprocess.run([*NBSR, "jobs", "--json"], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return list(json.loads(done.stdout))

    def processes(self, *words: str) -> list[int]:
        """Processes of the two nodes whose command line has all these words (Ray titles workers by what they run)."""
        sessions = []
        for part in ("head", "worker"):
            with suppress(OSError):
                sessions.append((self.folder / "pids" / part).read_text().split()[0])
        listing = subprocess.run(["ps", "-eo", "pid=,sess=,args="], capture_output=True, text=True).stdout
        rows = [line.split(None, 2) for line in listing.splitlines()]
        ours = {int(pid) for pid, session, _ in rows if session in sessions} | self._marked()
        return [int(pid) for pid, _, text in rows if int(pid) in ours and all(word in text for word in words)]

    def _marked(self) -> set[int]:
        """Drivers of jobs have sessions of their own, but the environment of the head."""
        mark, found = f"NBSR_CLUSTER_PART={self.folder}:head".encode(), set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.add(int(path.parent.name))
        return found
