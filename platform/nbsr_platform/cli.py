"""The `nbsr` command. Bad input: one clear message on standard error and exit code 2; failed trials: exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from nbsr_core.errors import InputError, NbsrError
from nbsr_platform.advice import warnings
from nbsr_platform.cli_parts import (
    FAILED,
    INTERRUPTED,
    CodeFolder,
    HomeFolder,
    Overrides,
    Storage,
    StudyFile,
    Tracking,
    clear_errors,
    members,
)
from nbsr_platform.credentials import command_line, tell_unexpected
from nbsr_platform.jobs_cli import app as jobs_app
from nbsr_platform.paths import Home
from nbsr_platform.streams import outliving_their_readers
from nbsr_platform.study import load
from nbsr_platform.terminal import Terminal

if TYPE_CHECKING:
    from nbsr_platform.results import TrialResult
    from nbsr_platform.trial import Trial

app = typer.Typer(
    help="Train, search, compare and explain Neural Bayesian Sequential Routing models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(jobs_app)
LONGEST_NAME = 100  # of a report's folder
MOST_NAMED = 3  # of the trials that failed of one reason
PLAIN_WIDTH = 120  # of lines in files and pipes, which have none of their own

ReportFile = Annotated[Path | None, typer.Option("--out", help="File to write; in the home unless told.")]


@app.command()
def run(
    study: Annotated[
        Path | None, typer.Argument(help="A study file, or a collection of them.", show_default=False)
    ] = None,
    from_trial: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Instead of a file: an MLflow run of a trial, or its key; writes its study."),
    ] = None,
    code: CodeFolder = None,
    overrides: Overrides = [],  # noqa: B006 (typer makes a new list)
    home: HomeFolder = None,
    tracking: Tracking = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster; one of our own here unless told.")] = None,
    storage: Storage = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Run a study, or go on with it: finished trials are reused, only missing ones run."""
    document = sys.stdout
    with outliving_their_readers(), clear_errors():
        stream = sys.stderr if as_json else sys.stdout
        console = Terminal(stream, width=None if stream.isatty() else PLAIN_WIDTH)
        if (study is None) == (from_trial is None):
            raise InputError("give either a study file or --from-trial RUN")
        if from_trial is not None:
            from nbsr_platform.from_trial import write_study

            study = write_study(Home.of(home), from_trial, tracking, code)
            console.say(f"study   {study}")
        assert study is not None
        what = load(study, overrides, with_modules=from_trial is None or code is not None)
        for member in members(what):
            for warning in warnings(member):
                console.say(f"{member.name}: {warning}", head="warning", style="yellow")
        from nbsr_platform.ray_watch import RayLostError, leave
        from nbsr_platform.running import dump
        from nbsr_platform.running import run as run_study
        from nbsr_platform.tracking_store import TrackingError

        try:
            with redirect_stdout(stream):  # Ray speaks up there too
                result = run_study(
                    what,
                    home=home,
                    tracking_uri=tracking,
                    search_storage=storage,
                    address=address,
                    console=console,
                )
        except TrackingError as error:
            raise NbsrError(
                f"{error}\nWhat is done is kept; the same command records it when the store is back."
            ) from None
        except RayLostError as error:
            leave(error)
        except KeyboardInterrupt as interruption:
            console.say("\nstopped. What is done is kept; the same command goes on from here:")
            console.say(f"  {command_line(['nbsr', *sys.argv[1:]])}")
            raise typer.Exit(getattr(interruption, "exit_code", INTERRUPTED)) from None
        if as_json:
            print(dump(result), file=document, flush=True)
        else:
            console.print(comparison(result))
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


def comparison(result: object) -> Group:
    """What a run ends with: a table a study, each with the figures that its domain is judged by."""
    from nbsr_platform.running import RunResult

    assert isinstance(result, RunResult)
    parts: list[RenderableType] = [f"{result.name}: mean ± half of the 95% interval over seeds"]
    for part in result.parts:
        rows = [row for row in result.rows if row.study == part.study.name]
        synthetic = " (synthetic)" if any(row.synthetic for row in rows) else ""
        table = Table(title=part.study.name + synthetic, title_justify="left")
        shown = part.study.domain_object.shown
        for name in ("model", "", "n"):
            table.add_column(name)
        for name in shown:
            table.add_column(name.replace("_", " ").replace("/", "\n"), justify="right")
        for row in rows:
            table.add_row(row.model, row.config, str(row.n), *(row.cell(name) for name in shown))
        parts.append(table)
    return Group(*parts, *result.legend)


@app.command()
def validate(study: StudyFile, overrides: Overrides = []) -> None:  # noqa: B006
    """Check a study file: all its errors at once, each with file, key and what would be right."""
    with clear_errors():
        what = load(study, overrides)
        console = Terminal()
        for member in members(what):
            for warning in warnings(member):
                console.say(f"{member.name}: {warning}", head="warning", style="yellow")
        console.say(f"{study}: fine ({len(members(what))} {'study' if len(members(what)) == 1 else 'studies'})")


@app.command()
def plan(study: StudyFile, overrides: Overrides = [], home: HomeFolder = None) -> None:  # noqa: B006
    """Say what a run would do: how many trials, on what, for how long. Runs nothing but a short probe."""
    with clear_errors():
        from nbsr_platform import plan as planning

        planning.render(planning.plan(load(study, overrides), Home.of(home)), Terminal())


@app.command()
def studies(folder: Annotated[Path, typer.Argument(help="Folder to look in.")] = Path("studies")) -> None:
    """List the study files of a folder, with the question each one asks."""
    with clear_errors():
        # What is hidden is a store: files that nobody wrote for others to run.
        found = [path for path in sorted(folder.rglob("*.yaml")) if not _is_hidden(path.relative_to(folder))]
        console = Terminal()
        for path in found:
            what = load(path)
            domains = ", ".join(dict.fromkeys(member.domain for member in members(what)))
            sizes = " + ".join(f"{len(member.models)} x {len(member.seeds)}" for member in members(what))
            console.say(f" {domains}, models x seeds: {sizes}", head=str(path), style="bold")
            console.print(Padding(what.question or "", (0, 0, 1, 4)))
        if not found:
            console.say(f"no study files in {folder}")


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


@app.command()
def explain(
    run: Annotated[str, typer.Argument(help="An MLflow run id, or a trial key.", show_default=False)],
    sample: Annotated[int | None, typer.Option(help="Which sample of the test split; 0 unless told.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Words to go on from (language).")] = None,
    episode: Annotated[int | None, typer.Option(help="Which held-out episode (navigation).")] = None,
    svg: Annotated[Path | None, typer.Option(help="Also draw it into this file.")] = None,
    gif: Annotated[Path | None, typer.Option(help="Also animate it into this file (navigation).")] = None,
    code: CodeFolder = None,
    home: HomeFolder = None,
    tracking: Tracking = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Why did the model do that? One sample's walk: nodes, routes, evidence, belief shift, and the features behind."""
    with clear_errors():
        import json

        from nbsr_core.domains.domain import Answer, Question
        from nbsr_platform.explain import explain as explain_sample
        from nbsr_platform.explain import picture

        explained = explain_sample(Home.of(home), run, Question(sample, prompt, episode), tracking, code)
        for kind, file in {"svg": svg, "gif": gif}.items():
            if file is not None:
                drawn = picture(explained, kind)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(drawn)
        if as_json:
            print(json.dumps(explained.data if isinstance(explained, Answer) else explained.to_json(), allow_nan=False))
        else:
            Terminal().say(explained.text if isinstance(explained, Answer) else explained.text())


@app.command()
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
    _report(studies, overrides, out, home, tracking, storage, code)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="A study file, an MLflow run or a trial key.", show_default=False)],
    second: Annotated[str, typer.Argument(help="What to set against it.", show_default=False)],
    overrides: Overrides = [],  # noqa: B006
    out: ReportFile = None,
    code: CodeFolder = None,
    home: HomeFolder = None,
    tracking: Tracking = None,
    storage: Storage = None,
) -> None:
    """Set two studies or runs against each other: paired differences, all frontiers in one plot, both reports."""
    _report([first, second], overrides, out, home, tracking, storage, code, compare=True)


def _report(
    named: list[str],
    overrides: list[str],
    out: Path | None,
    home: Path | None,
    tracking: str | None,
    search_storage: str | None,
    code: Path | None,
    *,
    compare: bool = False,
) -> None:
    with clear_errors():
        from nbsr_platform.report import write_report
        from nbsr_platform.report.find import find

        place = Home.of(home)
        found = [
            material
            for what in named
            for material in find(
                place, what, overrides=overrides, tracking_uri=tracking, search_storage=search_storage, code=code
            )
        ]
        title = (" against " if compare else " and ").join(material.study.name for material in found)
        target = out or place.report(title.replace(" ", "-")[:LONGEST_NAME])
        path = write_report(target, found, title, compare=compare)
        Terminal().say(f"report  {path}")


@app.command()
def ui(
    home: HomeFolder = None,
    tracking: Tracking = None,
    port: Annotated[int | None, typer.Option(help="Port; a free one unless told.")] = None,
    domain: Annotated[str | None, typer.Option(help="Open on this domain's experiment.")] = None,
) -> None:
    """Open MLflow's pages on the store."""
    with clear_errors():
        from nbsr_platform.ui import serve

        raise typer.Exit(serve(Home.of(home), tracking, port=port, open_on=domain))


@app.command()
def doctor(home: HomeFolder = None, tracking: Tracking = None) -> None:
    """Say what is there (Ray, GPUs, data, store) and what to do about what is not."""
    with clear_errors():
        from nbsr_platform import doctor as examination

        findings = examination.examine(Home.of(home), tracking)
        examination.render(findings, Terminal())
        if any(finding.state == "missing" for finding in findings):
            raise typer.Exit(FAILED)


def main() -> None:
    """Entry point."""
    try:
        app()
    except Exception as error:
        tell_unexpected(error)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
