"""Compile `walk.c` once for this machine, and load it.

The library is made for the very processor it runs on, so it is compiled where it is used rather than shipped. It is
kept in the user's cache folder under a name that tells source, compiler and processor: another one of any of them makes
another library. A machine without a C compiler walks with torch's own products.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch  # noqa: F401  (its OpenMP must be loaded first: the library is to use the same threads)

SWITCH = "NBSR_NATIVE"
SOURCE = Path(__file__).with_name("walk.c")
HEADERS = tuple(SOURCE.with_name(name) for name in ("activations.h", "beliefs.h", "products.h", "step.h"))
# The first that the compiler understands: not every one knows its processor's name or OpenMP.
FLAGS = (("-march=native", "-fopenmp"), ("-march=native",), ())
COMPILE_SECONDS = 120


class Unavailable(Exception):  # noqa: N818  (not an error: a state of the machine)
    """Why there is no compiled library here."""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions, or None where there is none."""
    try:
        found = ctypes.CDLL(str(_built()))
    except (Unavailable, OSError):
        return None
    address, size, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    found.nbsr_step.argtypes = found.nbsr_step_gradient.argtypes = [address]
    found.nbsr_walk.argtypes = [address]
    found.nbsr_below.argtypes = [address, size, size, address, address]
    found.nbsr_calibrate.argtypes = [address, size, size, address, size, real, address]
    found.nbsr_walk.restype = found.nbsr_below.restype = found.nbsr_calibrate.restype = size
    found.nbsr_density.argtypes = [address, address, size, address, size, address]
    found.nbsr_marginals.argtypes = [address, size, size, address, address]
    return found


def availability() -> tuple[bool, str]:
    """Whether levels are compiled here, and with what, or why not."""
    try:
        path = _built()
        ctypes.CDLL(str(path))
    except (Unavailable, OSError) as reason:
        return False, str(reason)
    return True, str(path)


def outlook() -> tuple[bool, str]:
    """What can be said without compiling: whether levels are or can be compiled here, and by what, or why not."""
    try:
        compiler, path = _located()
    except Unavailable as reason:
        return False, str(reason)
    return True, f"by {compiler}" if path.exists() else f"will be by {compiler}, at the first walk"


def _located() -> tuple[str, Path]:
    """The compiler, and where the library is or will be."""
    if os.environ.get(SWITCH, "1") == "0":
        raise Unavailable(f"switched off by {SWITCH}=0")
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise Unavailable("no C compiler (cc, gcc or clang) was found")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nbsr"
    return compiler, folder / f"walk-{_fingerprint(compiler)}.so"


def _built() -> Path:
    compiler, path = _located()
    folder = path.parent
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as own:  # others may be compiling too: the last one wins, whole
            made = Path(own) / path.name
            _compile(compiler, made)
            made.replace(path)
    except OSError as error:
        raise Unavailable(f"cannot keep the compiled library in {folder}: {error.strerror}") from error
    return path


def _fingerprint(compiler: str) -> str:
    cpuinfo = Path("/proc/cpuinfo")
    processor = [platform.machine(), platform.processor()]
    if cpuinfo.exists():  # a home folder may be shared by unlike machines
        lines = cpuinfo.read_text(errors="replace").splitlines()
        processor += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    parts = [*(path.read_text() for path in (SOURCE, *HEADERS)), str(FLAGS), compiler, *processor]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: str, to: Path) -> None:
    said = ""
    for flags in FLAGS:
        command = [compiler, "-O3", "-ffp-contract=off", *flags, "-shared", "-fPIC", str(SOURCE), "-o", str(to), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{compiler} failed: {error}") from error
        if done.returncode == 0:
            return
        said = said or done.stderr.strip()
    raise Unavailable(f"{compiler} failed: {said.splitlines()[0] if said else 'it said nothing'}")
