"""The `nbsr` command. Bad input: one clear message on standard error and exit code 2; failed trials: exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from nbsr_core.errors import NbsrError
from nbsr_platform.paths import Home
from nbsr_platform.study import Collection, Study, load, warnings

app = typer.Typer(
    help="Train, search, compare and explain Neural Bayesian Sequential Routing models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
PLAIN_WIDTH = 120  # of lines in files and pipes, which have none of their own

StudyFile = Annotated[Path, typer.Argument(help="A study file, or a collection of them.", show_default=False)]
Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the file.")]
HomeFolder = Annotated[Path | None, typer.Option("--home", help="Folder for results; $NBSR_HOME or .nbsr unless told")]
Tracking = Annotated[
    str | None, typer.Option("--tracking", help="MLflow tracking URI; sqlite in the home unless told.")
]


@contextmanager
def clear_errors() -> Iterator[None]:
    """What a user can cause is told in one message, without a traceback."""
    try:
        yield
    except NbsrError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(str(error), style="red", markup=False)
        raise typer.Exit(BAD_INPUT) from None
    except BrokenPipeError:
        raise typer.Exit(0) from None


@app.command()
def run(
    study: StudyFile,
    overrides: Overrides = [],  # noqa: B006 (typer makes a new list)
    home: HomeFolder = None,
    tracking: Tracking = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster; one of our own here unless told.")] = None,
    search_storage: Annotated[
        str | None, typer.Option(help="Database URL for searches; a journal file in the home unless told.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Run a study, or go on with it: finished trials are reused, only missing ones run."""
    with clear_errors():
        what = load(study, overrides)
        stream = sys.stderr if as_json else sys.stdout
        console = Console(stderr=as_json, highlight=False, width=None if stream.isatty() else PLAIN_WIDTH)
        for member in members(what):
            for warning in warnings(member):
                console.print(f"[yellow]warning[/yellow] {member.name}: {warning}")
        from nbsr_platform.run import dump
        from nbsr_platform.run import run as run_study

        try:
            result = run_study(
                what,
                home=home,
                tracking_uri=tracking,
                search_storage=search_storage,
                address=address,
                console=console,
            )
        except KeyboardInterrupt:
            console.print("\nstopped. What is done is kept; the same command goes on from here:")
            console.print(f"  {' '.join(['nbsr', *sys.argv[1:]])}", soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from None
        if as_json:
            print(dump(result))
        else:
            console.print(comparison(result))
            for note in result.notes:
                console.print(f"[yellow]note[/yellow] {note}", soft_wrap=True)
            place = Home.of(home)
            for trial, _ in result.failed:
                console.print(f"[red]failed[/red] {trial.name}: {place.log(trial.study, trial.key)}", soft_wrap=True)
            console.print(f"report  {result.report}", soft_wrap=True)
            console.print(f"MLflow  {result.tracking_uri}  (nbsr ui opens it)", soft_wrap=True)
        for complaint in (c for part in result.parts for c in part.complaints):
            console.print(f"[yellow]not recorded in MLflow[/yellow] {complaint}", soft_wrap=True)
        if result.failed or any(part.complaints for part in result.parts):
            raise typer.Exit(FAILED)


def members(what: Study | Collection) -> tuple[Study, ...]:
    return what.studies if isinstance(what, Collection) else (what,)


def comparison(result: object) -> Table:
    """The table that a run ends with."""
    from nbsr_platform.run import RunResult
    from nbsr_platform.summary import SHOWN, short

    assert isinstance(result, RunResult)
    table = Table(title=f"{result.name}: mean ± half of the 95% interval over seeds", title_justify="left")
    for name in ("study", "model", "", "n"):
        table.add_column(name)
    for name in SHOWN:
        table.add_column(name.replace("_", " "), justify="right")
    last = None
    for row in result.rows:
        label = row.study + (" (synthetic)" if row.synthetic else "")
        cells = [short(row.metrics.get(name), name) for name in SHOWN]
        table.add_row("" if label == last else label, row.model, row.config, str(row.n), *cells)
        last = label
    return table


@app.command()
def validate(study: StudyFile, overrides: Overrides = []) -> None:  # noqa: B006
    """Check a study file: all its errors at once, each with file, key and what would be right."""
    with clear_errors():
        what = load(study, overrides)
        console = Console(highlight=False)
        for member in members(what):
            for warning in warnings(member):
                console.print(f"[yellow]warning[/yellow] {member.name}: {warning}", soft_wrap=True)
        console.print(f"{study}: fine ({len(members(what))} {'study' if len(members(what)) == 1 else 'studies'})")


@app.command()
def plan(study: StudyFile, overrides: Overrides = [], home: HomeFolder = None) -> None:  # noqa: B006
    """Say what a run would do: how many trials, on what, for how long. Runs nothing but a short probe."""
    with clear_errors():
        from nbsr_platform import plan as planning

        planning.render(planning.plan(load(study, overrides), Home.of(home)), Console(highlight=False))


@app.command()
def studies(folder: Annotated[Path, typer.Argument(help="Folder to look in.")] = Path("studies")) -> None:
    """List the study files of a folder, with the question each one asks."""
    with clear_errors():
        table = Table("file", "domain", "models x seeds", "question", box=None)
        for path in sorted(folder.rglob("*.yaml")):
            what = load(path)
            domains = ", ".join(dict.fromkeys(member.domain for member in members(what)))
            sizes = " + ".join(f"{len(member.models)} x {len(member.seeds)}" for member in members(what))
            table.add_row(str(path), domains, sizes, what.question or "")
        Console(highlight=False).print(table if table.row_count else f"no study files in {folder}")


@app.command()
def explain(
    run: Annotated[str, typer.Argument(help="An MLflow run id, or a trial key.", show_default=False)],
    sample: Annotated[int, typer.Option(help="Which sample of the test split.")] = 0,
    svg: Annotated[Path | None, typer.Option(help="Also draw the walk into this file.")] = None,
    home: HomeFolder = None,
    tracking: Tracking = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """The walk of one sample: nodes, routes, evidence, belief shift, entropy, and the features behind it."""
    with clear_errors():
        import json

        from nbsr_platform.explain import explain as explain_sample

        explanation = explain_sample(Home.of(home), run, sample, tracking)
        if svg is not None:
            from nbsr_platform.walk_svg import draw_walk

            svg.parent.mkdir(parents=True, exist_ok=True)
            svg.write_text(draw_walk(explanation), encoding="utf-8")
        print(json.dumps(explanation.to_json(), allow_nan=False) if as_json else explanation.text())


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
        examination.render(findings, Console(highlight=False))
        if any(finding.state == "missing" for finding in findings):
            raise typer.Exit(FAILED)


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
