"""What the README says first is true: two commands, a picture, and the versions of Python that were tried."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_SCREEN = "\n".join(README.splitlines()[:25])


def test_the_first_screen_has_a_picture_and_the_two_commands_that_matter() -> None:
    (picture,) = re.findall(r"!\[.+\]\((.+)\)", FIRST_SCREEN)
    assert (ROOT / picture).is_file()
    assert re.findall(r"(?m)^make (\S+)", FIRST_SCREEN) == ["quickstart", "test"]


def test_every_make_target_that_is_spoken_of_exists() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    texts = [README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")]
    assert {name for text in texts for name in re.findall(r"(?m)(?:^|`)make ([a-z-]+)", text)} <= targets


def test_the_versions_of_python_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    named = [line.removeprefix(prefix) for line in project["classifiers"] if line.startswith(prefix)]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert named == ["3.11", "3.12", "3.13"]
    assert all(version in FIRST_SCREEN for version in named)
