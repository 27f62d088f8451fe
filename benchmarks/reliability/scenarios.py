"""The scenarios, each a small function that does one thing to a study and counts what is left of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nbsr_platform.checkpoints import CHECKPOINT

from benchmarks.reliability.bench import TEAM_STUDY, Bench, run_here, start_here, wait_for
from benchmarks.reliability.ledger import BATCHES, EPOCHS, TEAM, TRIALS, Outcome, Rows, naps, repeated
from benchmarks.reliability.writers import write_metrics

Scenario = Callable[[Bench], Outcome]


def node(bench: Bench) -> Outcome:
    """A node is killed with everything on it."""
    cluster = bench.ready()
    outcome = bench.disturbed("one of two nodes killed (-9), not replaced", "node", lambda _: cluster("kill", "worker"))
    cluster("start", "worker")
    return outcome


def head(bench: Bench) -> Outcome:
    """The head dies, and the job with it; the cluster is brought up again and the study submitted again."""
    cluster = bench.ready()

    def lose_the_head(_: Path) -> None:
        cluster("kill", "head")
        cluster("kill", "worker")
        cluster("start", "head")
        cluster("start", "worker")

    return bench.disturbed("head and all other Ray processes killed (-9), started again", "head", lose_the_head)


def driver(bench: Bench) -> Outcome:
    """The driver of the job is killed; the study is submitted again."""
    return bench.disturbed("the job's driver killed (-9)", "driver", lambda study: kill_driver(bench, study))


def worker(bench: Bench) -> Outcome:
    """A process in which trials run is killed."""

    def kill_one(_: Path) -> None:
        kill(random.Random(1).choice(bench.cluster.processes("ray::", "Trainable")))

    return bench.disturbed("a worker process killed (-9)", "worker", kill_one)


def mlflow(bench: Bench) -> Outcome:
    """The MLflow server is killed and comes back after 20 s."""
    return server_away(bench, "mlflow", "the MLflow server", 20)


def postgres(bench: Bench) -> Outcome:
    """Postgres, under both MLflow and Optuna, is killed and started again."""
    return server_away(bench, "postgres", "Postgres", 5)


def server_away(bench: Bench, part: str, called: str, seconds: float) -> Outcome:
    cluster = bench.ready()

    def away(_: Path) -> None:
        cluster("kill", part)
        time.sleep(seconds)
        cluster("start", part)

    return bench.disturbed(f"{called} killed (-9), back after {seconds:g} s", part, away)


def train_worker(bench: Bench) -> Outcome:
    """One of two workers that train a model together is killed."""

    def kill_one(study: Path) -> None:
        kill(int(naps(study)[-1]))

    return bench.disturbed("one of a team of two Train workers killed (-9)", "team", kill_one, **TEAM_STUDY)


def train_driver(bench: Bench) -> Outcome:
    """The driver is killed while two workers train a model together."""
    return bench.disturbed(
        "the driver killed (-9) while a team of two trains",
        "lead",
        lambda study: kill_driver(bench, study),
        **TEAM_STUDY,
    )


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


def truncated_checkpoint(bench: Bench) -> Outcome:
    """The newest checkpoint loses its second half, and then a worker is killed."""
    bench.ready()

    def cut(study: Path) -> None:
        team = {int(pid) for pid in naps(study)[-2 * TEAM :]}
        for pid in team:
            os.kill(pid, signal.SIGSTOP)
        files = sorted(bench.cluster.home.glob(f"checkpoints/*/*/checkpoint_*/{CHECKPOINT}"))
        newest = max(files, key=lambda file: file.stat().st_mtime_ns)
        os.truncate(newest, newest.stat().st_size // 2)
        kill(min(team))
        for pid in team - {min(team)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    outcome = bench.disturbed("newest checkpoint cut in half, one of the team killed (-9)", "cut", cut, **TEAM_STUDY)
    outcome.notes.append("the checkpoint before it was used")
    return outcome


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


def submissions(bench: Bench) -> Outcome:
    """Eight people submit eight studies at once, and then eight people the same one."""
    cluster = bench.ready()
    studies = [bench.study(f"many{number}", trials=3) for number in range(8)]
    before = len(cluster.jobs())
    jobs = [cluster.submit(study, "--wait") for study in studies]
    said = [job.communicate(timeout=900)[0] for job in jobs]
    ledgers = [bench.ledger(study, 3) for study in studies]
    one = bench.study("one", trials=3)
    rivals = [cluster.submit(one, "--wait") for _ in range(8)]
    said += [job.communicate(timeout=600)[0] for job in rivals]
    ledgers.append(bench.ledger(one, 3))
    made = len(cluster.jobs()) - before
    bad = [text[-300:] for job, text in zip(jobs + rivals, said, strict=True) if job.returncode or "Traceback" in text]
    return Outcome(
        "8 studies submitted at once, then 1 study submitted 8 times at once",
        sum(len(ledger.rows) for ledger in ledgers),
        sum(ledger.lost for ledger in ledgers),
        sum(ledger.doubled for ledger in ledgers) + made - 9,
        sum(repeated(study, 3) for study in [*studies, one]),
        notes=[f"16 submissions made {made} jobs", *bad],
    )


def metric_writers(bench: Bench) -> Outcome:
    """200 writers log metrics to the MLflow server on Postgres at once."""
    cluster = bench.ready()
    writers, calls, figures = 200, 10, 10
    found, seconds = write_metrics(cluster.environment["NBSR_TRACKING"], writers, calls, figures)
    asked = writers * calls * figures
    return Outcome(
        "200 threads in 8 processes log 10 batches of 10 metrics each to the MLflow server",
        writers,
        asked - found,
        max(0, found - asked),
        notes=[f"{found} of {asked} metrics found, {asked / seconds:.0f} a second"],
    )


def no_token(bench: Bench) -> Outcome:
    """A submission without the cluster's token."""
    cluster = bench.ready()
    before = len(cluster.jobs())
    attempt = cluster.submit(bench.study("thief", trials=1), token=False)
    output = attempt.communicate(timeout=120)[0]
    made = len(cluster.jobs()) - before
    return Outcome("submitted without the token", 0, 0, made, notes=refused(attempt.returncode, output, "token"))


SCENARIOS: dict[str, Scenario] = {
    "node": node,
    "head": head,
    "driver": driver,
    "worker": worker,
    "train-worker": train_worker,
    "train-driver": train_driver,
    "long-trial": long_trial,
    "mlflow": mlflow,
    "postgres": postgres,
    "disk-full": disk_full,
    "read-only": read_only,
    "truncated-checkpoint": truncated_checkpoint,
    "truncated-journal": truncated_journal,
    "submissions": submissions,
    "metric-writers": metric_writers,
    "no-token": no_token,
}


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_driver(bench: Bench, study: Path) -> None:
    for pid in bench.cluster.processes("nbsr_platform.cli", " run ", study.name):
        kill(pid)


def finished_here(
    bench: Bench, study: Path, did: str, expected: Rows | None = None, trials: int = TRIALS, epochs: int = EPOCHS
) -> Outcome:
    """Run the same command again, undisturbed, and count."""
    done = run_here(study)
    ledger = bench.ledger_here(study, trials)
    notes = [*ledger.notes, *([] if done.returncode == 0 else [f"code {done.returncode}: {done.stderr[-300:]}"])]
    same = ledger.rows == (bench.calm() if expected is None else expected)
    return Outcome(did, trials, ledger.lost, ledger.doubled, repeated(study, trials, epochs), same, notes=notes)


def refused(code: int, output: str, says: str) -> list[str]:
    """What somebody was told, where that is one clear message with exit code 2; raises where it is not."""
    import re

    line = next((line.strip() for line in output.splitlines() if re.search(says, line)), None)
    if code != 2 or line is None or "Traceback" in output:
        raise RuntimeError(f"code {code}: {output[-2000:]}")
    return [f"exit code 2: {line[:200]}"]


@contextmanager
def small_disk(place: Path, megabytes: int = 40) -> Iterator[Path]:
    """A disk of its own for a folder: tmpfs, which only root may mount."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # we ourselves have read the databases on it
