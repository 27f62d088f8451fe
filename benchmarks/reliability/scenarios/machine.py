"""What a run on one machine may meet: kills, and disks that are full or read-only."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nbsr_platform.trials.checkpoints import CHECKPOINT

from benchmarks.reliability.bench import Bench, run_here, start_here, wait_for
from benchmarks.reliability.ledger import BATCHES, EPOCHS, TRIALS, Outcome, naps
from benchmarks.reliability.scenarios.common import Scenario, finished_here, kill, refused


def long_trial(bench: Bench) -> Outcome:
    """The driver is killed in the middle of a long trial on one worker, after its first checkpoint."""
    size = {"trials": 1, "epochs": 30}
    brief, study = (
        bench.study("brief", **size, data={"seconds": 0.0}),
        bench.study("long", **size, data={"seconds": 0.8}),
    )
    run_here(brief)
    run = start_here(study)
    wait_for(lambda: list((study.parent / ".nbsr" / "checkpoints").glob(f"*/*/*/{CHECKPOINT}")), 900, run)
    kill(run.pid)
    run.communicate()
    did = "driver killed (-9) in the middle of a long trial on one worker"
    return finished_here(bench, study, did, bench.ledger_here(brief, 1).rows, **size)


def truncated_journal(bench: Bench) -> Outcome:
    """The driver is killed and the search's journal loses the end of its last line."""
    study = bench.study("journal")
    run = start_here(study)
    wait_for(lambda: len(naps(study)) > TRIALS * EPOCHS * BATCHES // 3, 900, run)
    kill(run.pid)
    run.communicate()
    time.sleep(5)  # its Ray notices that the driver is gone
    (journal,) = (study.parent / ".nbsr" / "searches").glob("*.journal")
    os.truncate(journal, journal.stat().st_size - 20)
    return finished_here(bench, study, "driver killed (-9), the last 20 bytes of the search's journal cut off")


def disk_full(bench: Bench) -> Outcome:
    """The disk with the store fills up; room is made and the same command run again."""
    study = bench.study("full")
    with small_disk(study.parent / ".nbsr") as disk:
        run = start_here(study)
        wait_for(lambda: len(list(disk.glob("trials/[!.]*"))) > TRIALS // 3, 900, run)
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        output = run.communicate(timeout=600)[0]
        kept = len(list(disk.glob("trials/[!.]*/result.json")))
        ballast.unlink()
        outcome = finished_here(bench, study, "the store's disk full (tmpfs), then room made")
        outcome.notes += refused(run.returncode, output, "No space left on device|disk is full")
        outcome.notes.append(f"{kept} finished trials were kept")
        return outcome


def read_only(bench: Bench) -> Outcome:
    """A study is to go on in a store that has become read-only; made writable, the same command finishes it."""
    study = bench.study("fixed")
    with small_disk(study.parent / ".nbsr") as disk:
        run = start_here(study)
        wait_for(lambda: len(list(disk.glob("trials/[!.]*"))) > TRIALS // 3, 900, run)
        kill(run.pid)
        run.communicate()
        wait_for(
            lambda: subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True).returncode == 0, 60
        )
        kept = len(list(disk.glob("trials/[!.]*/result.json")))
        tried = run_here(study)
        after = len(list(disk.glob("trials/[!.]*/result.json")))
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        outcome = finished_here(bench, study, "driver killed (-9), store read-only (tmpfs), then writable again")
        outcome.notes += refused(tried.returncode, tried.stdout + tried.stderr, "[Rr]ead-only")
        outcome.notes.append(f"{after} of {kept} finished trials were kept")
        outcome.lost += kept - after
        return outcome


@contextmanager
def small_disk(place: Path, megabytes: int = 40) -> Iterator[Path]:
    """A disk of its own for a folder: tmpfs, which only root may mount."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # we ourselves have read the databases on it


ON_ONE_MACHINE: dict[str, Scenario] = {
    "long-trial": long_trial,
    "disk-full": disk_full,
    "read-only": read_only,
    "truncated-journal": truncated_journal,
}
