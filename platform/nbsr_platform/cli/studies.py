"""`nbsr studies`: list study files, those of a folder or those that come with nbsr."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.shared import clear_errors, load


def studies(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder to look in; by default `studies` here, else those that come with nbsr.", show_default=False
        ),
    ] = None,
) -> None:
    """List study files, with the question each one asks: those of a folder, or those that come with nbsr, by name."""
    with clear_errors():
        from nbsr_platform.study.shipped import shipped_studies

        here = Path("studies")
        if folder is None and not here.is_dir():
            found = shipped_studies()
        else:
            # What is hidden is a store: files that nobody wrote for others to run.
            place = folder or here
            files = [path for path in sorted(place.rglob("*.yaml")) if not _is_hidden(path.relative_to(place))]
            found = {str(path): path for path in files}
        console = Terminal()
        for name, path in found.items():
            what = load(path)
            domains = ", ".join(dict.fromkeys(member.domain for member in what.studies))
            sizes = " + ".join(f"{len(member.models)} x {len(member.seeds)}" for member in what.studies)
            console.say(f" {domains}, models x seeds: {sizes}", head=name, style="bold")
            console.print(Padding(what.question or "", (0, 0, 1, 4)))
        if not found:
            console.say(f"no study files in {folder or here}")


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
