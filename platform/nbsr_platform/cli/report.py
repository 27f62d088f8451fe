"""`nbsr report`: make the page of what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    out: ReportFile = None,
    code: CodeFolder = None,
    home: HomeFolder = None,
    tracking: Tracking = None,
    storage: Storage = None,
) -> None:
    """Make the report of what is stored: one HTML file that needs nothing else."""
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
        Terminal().say(f"report  {write_report(out or default_place(store, title), found, title)}")


def default_place(home: Home, title: str) -> Path:
    """Where a report of this title goes unless `--out` says otherwise."""
    return home.report(title.replace(" ", "-")[:LONGEST_NAME])
