"""The commands for people with a cluster: submit, jobs, status, logs, stop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nbsr_platform.cli_parts import FAILED, INTERRUPTED, AsJson, Overrides, StudyFile, clear_errors
from nbsr_platform.study import load
from nbsr_platform.terminal import Terminal

if TYPE_CHECKING:
    from nbsr_platform.jobs import Job
    from nbsr_platform.packing import Selection

app = typer.Typer()

ClusterUrl = Annotated[
    str, typer.Option("--cluster", envvar="NBSR_CLUSTER", metavar="URL", help="Address of the cluster's dashboard.")
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job, or a study: then its newest job.", show_default=False)]
WIDEST_ID = 120  # a study's name has 100 characters at most
DEFAULT_CLUSTER = "http://127.0.0.1:8265"


@app.command()
def submit(
    study: StudyFile,
    cluster: ClusterUrl = DEFAULT_CLUSTER,
    overrides: Overrides = [],  # noqa: B006 (typer makes a new list)
    tracking: Annotated[
        str | None, typer.Option(help="MLflow as the cluster sees it; NBSR_TRACKING of its head unless told.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Database for searches; NBSR_STORAGE of the head unless told.")
    ] = None,
    project: Annotated[
        Path | None, typer.Option(help="Folder to send from; the project of the file by default.")
    ] = None,
    exclude: Annotated[list[str], typer.Option(metavar="PATTERN", help="Paths of it that stay at home.")] = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be sent; contact nobody.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end, and end as it does.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Even if it is done: what is in the store is reused.")] = False,
) -> None:
    """Run a study on a cluster. One that is there already is not started twice; one that failed goes on."""
    with clear_errors():
        what = load(study, overrides)
        from nbsr_platform.jobs import Cluster, refuse_passwords
        from nbsr_platform.packing import select

        console = Terminal()
        refuse_passwords(tracking, storage)
        selection = select(what, project=project, exclude=exclude)  # refuses before anybody is contacted
        if dry_run:
            _list(selection, console)
            return
        place = Cluster(cluster)
        submission = place.submit(
            what, overrides, tracking_uri=tracking, storage=storage, selection=selection, again=again
        )
        job = submission.job
        if submission.fresh:
            console.say(f"submitted  {job.id}")
            console.say(f"sent       {selection.describe()}")
            _tell(selection.notes, console)
        elif job.under_way:
            console.say(f"is under way already  {job.id}")
        else:
            console.say(f"is done already  {job.id}  (--again runs it once more; what is in the store is reused)")
        console.say(f"watch      {place.url}/#/jobs/{job.id}")
        console.say(f"           nbsr logs {job.id} --follow --cluster {place.url}")
        if wait:
            _follow(place.url, job.id)


@app.command()
def jobs(cluster: ClusterUrl = DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """List the studies that the cluster has, oldest first."""
    with clear_errors():
        from nbsr_platform.jobs import Cluster

        found = Cluster(cluster).jobs()
        if as_json:
            print(json.dumps([asdict(job) for job in found]))
            return
        table = Table(box=None)
        for name in ("id", "study", "state", "started", "took"):
            table.add_column(name, overflow="fold", no_wrap=name == "id")
        for job in found:
            table.add_row(job.id, job.study, job.state, _clock(job), f"{job.seconds:.0f} s")
        console = Terminal()
        console.print(table if found else f"no jobs of ours on {cluster}", width=max(console.width, WIDEST_ID + 60))


@app.command()
def status(name: JobId, cluster: ClusterUrl = DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """Say how far a job is. Exit code 1 where it failed or was stopped."""
    with clear_errors():
        from nbsr_platform.jobs import Cluster

        place = Cluster(cluster)
        job = place.job(name)
        progress = place.progress(job.id)
        if as_json:
            print(json.dumps({**asdict(job), "progress": progress}))
        else:
            console = Terminal()
            console.say(f"{job.id}  {job.state}, started {_clock(job)}, {job.seconds:.0f} s")
            for text in filter(None, (progress, "" if job.state in ("RUNNING", "SUCCEEDED") else job.message)):
                console.say(text.strip())
        _end_as(job)


@app.command()
def logs(
    name: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, and end as it does.")
    ] = False,
    cluster: ClusterUrl = DEFAULT_CLUSTER,
) -> None:
    """Print what a job says."""
    with clear_errors():
        from nbsr_platform.jobs import Cluster

        if follow:
            _follow(cluster, name)
        else:
            Terminal().pass_on(Cluster(cluster).logs(name))


@app.command()
def stop(name: JobId, cluster: ClusterUrl = DEFAULT_CLUSTER) -> None:
    """End a job. What is done is kept: submitted again, the study goes on from there."""
    with clear_errors():
        from nbsr_platform.jobs import Cluster

        job = Cluster(cluster).stop(name)
        Terminal().say(f"{job.id}  {job.state}")


def _follow(cluster: str, name: str) -> None:
    """To the job's end; Ctrl-C ends the watching, not the job."""
    from nbsr_platform.jobs import Cluster

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


def _list(selection: Selection, console: Terminal) -> None:
    """What would be sent, file by file, but for our own code."""
    for line in selection.listing():
        console.say(line)
    console.say(f"would send {selection.describe()}")
    _tell(selection.notes, console)


def _tell(notes: Sequence[str], console: Terminal) -> None:
    for note in notes:
        console.say(f"      {note}", head="note", style="yellow")


def _clock(job: Job) -> str:
    if job.started is None:
        return "not yet"
    return datetime.fromtimestamp(job.started).astimezone().isoformat(sep=" ", timespec="seconds")
