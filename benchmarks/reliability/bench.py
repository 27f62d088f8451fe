"""What scenarios share: studies that run undisturbed for comparison, studies that are disturbed, and patience."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reliability.cluster import NBSR, ROOT, LocalCluster
from benchmarks.reliability.ledger import (
    BATCHES,
    EPOCHS,
    TEAM,
    TRIALS,
    Ledger,
    Outcome,
    Rows,
    make_study,
    naps,
    read_ledger,
    repeated,
)

# One trial on a team of workers, of more epochs.
TEAM_STUDY: dict[str, Any] = {"trials": 1, "epochs": 30, "resources": {"workers": TEAM}}


@dataclass
class Bench:
    """A folder for everything, and a cluster that is brought up when it is first needed."""

    folder: Path
    cluster: LocalCluster
    preparation: float = 0.0  # seconds spent so far on bringing up the cluster and on undisturbed runs

    def ready(self) -> LocalCluster:
        if not self.cluster.is_up:
            with self._preparing():
                self.cluster.up()
        return self.cluster

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.preparation += time.monotonic() - began

    def study(self, name: str, **more: Any) -> Path:
        """A study that no earlier call has run."""
        unique = f"{name}-{time.time_ns() // 1_000_000:x}"
        return make_study(self.folder / unique, unique, **more)

    def calm(self, **more: Any) -> Rows:
        """What the study gives on this machine when nobody disturbs it; run once a folder."""
        kept = self.folder / f"calm-{more.get('trials', TRIALS)}.json"
        if not kept.exists():
            study = self.study("calm", **more)
            with self._preparing():
                done = run_here(study)
            if done.returncode:
                raise RuntimeError(done.stderr)
            kept.write_text(json.dumps(self.ledger_here(study, more.get("trials", TRIALS)).rows))
        rows = json.loads(kept.read_text())
        return {int(number): (params, values) for number, (params, values) in rows.items()}

    def ledger_here(self, study: Path, trials: int = TRIALS, home: Path | None = None) -> Ledger:
        home = home or study.parent / ".nbsr"
        return read_ledger(study.stem, f"sqlite:///{home}/mlflow.db", home, None, trials)

    def ledger(self, study: Path, trials: int = TRIALS) -> Ledger:
        environment = self.cluster.environment
        os.environ["PGPASSFILE"] = environment["PGPASSFILE"]
        return read_ledger(
            study.stem, environment["NBSR_TRACKING"], self.cluster.home, environment["NBSR_STORAGE"], trials
        )

    def disturbed(self, did: str, name: str, disturb: Callable[[Path], object], **more: Any) -> Outcome:
        """Submit a study, disturb it when a third of it is done, submit it again if it failed, and count."""
        expected, cluster = self.calm(**more), self.ready()
        study = self.study(name, **more)
        trials, epochs = more.get("trials", TRIALS), more.get("epochs", EPOCHS)
        workers = more.get("resources", {}).get("workers", 1)
        job = cluster.submit(study, "--wait")
        wait_for(lambda: len(naps(study)) > trials * epochs * BATCHES * workers // 3, 900, job)
        disturb(study)
        output, submissions = job.communicate(timeout=900)[0], 1
        while job.returncode and submissions < 3:
            job, submissions = cluster.submit(study, "--wait"), submissions + 1
            output += job.communicate(timeout=900)[0]
        ledger = self.ledger(study, trials)
        notes = [*ledger.notes, *([f"submitted {submissions} times"] if submissions > 1 else [])]
        if job.returncode or "Traceback" in output:
            (study.parent / "output.txt").write_text(output)
            notes.append(f"ended with code {job.returncode}: {output[-300:]}")
        return Outcome(
            did,
            trials,
            ledger.lost,
            ledger.doubled,
            repeated(study, trials, epochs, workers),
            ledger.rows == expected,
            notes=notes,
        )


def run_here(study: Path, *options: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """`nbsr run` on this machine alone, to its end."""
    return subprocess.run(
        [*NBSR, "run", study.name, *options],
        cwd=study.parent,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment_here(),
    )


def start_here(study: Path, *options: str) -> subprocess.Popen[str]:
    """`nbsr run` on this machine alone, under way, as leader of a process group of its own."""
    return subprocess.Popen(
        [*NBSR, "run", study.name, *options],
        cwd=study.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment_here(),
    )


def environment_here() -> dict[str, str]:
    """Ours without what belongs to a cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NBSR_", "RAY_"))}
    patient = {"RAY_raylet_start_wait_time_s": "300"}  # this machine may be busy with other things
    return {**kept, **patient, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")])}


def wait_for(
    condition: Callable[[], Any], seconds: float, process: subprocess.Popen[str] | None = None, pause: float = 0.1
) -> None:
    """Until the condition holds; raises where it never does, or the process that should bring it about ends."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"it ended early: {process.communicate()[0]}")
        if time.monotonic() > deadline:
            if process is not None:
                process.kill()
            raise TimeoutError(f"waited {seconds:.0f} s in vain")
        time.sleep(pause)
