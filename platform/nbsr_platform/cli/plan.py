"""`nbsr plan`: say what a run would do."""

from __future__ import annotations

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import AsJson, HomeFolder, Overrides, StudyFile
from nbsr_platform.cli.shared import clear_errors, load, print_json, say_warnings
from nbsr_platform.trials.home import Home


def plan(
    study: StudyFile,
    overrides: Overrides = [],  # noqa: B006
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run would do: how many trials, on what, for how long. Runs nothing but a short probe."""
    with clear_errors():
        from nbsr_platform.inspect import plan as planning

        what = load(study, overrides)
        say_warnings(what.studies, Terminal(stderr=as_json))
        planned = planning.plan(what, Home.of(home))
        if as_json:
            print_json(planned.to_json())
        else:
            planning.render(planned, Terminal())
