"""Parts of a cluster of two nodes are lost, and what belongs to them."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from nbsr_platform.trials.checkpoints import CHECKPOINT

from benchmarks.reliability.bench import TEAM_STUDY, Bench
from benchmarks.reliability.ledger import TEAM, Outcome, naps, repeated
from benchmarks.reliability.scenarios.common import Scenario, kill, refused
from benchmarks.reliability.writers import write_metrics


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


def kill_driver(bench: Bench, study: Path) -> None:
    for pid in bench.cluster.processes("nbsr_platform.cli", " run ", study.name):
        kill(pid)


ON_A_CLUSTER: dict[str, Scenario] = {
    "node": node,
    "head": head,
    "driver": driver,
    "worker": worker,
    "train-worker": train_worker,
    "train-driver": train_driver,
    "mlflow": mlflow,
    "postgres": postgres,
    "truncated-checkpoint": truncated_checkpoint,
    "submissions": submissions,
    "metric-writers": metric_writers,
    "no-token": no_token,
}
