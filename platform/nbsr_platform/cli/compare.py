"""`nbsr compare`: two studies or trials against each other, in the terminal or as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import AsJson, CodeFolder, HomeFolder, Overrides, ReportFile, Storage, Tracking
from nbsr_platform.cli.report import default_place
from nbsr_platform.cli.shared import clear_errors, print_json
from nbsr_platform.trials.home import Home

if TYPE_CHECKING:
    from nbsr_platform.report.comparing import Pair


def compare(
    first: Annotated[str, typer.Argument(help="A study file, an MLflow run or a trial key.", show_default=False)],
    second: Annotated[str, typer.Argument(help="What to set against it.", show_default=False)],
    overrides: Overrides = [],  # noqa: B006
    out: ReportFile = None,
    code: CodeFolder = None,
    home: HomeFolder = None,
    tracking: Tracking = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Set two studies or trials on the same data against each other, here and in a report with all frontiers."""
    with clear_errors():
        from nbsr_platform.report import comparing, write_report
        from nbsr_platform.report.find import find

        store = Home.of(home)
        one, other = (
            find(store, what, overrides=overrides, tracking_uri=tracking, search_storage=storage, code=code)
            for what in (first, second)
        )
        pairs = comparing.compare(one, other)  # refuses, before anything is written, what cannot be compared
        title = " against ".join(comparing.describe(study_results) for study_results in (*other, *one))
        names = "-against-".join(study_results.study.name for study_results in (*other, *one))
        page = write_report(out or default_place(store, names), [*one, *other], title, compared=pairs)
        if as_json:
            print_json({"comparisons": [pair.to_json() for pair in pairs], "report": str(page)})
        else:
            console = Terminal()
            show(pairs, console)
            console.say(f"report  {page}")


def show(pairs: Sequence[Pair], console: Terminal) -> None:
    """A table for each pair, as wide as a terminal has room for, and how its figures were compared."""
    names, figures = ("model", "against", "figure"), ("value", "other", "difference", "p", "rests on")
    for pair in pairs:
        table = Table(title=pair.title, title_justify="left")
        for name in (*names, *figures, "verdict"):
            table.add_column(name, justify="right" if name in figures else "left")
        for line in pair.beside:
            *first, difference, _, p, rests_on, verdict = line.cells()
            table.add_row(*first, difference.replace(" (95%", "\n(95%"), p, rests_on.replace(", ", "\n"), verdict)
        console.print(table)
        for words in pair.how:
            console.say(words)
