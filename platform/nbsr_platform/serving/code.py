"""The code that travels with a stored model, and the packages that it needs: so much that it loads where nothing of
ours is installed.

NBSR itself is on no index; it goes along as one archive, from which Python can import. A domain of one's own goes along
as it is: its module with all that it imports and that is not installed, under the same rules as for a cluster (nothing
hidden, nothing that looks like a secret, beside Python files only what git tracks in its packages).
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import all_suffixes
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import nbsr_core
from nbsr_core._extras import DISTRIBUTIONS
from nbsr_core.code.project import project_of
from nbsr_core.code.sources import INSTALLED, OURS, code_behind, imported_packages, naming_files
from nbsr_core.domains.domain import SHIPPED
from nbsr_core.errors import InputError
from nbsr_core.files import size
from nbsr_platform.base.project_files import files_of, home_of, is_left_out, tracked_files
from nbsr_platform.base.secret_files import giveaway
from nbsr_platform.study.shipped import shipped_folder

ARCHIVE = "nbsr.zip"
# Of the platform, what loading a model imports.
LOADING = (
    "__init__.py",
    *("serving/__init__.py", "serving/served_model.py"),
    *("study/__init__.py", "study/options.py", "study/problems.py"),
)
# Bytes that one's own code may weigh: it is stored with each model.
LARGEST = 5_000_000
# The time of all files in the archive: equal code makes equal archives.
EPOCH = (1980, 1, 1, 0, 0, 0)


def _our_files() -> Iterator[tuple[str, Path]]:
    for name, path in files_of(home_of(nbsr_core)):
        yield f"nbsr_core/{name}", path
    for name in LOADING:
        yield f"nbsr_platform/{name}", Path(__file__).parents[1] / name


@cache
def archive() -> bytes:
    """NBSR as far as loading a model needs it; made once in a process."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as file:
        for name, path in _our_files():
            file.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return written.getvalue()


def own_code(domain: str, options: Any) -> dict[str, Path]:
    """Files of one's own that a model needs, by their path below the folder that they are imported from.

    Args:
        domain: as a study names it.
        options: of the model; they may name code too.

    Raises:
        InputError: one of them looks like a secret, or they weigh too much; then none may be stored.
    """
    modules = {} if domain in SHIPPED else code_behind(domain.partition(":")[0])
    for _, part in naming_files(options):
        modules |= {name: path for name, path in part.decisive_files().items() if path.suffix in all_suffixes()}
    files = dict(_placed({name: path for name, path in modules.items() if not _is_installed(path)}))
    for name, path in files.items():
        if reason := giveaway(path, name):
            raise InputError(f"{name} {reason}")
    weight = sum(path.stat().st_size for path in files.values())
    if weight > LARGEST:
        raise InputError(f"it weighs {size(weight)}, more than {size(LARGEST)}")
    return files


def _placed(modules: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Modules where an import looks for them, and what git tracks beside them in their packages."""
    for name, path in modules.items():
        package = path.name.startswith("__init__.")
        folder = name.replace(".", "/") if package else name.rpartition(".")[0].replace(".", "/")
        yield f"{folder}/{path.name}".lstrip("/"), path
        if package:
            tracked = {found.resolve() for found in tracked_files(project_of(path.parent), []) or ()}
            for beside in sorted(path.parent.iterdir()):
                readable = beside.is_file() and beside.suffix not in all_suffixes() and not is_left_out(beside.name)
                if readable and beside.resolve() in tracked:
                    yield f"{folder}/{beside.name}", beside


def _is_installed(path: Path) -> bool:
    """Whether an import finds it wherever its package is installed; modules beside shipped studies are not found so."""
    real, shipped = path.resolve(), shipped_folder()
    if shipped is not None and real.is_relative_to(shipped):
        return False
    return any(real.is_relative_to(place) for place in INSTALLED)


@cache
def _our_packages() -> frozenset[str]:
    """What importing our own code imports: the packages that every model needs."""
    sources = (path for _, path in _our_files() if path.suffix == ".py")
    return frozenset(name for path in sources for name in imported_packages(path, at_once=True))


def requirements(own: Mapping[str, Path], further: Iterable[str] = ()) -> list[str]:
    """What must be installed to use a model: the versions that are installed here, none of them ours.

    Args:
        own: what `own_code` found.
        further: packages that its learner and options name.
    """
    sources = [path for path in own.values() if path.suffix == ".py"]
    imported = {name for path in sources for name in imported_packages(path)}
    here = {name.partition("/")[0].partition(".")[0] for name in own}
    names = {"mlflow", *_our_packages(), *imported, *further} - here - set(OURS) - sys.stdlib_module_names
    found = {_pinned(name) for name in names}
    return sorted(pin for pin in found if pin)


@cache
def _pinned(package: str) -> str:
    """`name==version` of what is imported under a name; empty if that belongs to no installed distribution."""
    name = DISTRIBUTIONS.get(package, package)
    try:
        known = version(name)
    except PackageNotFoundError:  # it is called otherwise: all installed files are to be listed, which takes a second
        owners = packages_distributions().get(package)
        if not owners:
            return ""
        name, known = owners[0], version(owners[0])
    return f"{name}=={known.partition('+')[0]}"
