"""Arguments and options that several verbs take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nbsr_core.errors import InputError

WHICH_STUDY = "A study file, a collection of them, or the name of a shipped study."
StudyFile = Annotated[Path, typer.Argument(help=WHICH_STUDY, show_default=False)]
Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the file.")]
HomeFolder = Annotated[Path | None, typer.Option("--home", help="Folder for results; $NBSR_HOME or .nbsr by default")]
Tracking = Annotated[
    str | None,
    typer.Option("--tracking", envvar="NBSR_TRACKING", help="MLflow tracking URI; sqlite in the home by default."),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage", envvar="NBSR_STORAGE", help="Database URL for searches; a journal file in the home by default."
    ),
]
CodeFolder = Annotated[
    Path | None,
    typer.Option(
        "--code",
        envvar="NBSR_CODE",
        metavar="FOLDER",
        exists=True,
        file_okay=False,
        help="Folder with the module of a stored trial's own domain, if you trust what is there.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Separator = Annotated[
    str | None,
    typer.Option(
        "--separator", metavar="CHARACTER", help="Of a CSV file: a character, or `tab`; found out by default."
    ),
]
Encoding = Annotated[
    str | None, typer.Option("--encoding", metavar="NAME", help="Of a CSV file, cp1252 say; found out by default.")
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", help="Of a model that buys, what a case may cost; its largest budget by default."),
]
ReportFile = Annotated[Path | None, typer.Option("--out", help="File to write; in the home by default.")]
DEFAULT_CLUSTER = "http://127.0.0.1:8265"
ClusterUrl = Annotated[
    str, typer.Option("--cluster", envvar="NBSR_CLUSTER", metavar="URL", help="Address of the cluster's dashboard.")
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job, or a study: then its newest job.", show_default=False)]


def separator_named(word: str | None) -> str | None:
    """The character that is meant; a tab is hard to write in a shell."""
    if word in ("tab", r"\t"):
        return "\t"
    if word is not None and len(word) != 1:
        raise InputError(f"--separator must be one character, or `tab`, got {word!r}")
    return word
