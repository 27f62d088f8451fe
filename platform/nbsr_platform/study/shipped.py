"""Studies that come with NBSR: found by name (`medical/quickstart`) wherever a command is started.

They travel inside the installed package; a checkout has them in its folder `studies`. What stands in the current folder
goes first, so that nothing of one's own is hidden by a name of ours.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from nbsr_platform.study.problems import Problem, StudyError, did_you_mean

SUFFIXES = (".yaml", ".yml")
NAME = re.compile(r"[\w./-]+")


@cache
def shipped_folder() -> Path | None:
    """Where the studies of this installation are, if it has any."""
    package = Path(__file__).resolve().parents[1]
    checkout = [package.parents[1] / "studies"] if package.parent.name == "platform" else []
    return next((place for place in (package / "studies", *checkout) if place.is_dir()), None)


def shipped_studies() -> dict[str, Path]:
    """Files by name, such as `medical/quickstart`."""
    folder = shipped_folder()
    if folder is None:
        return {}
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def shipped_name(path: Path | None) -> str | None:
    """The name of a shipped study that was found by it; None for a file that was named itself."""
    folder = shipped_folder()
    if path is None or folder is None or not path.is_absolute() or not path.is_relative_to(folder):
        return None
    return path.relative_to(folder).with_suffix("").as_posix()


def find_study(what: str | Path) -> Path:
    """The file of a study that somebody names: a file, with or without its suffix, or else one that is shipped.

    Raises:
        StudyError: there is no such file, and no study of this name; the message lists near ones.
    """
    path = Path(what)
    if path.suffix in SUFFIXES or NAME.fullmatch(str(what)) is None or path.is_file():
        return path
    beside = [path.with_name(path.name + suffix) for suffix in SUFFIXES if path.name]
    here = next((file for file in beside if file.is_file()), None)
    if here is not None:
        return here
    known = shipped_studies()
    if path.as_posix() in known:
        return known[path.as_posix()]
    if path.exists():
        return path  # a folder, or worse: reading it says so
    near = [name for name in known if path.parts and name.partition("/")[0] == path.parts[0]]
    hint = f"there are {', '.join(near)}" if near else did_you_mean(path.as_posix(), known) or "nbsr studies lists them"
    raise StudyError([Problem(str(what), what="no such file, and no study of this name comes with nbsr", hint=hint)])


def is_shipped(what: str) -> bool:
    """Whether a name stands for a shipped study, if it is no file."""
    return what in shipped_studies()
