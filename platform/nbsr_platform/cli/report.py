"""`nbsr report`: make the page of what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nbsr_platform.base.credentials import command_line
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import CodeFolder, HomeFolder, Overrides, ReportFile, Storage, Tracking
from nbsr_platform.cli.shared import clear_errors
from nbsr_platform.trials.home import Home

LONGEST_NAME = 100  # of a report's folder


def report(
    studies: Annotated[
        list[str],
        typer.Argument(help="Study files, MLflow runs, or trial keys.", metavar="STUDY...", show_default=False),
    ],
    overrides: Overrides = [],  # noqa: B006
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Write a page of Markdown, below what stands in _intro/ beside it.")
    ] = False,
    out: ReportFile = None,
    code: CodeFolder = None,
    home: HomeFolder = None,
    tracking: Tracking = None,
    storage: Storage = None,
) -> None:
    """Make the report of what is stored: one HTML file that needs nothing else, or a page of Markdown."""
    with clear_errors():
        from nbsr_platform.report import write_report
        from nbsr_platform.report.find import find

        store = Home.of(home)
        found = [
            study_results
            for what in studies
            for study_results in find(
                store, what, overrides=overrides, tracking_uri=tracking, search_storage=storage, code=code
            )
        ]
        title = " and ".join(study_results.study.name for study_results in found)
        place = out or default_place(store, title)
        if as_markdown:
            from nbsr_platform.report.markdown_page import write_markdown

            settings = [word for text in overrides for word in ("--set", text)]
            made_by = command_line(["nbsr", "report", *studies, *settings, "--markdown"])
            place = write_markdown(place if out else place.with_suffix(".md"), found, title, made_by=made_by)
        else:
            write_report(place, found, title)
        Terminal().say(f"report  {place}")


def default_place(home: Home, title: str) -> Path:
    """Where a report of this title goes unless `--out` says otherwise."""
    return home.report(title.replace(" ", "-")[:LONGEST_NAME])
