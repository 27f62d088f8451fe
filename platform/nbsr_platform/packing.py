"""What travels to a cluster with a study: what git tracks of the project, what the study needs, the code that runs it.

Everything else stays at home, and so does whatever looks like a secret: then nothing is sent at all before somebody has
decided about it. Data is on the cluster's own disks (`NBSR_DATA` there); what has a leading dot is nobody's business.

The project lies in a folder of its own in the package. Ray puts the package first on the path of every process of a
job, those of Ray itself included: a `queue.py` there would stand for the standard library's, and the job would never
start. Below `PROJECT` nothing hides anything: a project's folders come last on the path (`nbsr_core.project`).
"""

from __future__ import annotations

import fnmatch
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import Any

import nbsr_core
import nbsr_platform
from nbsr_core.domains.domain import SHIPPED
from nbsr_core.domains.medical import kaggle
from nbsr_core.errors import InputError
from nbsr_core.project import SENT, module_folders, project_of
from nbsr_core.sources import code_behind, naming_files
from nbsr_platform.doctor import size
from nbsr_platform.giveaways import giveaway
from nbsr_platform.study import Collection, Study

# Bytes that a submission may weigh: code and study files are a hundredth of it.
LARGEST = 50_000_000
# Where the project lies in the package.
PROJECT = "project"
OURS = (nbsr_core, nbsr_platform)
# Never sent, wherever they stand.
LEFT_OUT = ("__pycache__", "node_modules", "venv", "mlruns", "mlartifacts", "*.egg-info")
# Never sent where they stand at the top of the project and are no Python packages.
DATA_FOLDERS = ("data", "datasets")
MOST_SHOWN = 5
# Keys of a study whose values are no file names, whatever they look like.
NO_FILES = ("name", "question", "domain", "paper", "resources")


@dataclass(frozen=True)
class Selection:
    """What would be sent.

    Attributes:
        project: the folder that it is from.
        files: by their path in the package.
        study: path of the study file in the package, as a job names it.
        rule: in a few words, what of the project goes.
        notes: what somebody should know before it goes.
    """

    project: Path
    files: Mapping[str, Path]
    study: str
    rule: str
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())

    @property
    def of_the_project(self) -> dict[str, Path]:
        """All but our own code."""
        ours = tuple(f"{package.__name__}/" for package in OURS)
        return {name: path for name, path in self.files.items() if not name.startswith(ours)}

    def describe(self) -> str:
        """One line for a person."""
        count = len(self.of_the_project)
        return (
            f"{count} {'file' if count == 1 else 'files'} of {self.project} ({self.rule}) and nbsr itself, "
            f"{size(self.size)}"
        )

    def listing(self) -> list[str]:
        """A line for each file of the project, with its size."""
        files = {name.removeprefix(f"{PROJECT}/"): path for name, path in self.of_the_project.items()}
        return [f"{size(path.stat().st_size):>8}  {name}" for name, path in sorted(files.items())]

    def write(self, into: Path) -> None:
        """Copy all of it into an empty folder."""
        for name, path in self.files.items():
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        (into / PROJECT / SENT).touch()


def select(what: Study | Collection, *, project: Path | None = None, exclude: Sequence[str] = ()) -> Selection:
    """Decide what a job needs; refuses what is too heavy and what looks like a secret.

    Args:
        what: a study or collection that was read from a file.
        project: folder to send from; the project around the study file by default.
        exclude: patterns of further paths that stay at home, relative to the project (`notebooks/*`).
    """
    assert what.path is not None, "only what was read from a file can be sent"
    root = project_of(what.path.resolve().parent) if project is None else project.resolve()
    if not root.is_dir():
        raise InputError(f"project {root} is not a folder")
    members = what.studies if isinstance(what, Collection) else (what,)
    studies = list(dict.fromkeys(one.path.resolve() for one in (what, *members) if one.path is not None))
    for path in studies:
        if not path.is_relative_to(root):
            raise InputError(
                f"{path} is outside the project {root}, so it cannot be sent; name a folder with --project"
            )
    notes: list[str] = []
    tracked = _tracked(root, notes)
    chosen = _python_files(root, studies) if tracked is None else tracked
    modules = _modules(members, root, notes)
    kept = list(dict.fromkeys([*studies, *(path for path in (*chosen, *modules) if _may_go(path, root, exclude))]))
    files = {f"{PROJECT}/{path.relative_to(root).as_posix()}": path for path in kept}
    for name, path in _named(members, kept, notes).items():
        if not _excluded(PurePosixPath(name), exclude):
            files.setdefault(name, path)
    if tracked is not None:
        known = {path.resolve() for path in tracked}
        news = [name.removeprefix(f"{PROJECT}/") for name, path in files.items() if path.resolve() not in known]
        notes += [f"{name} is not in git, but the study needs it: it goes" for name in dict.fromkeys(news)]
    for package in OURS:
        files |= {f"{package.__name__}/{name}": path for name, path in _all_of(_home(package))}
    _weigh(files, root)
    _refuse_secrets(files)
    rule = "no git: Python files and what the study names" if tracked is None else "what git tracks"
    return Selection(root, files, f"{PROJECT}/{studies[0].relative_to(root).as_posix()}", rule, tuple(notes))


def _tracked(root: Path, notes: list[str]) -> list[Path] | None:
    """Files below `root` that git tracks; None if it tracks none there. Links count if what they lead to does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--recurse-submodules"]
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        notes += [f"git cannot be asked what it tracks: {error}"] if (root / ".git").exists() else []
        return None
    if done.returncode and (root / ".git").exists():
        said = os.fsdecode(done.stderr).strip().splitlines()
        notes.append(f"git does not say what it tracks: {said[0] if said else f'exit code {done.returncode}'}")
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name] if done.returncode == 0 else []
    known = {root / name for name in names}
    return [path for path in (root / name for name in names) if path.is_file() and path.resolve() in known] or None


def _python_files(root: Path, studies: Sequence[Path]) -> list[Path]:
    """Where git knows nothing: modules beside the studies and at the top of the project, and whole packages there."""
    found: dict[Path, None] = {}
    for place in dict.fromkeys(place for path in studies for place in (*module_folders(path.parent), root)):
        if not place.is_relative_to(root):
            continue
        for path in sorted(place.iterdir()):
            if path.suffix == ".py" and path.is_file():
                found[path] = None
            elif (path / "__init__.py").is_file() and not _left_out(path.name):
                found |= {file: None for _, file in _all_of(path) if file.suffix == ".py"}
    return [path for path in found if path.resolve().is_relative_to(root)]


def _modules(members: Sequence[Study], root: Path, notes: list[str]) -> list[Path]:
    """Modules of one's own that the studies name, with what they import from the project."""
    found: dict[Path, None] = {}
    for study in members:
        options = (study.data, *(choice.options for choice in study.models.values()))
        files = [file for part in options for _, one in naming_files(part) for file in one.decisive_files().values()]
        if study.domain not in SHIPPED:
            module = study.domain.partition(":")[0]
            own = code_behind(module)
            files += own.values()
            if not any(path.resolve().is_relative_to(root) for path in own.values()):
                loaded = getattr(sys.modules.get(module), "__file__", None)
                note = f"{module} ({loaded}) is not in the project: it must be installed on the cluster too"
                notes += [] if note in notes else [note]
        modules = [path.resolve() for path in files if path.suffix in all_suffixes()]
        found |= dict.fromkeys(path for path in modules if path.is_file() and path.is_relative_to(root))
    return list(found)


def _named(members: Sequence[Study], kept: Sequence[Path], notes: list[str]) -> dict[str, Path]:
    """Files that options of the studies name, by that name: a job finds them where its working folder begins.

    Of a folder only what goes anyway is sent: folders of data are large, and belong on the cluster's disks.
    """
    found: dict[str, Path] = {}
    for key, text in dict.fromkeys(pair for study in members for pair in _texts(study.to_dict())):
        name = os.path.normpath(text) if text and "\0" not in text else ""
        path = Path.cwd() / name
        if not name or name == "." or os.path.isabs(name) or not os.path.lexists(path):
            continue
        if path.is_file() and not name.startswith("..") and path.suffix not in all_suffixes():
            found[PurePosixPath(name).as_posix()] = path
            continue
        below = [] if name.startswith("..") else [one for one in kept if one.is_relative_to(path.resolve())]
        found |= {f"{name}/{one.relative_to(path.resolve()).as_posix()}": one for one in below}
        if not below and "/" in text:
            notes.append(f"{key} names {text}, which stays at home: give the whole path that it has on the cluster")
    return found


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if key or name not in NO_FILES:
                yield from _texts(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)


def _may_go(path: Path, root: Path, exclude: Sequence[str]) -> bool:
    """Whether a file of the project may be sent: not ours (that goes anyway), no store, no data, nothing hidden."""
    inner = path.relative_to(root)
    if any(path.is_relative_to(_home(package)) for package in OURS) or any(map(_left_out, inner.parts)):
        return False
    data = os.environ.get(kaggle.FOLDER_VARIABLE)
    if data and path.resolve().is_relative_to(Path(data).resolve()):
        return False
    above = [folder for folder in path.parents if folder != root and folder.is_relative_to(root)]
    top = above[-1] if above else path
    if top.name in DATA_FOLDERS and not (top / "__init__.py").exists():
        return False
    return not any(map(_is_store, above)) and not _excluded(PurePosixPath(inner.as_posix()), exclude)


def _excluded(path: PurePosixPath, exclude: Sequence[str]) -> bool:
    names = [one.as_posix() for one in (path, *path.parents)]
    return any(fnmatch.fnmatchcase(name, pattern.rstrip("/")) for name in names for pattern in exclude)


def _left_out(name: str) -> bool:
    return name.startswith(".") or any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT)


def _is_store(folder: Path) -> bool:
    """Whether the folder is somebody's home of results, under whatever name."""
    return (folder / "mlflow.db").exists() or ((folder / "trials").is_dir() and (folder / "locks").is_dir())


def _home(package: Any) -> Path:
    return Path(str(package.__file__)).parent


def _all_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a package of Python, by their path in it."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _left_out(name))
        for path in (Path(here) / name for name in sorted(files) if not _left_out(name)):
            if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
                yield path.relative_to(folder).as_posix(), path


def _weigh(files: Mapping[str, Path], root: Path) -> None:
    sizes = {name.removeprefix(f"{PROJECT}/"): path.stat().st_size for name, path in files.items()}
    if (total := sum(sizes.values())) <= LARGEST:
        return
    heavy = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:MOST_SHOWN]
    listed = "\n".join(f"  {size(sizes[name]):>7} {name}" for name in heavy)
    raise InputError(
        f"the project {root} weighs {size(total)}, more than the {size(LARGEST)} that a submission may; its largest "
        f"files:\n{listed}\nLeave some at home with --exclude PATTERN; data belongs on the cluster's own disks"
    )


def _refuse_secrets(files: Mapping[str, Path]) -> None:
    found = {}
    for name, path in files.items():
        shown = name.removeprefix(f"{PROJECT}/")
        if reason := giveaway(path, shown):
            found[shown] = reason
    if not found:
        return
    listed = "\n".join(f"  {name} {reason}" for name, reason in list(found.items())[:MOST_SHOWN])
    more = f"\n  and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    options = " ".join(f"--exclude {shlex.quote(name)}" for name in list(found)[:MOST_SHOWN])
    raise InputError(
        f"nothing was sent: these files would go to the cluster, where everybody with its token could read them\n"
        f"{listed}{more}\nLeave them at home with {options}; rename what is no secret"
    )
