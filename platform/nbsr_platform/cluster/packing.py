"""What travels to a cluster with a study: what git tracks of the project, what the study needs, the code that runs it.

Everything else stays at home, and so does whatever looks like a secret: then nothing is sent at all before somebody has
decided about it. Data is on the cluster's own disks (`NBSR_DATA` there); what has a leading dot is nobody's business.

The project lies in a folder of its own in the package. Ray puts the package first on the path of every process of a
job, those of Ray itself included: a `queue.py` there would stand for the standard library's, and the job would never
start. Below `PROJECT` nothing hides anything: a project's folders come last on the path (`nbsr_core.code.project`).
"""

from __future__ import annotations

import fnmatch
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import Any

import nbsr_core
import nbsr_platform
from nbsr_core.code.project import SENT, module_folders, project_of
from nbsr_core.code.sources import code_behind, naming_files
from nbsr_core.domains.domain import SHIPPED
from nbsr_core.domains.medical import kaggle
from nbsr_core.errors import InputError
from nbsr_core.files import size
from nbsr_platform.base.project_files import files_of, home_of, is_left_out, tracked_files
from nbsr_platform.base.secret_files import giveaway
from nbsr_platform.study.shipped import shipped_folder
from nbsr_platform.study.study import Collection, Study

# Bytes that a submission may weigh: code and study files are a hundredth of it.
LARGEST = 50_000_000
# Where the project lies in the package.
PROJECT = "project"
OURS = (nbsr_core, nbsr_platform)
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
    root = _project_around(what.path.resolve()) if project is None else project.resolve()
    if not root.is_dir():
        raise InputError(f"project {root} is not a folder")
    members = what.studies
    studies = list(dict.fromkeys(one.path.resolve() for one in (what, *members) if one.path is not None))
    for path in studies:
        if not path.is_relative_to(root):
            raise InputError(
                f"{path} is outside the project {root}, so it cannot be sent; name a folder with --project"
            )
    notes: list[str] = []
    tracked = tracked_files(root, notes)
    chosen = _python_files(root, studies) if tracked is None else tracked
    modules = _modules(members, root, notes)
    kept = list(dict.fromkeys([*studies, *(path for path in (*chosen, *modules) if _may_go(path, root, exclude))]))
    files = {f"{PROJECT}/{path.relative_to(root).as_posix()}": path for path in kept}
    for name, path in _named(members, root, kept, notes).items():
        if not _excluded(PurePosixPath(name.removeprefix(f"{PROJECT}/")), exclude):
            files.setdefault(name, path)
    if tracked is not None:
        known = {path.resolve() for path in tracked}
        news = [name.removeprefix(f"{PROJECT}/") for name, path in files.items() if path.resolve() not in known]
        notes += [f"{name} is not in git, but the study needs it: it goes" for name in dict.fromkeys(news)]
    for package in OURS:
        files |= {f"{package.__name__}/{name}": path for name, path in files_of(home_of(package))}
    _weigh(files, root)
    _refuse_secrets(files)
    rule = "no git: Python files and what the study names" if tracked is None else "what git tracks"
    return Selection(root, files, f"{PROJECT}/{studies[0].relative_to(root).as_posix()}", rule, tuple(notes))


def _project_around(path: Path) -> Path:
    """The project of a study file. What came with an installed nbsr is a project of its own."""
    shipped = shipped_folder()
    if shipped is not None and shipped.parent == home_of(nbsr_platform) and path.is_relative_to(shipped):
        return shipped
    return project_of(path.parent)


def _python_files(root: Path, studies: Sequence[Path]) -> list[Path]:
    """Where git knows nothing: modules beside the studies and at the top of the project, and whole packages there."""
    found: dict[Path, None] = {}
    for place in dict.fromkeys(place for path in studies for place in (*module_folders(path.parent), root)):
        if not place.is_relative_to(root):
            continue
        for path in sorted(place.iterdir()):
            if path.suffix == ".py" and path.is_file():
                found[path] = None
            elif (path / "__init__.py").is_file() and not is_left_out(path.name):
                found |= {file: None for _, file in files_of(path) if file.suffix == ".py"}
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


def _named(members: Sequence[Study], root: Path, kept: Sequence[Path], notes: list[str]) -> dict[str, Path]:
    """Files that the studies name, by their path in the package: beside the study file, where it looks for them.

    Those of `--set` are looked for where a command is typed: a job's working folder, where its package begins. Of a
    folder only what goes anyway is sent: folders of data are large, and belong on the cluster's disks.
    """
    found: dict[str, Path] = {}
    for study in members:
        written = {} if study.source is None else study.source.value
        for key, text in dict.fromkeys(_texts(written)):
            found |= _at(key, text, study.folder or root, root, PROJECT, kept, notes)
        for setting in study.settings:
            key, _, text = setting.partition("=")
            found |= _at(key, text, Path.cwd(), Path.cwd(), "", kept, notes)
    return found


def _at(
    key: str, text: str, folder: Path, top: Path, into: str, kept: Sequence[Path], notes: list[str]
) -> dict[str, Path]:
    """What a text names in `folder`, by its path in the package, where `into` has what is below `top`."""
    path = Path(os.path.normpath(folder / text)) if text and "\0" not in text else top
    if os.path.isabs(text) or path == top or not os.path.lexists(path):
        return {}
    inside = path.is_relative_to(top)
    name = f"{into}/{path.relative_to(top).as_posix()}".lstrip("/") if inside else ""
    if inside and path.is_file() and path.suffix not in all_suffixes():
        return {name: path}
    below = [one for one in kept if inside and one.is_relative_to(path.resolve())]
    if not below and "/" in text:
        note = f"{key} names {text}, which stays at home: give the whole path that it has on the cluster"
        notes += [] if note in notes else [note]
    return {f"{name}/{one.relative_to(path.resolve()).as_posix()}": one for one in below}


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
    if any(path.is_relative_to(home_of(package)) for package in OURS) or any(map(is_left_out, inner.parts)):
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


def _is_store(folder: Path) -> bool:
    """Whether the folder is somebody's home of results, under whatever name."""
    return (folder / "mlflow.db").exists() or ((folder / "trials").is_dir() and (folder / "locks").is_dir())


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
