"""The tutorial is true: its files and commands, taken from the text, work one after the other in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorial.md"
BLOCK = re.compile(r"```(bash|python|yaml)\n(.*?)```", re.DOTALL)
NAMED = re.compile(r"# (\w+\.(?:py|yaml))\n")
# What a reader is promised to see, by the command that shows it.
PROMISED = {
    "nbsr plan wine.yaml": "9 trials",
    "nbsr run wine.yaml": "report",
    "nbsr ls": "wine-search",
    "nbsr compare wine.yaml search.yaml": "nbsr",
    "nbsr explain": "truly",
    "python ask.py": "vacuity",
}


def steps() -> list[tuple[str, str]]:
    """(file name, content) and ("", command), in the order of the text."""
    found: list[tuple[str, str]] = []
    for language, content in BLOCK.findall(TUTORIAL.read_text()):
        if language == "bash":
            found += [("", line) for line in content.splitlines()]
        else:
            name = NAMED.match(content)
            assert name is not None, f"a block of {language} that names no file"
            found.append((name[1], content))
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_step_of_the_tutorial_works(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = {}
    for name, content in steps():
        if name:
            (tmp_path / name).write_text(content)
            continue
        done = subprocess.run(
            ["bash", "-euc", content],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=600,
        )
        said[content] = done.stdout + done.stderr
        print(f"$ {content}\n{said[content]}", flush=True)
        assert done.returncode == 0, said[content]
        assert "Traceback" not in said[content], said[content]
    for command, words in PROMISED.items():
        assert any(words in text for line, text in said.items() if line.startswith(command)), command
    assert (tmp_path / "walk.svg").stat().st_size > 0
