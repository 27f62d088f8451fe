"""`nbsr new`: a first study for a file, a folder of pictures or a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import Encoding, Separator, separator_named
from nbsr_platform.cli.shared import clear_errors


def new(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A CSV or Parquet file, a folder or zip of pictures, or a text.", show_default=False
        ),
    ],
    target: Annotated[str | None, typer.Option(help="Of a table, the column to predict.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Study file to write; by default, called like FILE, in this folder.")
    ] = None,
    separator: Separator = None,
    encoding: Encoding = None,
) -> None:
    """Look at somebody's data, say what is in it, and write a study with comments that runs as it is."""
    with clear_errors():
        from rich.table import Table

        from nbsr_core.errors import InputError
        from nbsr_platform.study.first_study import first_study

        file = out or Path(f"{source.resolve().stem}.yaml")
        if file.exists():
            raise InputError(f"{file} is there already and is left as it is; name another file with --out")
        found = first_study(source, target, file, separator_named(separator), encoding)
        console = Terminal()
        console.say(found.about, head="data")
        if found.columns:
            table = Table("column", "read as", "what is in it")
            for name, kind, words in found.columns[:MOST_SHOWN]:
                left_out = kind in LEFT_OUT
                table.add_row(name, f"{kind}, left out" if left_out else kind, words, style="dim" if left_out else None)
            console.print(table)
            if len(found.columns) > MOST_SHOWN:
                console.say(f"and {len(found.columns) - MOST_SHOWN:,} more columns")
        for note in found.notes:
            console.say(note, head="warning", style="yellow")
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(found.text)
        console.say(f"{file}; `nbsr run {file}` runs it", head="study")


MOST_SHOWN = 60
LEFT_OUT = ("constant", "identifier", "empty", "ignore")
