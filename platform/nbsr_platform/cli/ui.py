"""`nbsr ui`: open MLflow's pages."""

from __future__ import annotations

from typing import Annotated

import typer

from nbsr_platform.cli.options import HomeFolder, Tracking
from nbsr_platform.cli.shared import clear_errors
from nbsr_platform.trials.home import Home


def ui(
    home: HomeFolder = None,
    tracking: Tracking = None,
    port: Annotated[int | None, typer.Option(help="Port; a free one by default.")] = None,
    domain: Annotated[str | None, typer.Option(help="Open on this domain's experiment.")] = None,
) -> None:
    """Open MLflow's pages on the store."""
    with clear_errors():
        from nbsr_platform.tracking.ui import serve

        raise typer.Exit(serve(Home.of(home), tracking, port=port, open_on=domain))
