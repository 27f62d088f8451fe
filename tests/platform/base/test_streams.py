"""A study outlives whoever reads what it says, and only its own words are read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nbsr_platform.base.streams import outliving_their_readers

SPEAKS = """
import os, sys
from rich.console import Console
from nbsr_platform.base.streams import outliving_their_readers

with outliving_their_readers():
    console = Console(file=sys.stdout)
    for number in range(3):
        console.print("a line")
        print("another", file=sys.stderr, flush=True)
        os.write(2, b"*** said by C++ ***")
        sys.stdin.readline()
print("at the end", file=sys.stderr if sys.argv[1:] else sys.stdout)
sys.exit(7)
"""
TALKS = """
import sys, typer
from nbsr_platform.cli.shared import clear_errors
try:
    with clear_errors():
        while True:
            print("a line")
except typer.Exit as ending:
    sys.exit(ending.exit_code)
"""


def speaking(*arguments: str, stdout: int, stderr: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SPEAKS, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, text=True)


def test_a_closed_pipe_ends_nothing_and_changes_no_exit_code() -> None:
    with speaking("stderr", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "a line\n"
        process.stdout.close()
        stdin = process.stdin
        assert stdin is not None
        process.stdin = None
        stdin.write("\n\n\n")
        stdin.close()
        said = process.stderr.read()
        assert process.wait(60) == 7
    assert said == "another\n" * 3 + "at the end\n", "and nobody else speaks there"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_words_that_do_not_fit_on_a_disk_end_nothing() -> None:
    with open("/dev/full", "w") as full, speaking("stderr", stdout=full.fileno(), stderr=subprocess.DEVNULL) as process:
        process.communicate("\n\n\n", timeout=60)
    assert process.returncode == 7


def test_streams_that_are_no_files_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", None)
    before = os.fstat(2)
    with outliving_their_readers():
        assert isinstance(sys.stdout, io.StringIO)
        assert sys.stderr is None
    assert os.fstat(2) == before


def test_a_command_whose_reader_leaves_ends_well() -> None:
    command = [sys.executable, "-c", TALKS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        code = process.wait(60)
    assert (code, said) == (0, "")
