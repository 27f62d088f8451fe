"""Tab completes commands and options, as the start page says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("typed", "completed"), [("nbsr exp", {"explain"}), ("nbsr st", {"studies", "status", "stop"})]
)
def test_commands_are_completed(typed: str, completed: set[str]) -> None:
    words = {"_NBSR_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['nbsr']; from nbsr_platform.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **words}, capture_output=True, text=True, timeout=60
    )
    assert set(done.stdout.split()) == completed, done.stderr
