"""`nbsr jobs`, `status`, `logs` and `stop`: what a cluster has of ours."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import DEFAULT_CLUSTER, AsJson, ClusterUrl, JobId
from nbsr_platform.cli.shared import FAILED, INTERRUPTED, clear_errors, print_json

if TYPE_CHECKING:
    from nbsr_platform.cluster.jobs import Job

WIDEST_ID = 120  # a study's name has 100 characters at most


def jobs(cluster: ClusterUrl = DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """List the studies that the cluster has, oldest first."""
    with clear_errors():
        from nbsr_platform.cluster.jobs import Cluster

        found = Cluster(cluster).jobs()
        if as_json:
            print_json([asdict(job) for job in found])
            return
        table = Table(box=None)
        for name in ("id", "study", "state", "started", "took"):
            table.add_column(name, overflow="fold", no_wrap=name == "id")
        for job in found:
            table.add_row(job.id, job.study, job.state, _clock(job), f"{job.seconds:.0f} s")
        console = Terminal()
        console.print(table if found else f"no jobs of ours on {cluster}", width=max(console.width, WIDEST_ID + 60))


def status(name: JobId, cluster: ClusterUrl = DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """Say how far a job is. Exit code 1 where it failed or was stopped."""
    with clear_errors():
        from nbsr_platform.cluster.jobs import Cluster

        place = Cluster(cluster)
        job = place.job(name)
        progress = place.progress(job.id)
        if as_json:
            print_json({**asdict(job), "progress": progress})
        else:
            console = Terminal()
            console.say(f"{job.id}  {job.state}, started {_clock(job)}, {job.seconds:.0f} s")
            for text in filter(None, (progress, "" if job.state in ("RUNNING", "SUCCEEDED") else job.message)):
                console.say(text.strip())
        _end_as(job)


def logs(
    name: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, and end as it does.")
    ] = False,
    cluster: ClusterUrl = DEFAULT_CLUSTER,
) -> None:
    """Print what a job says."""
    with clear_errors():
        from nbsr_platform.cluster.jobs import Cluster

        if follow:
            follow_to_end(cluster, name)
        else:
            Terminal().pass_on(Cluster(cluster).logs(name))


def stop(name: JobId, cluster: ClusterUrl = DEFAULT_CLUSTER) -> None:
    """End a job. What is done is kept: submitted again, the study goes on from there."""
    with clear_errors():
        from nbsr_platform.cluster.jobs import Cluster

        job = Cluster(cluster).stop(name)
        Terminal().say(f"{job.id}  {job.state}")


def follow_to_end(cluster: str, name: str) -> None:
    """Print what a job says until it ends, and end as it does. Ctrl-C ends the watching, not the job."""
    from nbsr_platform.cluster.jobs import Cluster

    place = Cluster(cluster)
    job, console = place.job(name), Terminal()
    try:
        for text in place.follow(job.id):
            console.pass_on(text)
        _end_as(place.wait(job.id))
    except KeyboardInterrupt:
        Terminal(stderr=True).say(f"\n{job.id} goes on; nbsr stop {job.id} would end it")
        raise typer.Exit(INTERRUPTED) from None


def _end_as(job: Job) -> None:
    if job.state in ("FAILED", "STOPPED"):
        raise typer.Exit(FAILED)


def _clock(job: Job) -> str:
    if job.started is None:
        return "not yet"
    return datetime.fromtimestamp(job.started).astimezone().isoformat(sep=" ", timespec="seconds")
