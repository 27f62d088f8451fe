"""Compile `walk.c` once for this machine, and load it.

The library is made for the very processor it runs on, so it is compiled where it is used rather than shipped. It is
kept under a name that tells source, compiler and processor: another one of any of them makes another library. Where it
cannot be kept safely (`keeping`) it is compiled for one process; a machine without a C compiler walks with torch's own
products.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch  # noqa: F401  (its OpenMP must be loaded first: the library is to use the same threads)

from nbsr_core.kernels.native import keeping

SWITCH = "NBSR_NATIVE"
# Read as resources: the package may lie in an archive.
SOURCE = files(__package__) / "walk.c"
HEADERS = tuple(files(__package__) / name for name in ("activations.h", "beliefs.h", "level.h", "products.h"))
# The first that the compiler understands: not every one knows its processor's name or OpenMP.
FLAGS = (("-march=native", "-fopenmp"), ("-march=native",), ())
COMPILE_SECONDS = 120
_Address, _Size, _Real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
# What the library must have: the arguments of each function, and what it returns.
FUNCTIONS = {
    "nbsr_level": ([_Address], None),
    "nbsr_level_gradient": ([_Address], None),
    "nbsr_walk": ([_Address], _Size),
    "nbsr_below": ([_Address, _Size, _Size, _Address, _Address], _Size),
    "nbsr_calibrate": ([_Address, _Size, _Size, _Address, _Size, _Real, _Address], _Size),
    "nbsr_density": ([_Address, _Address, _Size, _Address, _Size, _Address], None),
    "nbsr_marginals": ([_Address, _Size, _Size, _Address, _Address], None),
}
WITHOUT = "walks work without, at about half the speed"
OWN_FOLDER = "set XDG_CACHE_HOME to a folder that only you can write to"


class Unavailable(Exception):  # noqa: N818  (not an error: a state of the machine)
    """Why there is no compiled library here."""


class Broken(Exception):  # noqa: N818
    """A library that is there and cannot be used."""


@dataclass(frozen=True)
class Loaded:
    """What became of the attempt to have a compiled library.

    Attributes:
        says: where it is, or why there is none.
        warning: what a person should know of it and would not expect; empty if there is nothing.
    """

    library: ctypes.CDLL | None
    says: str
    warning: str = ""


@dataclass(frozen=True)
class Outlook:
    """What can be said without compiling: whether levels are or can be compiled here, how or why not, what to do."""

    compiled: bool
    says: str
    advice: str = ""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions, or None if there are none; what is wrong is said once in a process."""
    found = _loaded()
    if found.warning:
        warnings.warn(found.warning, RuntimeWarning, stacklevel=2)
    return found.library


def availability() -> tuple[bool, str]:
    """Whether levels are compiled here, and where the library is, or why not."""
    found = _loaded()
    return found.library is not None, found.says


def outlook() -> Outlook:
    """See `Outlook`."""
    try:
        compiler, stem = _wanted()
    except Unavailable as absence:
        switched_off = os.environ.get(SWITCH) == "0"
        return Outlook(False, str(absence), f"unset {SWITCH}" if switched_off else f"{WITHOUT}; install gcc or clang")
    refused: list[str] = []
    for folder in keeping.folders():
        trouble = keeping.complaint(folder)
        if trouble:
            refused.append(trouble)
            continue
        whole, wrong = keeping.kept(folder, stem)
        for path in whole:
            try:
                _opened(path)
            except Broken as error:
                wrong.append(f"{path} {error}")
            else:
                return Outlook(True, f"by {compiler}, kept in {folder}", _advice(refused))
        if not keeping.is_writable(folder):
            refused.append(f"{folder} cannot be written")
            continue
        if wrong:
            return Outlook(True, "; ".join(wrong), f"nothing: {compiler} will compile it anew at the next walk")
        return Outlook(True, f"will be by {compiler}, at the first walk", _advice(refused))
    return Outlook(True, f"by {compiler}, anew in every process: {'; '.join(refused)}", OWN_FOLDER)


def _advice(refused: list[str]) -> str:
    return f"{'; '.join(refused)}: {OWN_FOLDER}" if refused else ""


@cache
def _loaded() -> Loaded:
    troubles: list[str] = []
    try:
        compiler, stem = _wanted()
    except Unavailable as absence:
        return Loaded(None, str(absence))
    try:
        for folder in keeping.folders():
            trouble = keeping.complaint(folder)
            if not trouble:
                try:
                    found, path = _kept(compiler, folder, stem)
                    return Loaded(found, str(path), _warning(f"kept in {folder}", troubles))
                except (OSError, Broken) as error:
                    trouble = f"{folder}: {getattr(error, 'strerror', None) or error}"
            troubles.append(trouble)
        with tempfile.TemporaryDirectory(prefix="nbsr-native-") as own:  # once loaded, it needs no file
            found = _compiled(compiler, Path(own) / f"{stem}{keeping.SUFFIX}")
        says = f"compiled for this process alone: {'; '.join(troubles)}"
        return Loaded(found, says, _warning("compiled for this process alone", troubles))
    except (OSError, Broken, Unavailable) as error:
        why = "; ".join([*troubles, str(error)])
        return Loaded(None, why, f"walks are not compiled: {why}; torch's products are about half as fast")


def _warning(instead: str, troubles: list[str]) -> str:
    return f"compiled walks are {instead}: {'; '.join(troubles)}; {OWN_FOLDER}" if troubles else ""


def _wanted() -> tuple[str, str]:
    """The compiler, and how the name of the library begins."""
    if os.environ.get(SWITCH, "1") == "0":
        raise Unavailable(f"switched off by {SWITCH}=0")
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise Unavailable("no C compiler (cc, gcc or clang) was found")
    return compiler, f"walk-{_fingerprint(compiler)}"


def _kept(compiler: str, folder: Path, stem: str) -> tuple[ctypes.CDLL, Path]:
    """The library of a folder that is ours; compiled now where there is none, or none that works."""
    for path in keeping.kept(folder, stem)[0]:
        try:
            return _opened(path), path
        except Broken:
            continue
    keeping.make(folder)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        made = Path(own) / f"{stem}{keeping.SUFFIX}"
        found = _compiled(compiler, made)
        return found, keeping.keep(made, folder, stem)


def _compiled(compiler: str, to: Path) -> ctypes.CDLL:
    _compile(compiler, to)
    return _opened(to)


def _opened(path: Path) -> ctypes.CDLL:
    try:
        found = ctypes.CDLL(str(path))
    except OSError as error:
        raise Broken(f"cannot be loaded: {error}") from error
    for name, (arguments, result) in FUNCTIONS.items():
        try:
            function = getattr(found, name)
        except AttributeError:
            raise Broken(f"has no function {name}") from None
        function.argtypes = arguments
        if result is not None:
            function.restype = result
    return found


def _fingerprint(compiler: str) -> str:
    cpuinfo = Path("/proc/cpuinfo")
    processor = [platform.machine(), platform.processor()]
    if cpuinfo.exists():  # a home folder may be shared by unlike machines
        lines = cpuinfo.read_text(errors="replace").splitlines()
        processor += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    parts = [*(path.read_text() for path in (SOURCE, *HEADERS)), str(FLAGS), compiler, *processor]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: str, to: Path) -> None:
    """Into a folder of one's own, where the sources are put as well: a compiler reads no archives."""
    said, source = "", to.with_name(SOURCE.name)
    for part in (SOURCE, *HEADERS):
        to.with_name(part.name).write_text(part.read_text())
    for flags in FLAGS:
        command = [compiler, "-O3", "-ffp-contract=off", *flags, "-shared", "-fPIC", str(source), "-o", str(to), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{compiler} failed: {error}") from error
        if done.returncode == 0:
            return
        said = said or done.stderr.strip()
    raise Unavailable(f"{compiler} failed: {said.splitlines()[0] if said else 'it said nothing'}")
