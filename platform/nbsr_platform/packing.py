"""What travels to a cluster with a study: the project around it and the code that runs it; nothing large or secret.

Data, stores and environments stay where they are: data is on the cluster's own disks (`NBSR_DATA` there), and what has
a leading dot is nobody's business (`.git`, `.env`, `.venv`, `.nbsr`).
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbsr_core
import nbsr_platform
from nbsr_core.domains.medical import kaggle
from nbsr_core.errors import InputError
from nbsr_platform.doctor import size
from nbsr_platform.study import Collection, Study

# Bytes that a submission may weigh: code and study files are a hundredth of it.
LARGEST = 50_000_000
# Never sent, wherever they stand.
LEFT_OUT = (
    "__pycache__",
    "node_modules",
    "venv",
    "mlruns",
    "mlartifacts",
    "*.egg-info",
    "*.pem",
    "*.key",
    "auth_token",
)
# Never sent where they stand at the top of the project and are no Python packages.
DATA_FOLDERS = ("data", "datasets")
# The top of a project holds one of these.
MARKS = ("pyproject.toml", "setup.py", ".git")


@dataclass(frozen=True)
class Package:
    """A folder that is ready to be sent.

    Attributes:
        study: the study file's path in it, as a job names it.
    """

    folder: Path
    study: str
    files: int
    size: int


def project_of(study: Path) -> Path:
    """The project that a study file belongs to: the nearest folder above that looks like one, else the file's own."""
    here = study.resolve().parent
    return next((folder for folder in (here, *here.parents) if any((folder / mark).exists() for mark in MARKS)), here)


def pack(what: Study | Collection, into: Path, *, project: Path | None = None, exclude: Sequence[str] = ()) -> Package:
    """Copy all that a job needs into the empty folder `into`, after weighing it.

    Args:
        what: a study or collection that was read from a file.
        into: an empty folder.
        project: folder to send; the one around the study file unless told.
        exclude: patterns of further paths that stay at home, relative to the project (`notebooks/*`).
    """
    assert what.path is not None, "only what was read from a file can be sent"
    root = project_of(what.path) if project is None else project.resolve()
    if not root.is_dir():
        raise InputError(f"project {root} is not a folder")
    members = what.studies if isinstance(what, Collection) else (what,)
    needed = [study.path.resolve() for study in (what, *members) if study.path is not None]
    chosen = dict(_chosen(root, exclude))
    for path in needed:
        if not path.is_relative_to(root):
            raise InputError(
                f"{path} is outside the project {root}, so it cannot be sent; name a folder with --project"
            )
        chosen[path.relative_to(root).as_posix()] = path
    for package in (nbsr_core, nbsr_platform):
        home = Path(str(package.__file__)).parent
        chosen |= {f"{package.__name__}/{name}": path for name, path in _chosen(home, ())}
    _weigh(chosen, root)
    total = 0
    for name, path in chosen.items():
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        total += target.stat().st_size
    return Package(into, needed[0].relative_to(root).as_posix(), len(chosen), total)


def _chosen(root: Path, exclude: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Files that may be sent, by their path below `root`."""
    data = os.environ.get(kaggle.FOLDER_VARIABLE)
    kept_home = Path(data).resolve() if data else None
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not _left_out(name, (here / name).relative_to(root), exclude)
            and not _is_store(here / name)
            and here / name != kept_home
            and not (here == root and name in DATA_FOLDERS and not (here / name / "__init__.py").exists())
        )
        for name in sorted(files):
            path = here / name
            leads_out = path.is_symlink() and not path.resolve().is_relative_to(root.resolve())
            if path.is_file() and not leads_out and not _left_out(name, path.relative_to(root), exclude):
                yield path.relative_to(root).as_posix(), path


def _left_out(name: str, path: Path, exclude: Sequence[str]) -> bool:
    if name.startswith(".") or any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT):
        return True
    return any(fnmatch.fnmatchcase(path.as_posix(), pattern.rstrip("/")) for pattern in exclude)


def _is_store(folder: Path) -> bool:
    """Whether the folder is somebody's home of results, under whatever name."""
    return (folder / "mlflow.db").exists() or ((folder / "trials").is_dir() and (folder / "locks").is_dir())


def _weigh(chosen: dict[str, Path], root: Path) -> None:
    sizes = {name: path.stat().st_size for name, path in chosen.items()}
    if (total := sum(sizes.values())) <= LARGEST:
        return
    heavy = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:5]
    listed = "\n".join(f"  {size(sizes[name]):>7} {name}" for name in heavy)
    raise InputError(
        f"the project {root} weighs {size(total)}, more than the {size(LARGEST)} that a submission may; its largest "
        f"files:\n{listed}\nLeave some at home with --exclude PATTERN; data belongs on the cluster's own disks"
    )
