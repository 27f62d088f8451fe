"""The `nbsr` command, put together from its verbs.

Bad input: one clear message on standard error and exit code 2; failed trials: exit code 1.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nbsr_platform.base.credentials import tell_unexpected
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.compare import compare
from nbsr_platform.cli.doctor import doctor
from nbsr_platform.cli.explain import explain
from nbsr_platform.cli.jobs import jobs, logs, status, stop
from nbsr_platform.cli.ls import ls
from nbsr_platform.cli.new import new
from nbsr_platform.cli.plan import plan
from nbsr_platform.cli.predict import predict
from nbsr_platform.cli.report import report
from nbsr_platform.cli.run import run
from nbsr_platform.cli.shared import FAILED
from nbsr_platform.cli.studies import studies
from nbsr_platform.cli.submit import submit
from nbsr_platform.cli.ui import ui
from nbsr_platform.cli.validate import validate

# In the order of `nbsr --help`. What a verb needs beyond reading its options it imports when it is called.
VERBS = (
    new,
    run,
    validate,
    plan,
    ls,
    studies,
    explain,
    predict,
    report,
    compare,
    ui,
    doctor,
    submit,
    jobs,
    status,
    logs,
    stop,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _verb in VERBS:
    app.command()(_verb)


def _say_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        Terminal().say(f"nbsr {version('nbsr')}")
        raise typer.Exit


@app.callback()
def nbsr(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Train, search, compare and explain Neural Bayesian Sequential Routing models."""


def main() -> None:
    """Entry point."""
    try:
        app()
    except Exception as error:
        tell_unexpected(error)
        sys.exit(FAILED)
