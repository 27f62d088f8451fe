"""`nbsr run`: run a study or a collection, and say what came of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nbsr_core.errors import InputError, NbsrError
from nbsr_platform.base.starting import end_with, words
from nbsr_platform.base.streams import outliving_their_readers
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import WHICH_STUDY, AsJson, CodeFolder, HomeFolder, Overrides, Storage, Tracking
from nbsr_platform.cli.shared import FAILED, INTERRUPTED, PLAIN_WIDTH, clear_errors, load
from nbsr_platform.trials.home import Home

if TYPE_CHECKING:
    from nbsr_platform.execution.run_result import RunResult
    from nbsr_platform.trials.results import TrialResult
    from nbsr_platform.trials.trial import Trial

MOST_NAMED = 3  # of the trials that failed of one reason


def run(
    study: Annotated[Path | None, typer.Argument(help=WHICH_STUDY, show_default=False)] = None,
    from_trial: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Instead of a file: an MLflow run of a trial, or its key; writes its study."),
    ] = None,
    code: CodeFolder = None,
    overrides: Overrides = [],  # noqa: B006 (typer makes a new list)
    home: HomeFolder = None,
    tracking: Tracking = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster; one of our own here by default.")] = None,
    local: Annotated[
        bool, typer.Option("--local", help="One trial after another in this process, without Ray: for debugging.")
    ] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Run a study, or go on with it: finished trials are reused, only missing ones run."""
    document = sys.stdout
    with outliving_their_readers(), clear_errors(is_slow_to_begin=True):
        stream = sys.stderr if as_json else sys.stdout
        console = Terminal(stream, width=None if stream.isatty() else PLAIN_WIDTH)
        if (study is None) == (from_trial is None):
            raise InputError("give either a study file or --from-trial RUN")
        if study is not None:
            console.say(f"study   {study}")
        if from_trial is not None:
            from nbsr_platform.tracking.rerun import write_study

            study = write_study(Home.of(home), from_trial, tracking, code)
            console.say(f"study   {study}")
        assert study is not None
        what = load(study, overrides, with_modules=from_trial is None or code is not None)
        from nbsr_platform.execution.on_ray.watch import RayLostError, leave
        from nbsr_platform.execution.run_result import dump
        from nbsr_platform.execution.runner import run as run_study
        from nbsr_platform.report import pareto
        from nbsr_platform.tracking.store import TrackingError

        try:
            with redirect_stdout(stream):  # Ray speaks up there too
                result = run_study(
                    what,
                    home=home,
                    tracking_uri=tracking,
                    search_storage=storage,
                    address=address,
                    local=local,
                    console=console,
                )
        except TrackingError as error:
            raise NbsrError(
                f"{error}\nWhat is done is kept; the same command records it when the store is back."
            ) from None
        except RayLostError as error:
            leave(error)
        except KeyboardInterrupt as interruption:
            console.say(f"\n{words()}")
            end_with(getattr(interruption, "exit_code", INTERRUPTED))
        if as_json:
            print(dump(result), file=document, flush=True)
        else:
            console.print(comparison(result))
            for line in (line for part in result.parts for line in pareto.lines(part.study_results)):
                console.say(line)
            for note in result.notes:
                console.say(note, head="note", style="yellow")
            console.say(f"report  {result.report}")
            console.say(f"MLflow  {result.tracking_uri}  (nbsr ui opens it)")
        for failure in failures(result.failed, Home.of(home)):
            console.say(failure, head="failed", style="red")
        for complaint in (c for part in result.parts for c in part.complaints):
            console.say(complaint, head="not recorded in MLflow", style="yellow")
        if result.failed or any(part.complaints for part in result.parts):
            raise typer.Exit(FAILED)


def failures(failed: Sequence[tuple[Trial, TrialResult]], home: Home) -> list[str]:
    """One text for each reason: some of those that failed of it, why, and where more can be read."""
    reasons: dict[str, list[Trial]] = {}
    for trial, result in failed:
        reasons.setdefault(result.last_words, []).append(trial)
    texts = []
    for reason, trials in reasons.items():
        names = ", ".join(trial.name for trial in trials[:MOST_NAMED])
        more = f" and {len(trials) - MOST_NAMED} more" if len(trials) > MOST_NAMED else ""
        logs = [home.log(trial.study, trial.key) for trial in trials[:MOST_NAMED]]
        texts.append("\n  ".join([f"{names}{more}: {reason}", *(str(log) for log in logs if log.exists())]))
    return texts


def comparison(result: RunResult) -> Group:
    """What a run ends with: for each study its question, the answer, and a table of what its domain is judged by."""
    from nbsr_platform.report.differences import in_words
    from nbsr_platform.report.summary import marked, shown_figures, without_interval
    from nbsr_platform.report.verdicts import answer

    parts: list[RenderableType] = [Text(result.question)] if result.question else []
    parts.append(f"{result.name}: means over seeds, with 95% intervals")
    for part in result.parts:
        rows = [row for row in result.rows if row.study == part.study.name]
        synthetic = " (synthetic)" if any(row.synthetic for row in rows) else ""
        # Without padding, lines alone part the columns: those of every shipped study fit into 120.
        table = Table(title=part.study.name + synthetic, title_justify="left", padding=0)
        shown = shown_figures(part.study.domain_object.shown, rows)
        for name in ("model", "", "n"):
            table.add_column(name)
        for name in shown:
            table.add_column(in_words(name).replace(", ", "\n"), justify="right")
        for row in rows:
            model = marked(row.model, row.why_unusable)
            table.add_row(model, row.config, str(row.n), *(row.cell(name) for name in shown))
        said = [part.study.question or "", *(f"- {line}" for line in answer(part.study_results)[1:])] if rows else []
        parts += [*map(Text, ["", *said]), table, *filter(None, [without_interval(rows)])]
    return Group(*parts, *result.legend)
