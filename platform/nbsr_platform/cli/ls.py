"""`nbsr ls`: list what was run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import AsJson, HomeFolder
from nbsr_platform.cli.shared import PLAIN_WIDTH, clear_errors, print_json
from nbsr_platform.trials.home import Home


def ls(
    study: Annotated[str | None, typer.Argument(help="Name of one study; all by default.", show_default=False)] = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """List what was run: studies, and their trials with key, state and figures."""
    with clear_errors():
        from nbsr_platform.inspect import listing

        found = listing.listing(Home.of(home), study)
        if as_json:
            print_json(listing.to_json(found))
        else:
            listing.render(found, Terminal(width=None if sys.stdout.isatty() else PLAIN_WIDTH))
