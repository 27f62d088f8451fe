"""`nbsr doctor`: say what is there and what is missing."""

from __future__ import annotations

from dataclasses import asdict

import typer

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import AsJson, HomeFolder, Tracking
from nbsr_platform.cli.shared import FAILED, clear_errors, print_json
from nbsr_platform.trials.home import Home


def doctor(home: HomeFolder = None, tracking: Tracking = None, as_json: AsJson = False) -> None:
    """Say what is there (Ray, GPUs, data, store) and what to do about what is not."""
    with clear_errors():
        from nbsr_platform.inspect import doctor as examination

        findings = examination.examine(Home.of(home), tracking)
        if as_json:
            print_json([asdict(finding) for finding in findings])
        else:
            examination.render(findings, Terminal())
        if any(finding.state == "missing" for finding in findings):
            raise typer.Exit(FAILED)
