"""`nbsr submit`: run a study on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.jobs import follow_to_end
from nbsr_platform.cli.options import DEFAULT_CLUSTER, ClusterUrl, Overrides, StudyFile
from nbsr_platform.cli.shared import clear_errors, load

if TYPE_CHECKING:
    from nbsr_platform.cluster.packing import Selection


def submit(
    study: StudyFile,
    cluster: ClusterUrl = DEFAULT_CLUSTER,
    overrides: Overrides = [],  # noqa: B006 (typer makes a new list)
    tracking: Annotated[
        str | None, typer.Option(help="MLflow as the cluster sees it; NBSR_TRACKING of its head by default.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Database for searches; NBSR_STORAGE of the head by default.")
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
        from nbsr_platform.cluster.jobs import Cluster, refuse_passwords
        from nbsr_platform.cluster.packing import select

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
            _say_notes(selection.notes, console)
        elif job.under_way:
            console.say(f"is under way already  {job.id}")
        else:
            console.say(f"is done already  {job.id}  (--again runs it once more; what is in the store is reused)")
        console.say(f"watch      {place.url}/#/jobs/{job.id}")
        console.say(f"           nbsr logs {job.id} --follow --cluster {place.url}")
        if wait:
            follow_to_end(place.url, job.id)


def _list(selection: Selection, console: Terminal) -> None:
    """Say what would be sent, file by file; our own code is left out."""
    for line in selection.listing():
        console.say(line)
    console.say(f"would send {selection.describe()}")
    _say_notes(selection.notes, console)


def _say_notes(notes: Sequence[str], console: Terminal) -> None:
    for note in notes:
        console.say(f"      {note}", head="note", style="yellow")
