"""`nbsr validate`: check a study file."""

from __future__ import annotations

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import Overrides, StudyFile
from nbsr_platform.cli.shared import clear_errors, load, say_warnings


def validate(study: StudyFile, overrides: Overrides = []) -> None:  # noqa: B006
    """Check a study file: all its errors at once, each with file, key and what would be right."""
    with clear_errors():
        what = load(study, overrides)
        console = Terminal()
        say_warnings(what.studies, console)
        console.say(f"{study}: fine ({len(what.studies)} {'study' if len(what.studies) == 1 else 'studies'})")
