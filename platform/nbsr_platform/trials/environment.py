"""Where and when a result was made: what may change its last digits, and what a reader needs to repeat it.

Versions of libraries, compiled or plain kernels, threads and workers change the order of sums, not what is computed.
So they do not enter a trial's key by default; they stand with every result, and a report says where they differ.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import nbsr_core
from nbsr_platform.base import git

if TYPE_CHECKING:
    from nbsr_platform.study.sections import Resources

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "xgboost")


def rounding(resources: Resources) -> dict[str, str]:
    """What may change the last digits of a trial's result, as far as it is known before the trial runs."""
    asked = resources.gpus_per_worker
    if asked is None:
        import torch

        asked = float(torch.cuda.is_available())
    device = "gpu" if asked else "cpu"
    return _rounding(resources.cpus_per_worker, resources.workers, device)


def environment(threads: int, workers: int, device: str) -> dict[str, str]:
    """What a reader needs to repeat a result; called where it was made."""
    import torch

    on_gpu = device.startswith("cuda")
    return {
        "python": platform.python_version(),
        **_rounding(threads, workers, "gpu" if on_gpu else "cpu"),
        "ray": importlib.metadata.version("ray"),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "commit": _git_commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def differences(environments: Iterable[Mapping[str, str]]) -> str | None:
    """In words, how results may differ in their last digits by where they were made; None if they do not."""
    seen: dict[str, list[str]] = {}
    for one in environments:
        for name in ("python", *LIBRARIES, "kernels", "threads", "workers", "device"):
            if name in one and one[name] not in seen.setdefault(name, []):
                seen[name].append(one[name])
    several = [f"{name} {' and '.join(values)}" for name, values in seen.items() if len(values) > 1]
    if not several:
        return None
    return f"results were made in different environments and may differ in their last digits: {'; '.join(several)}"


def _rounding(threads: int, workers: int, device: str) -> dict[str, str]:
    # A kernel that is compiled is part of how a CPU computes.
    kernels = {"kernels": _kernels()} if device == "cpu" else {}
    return {**_versions(), **kernels, "threads": str(threads), "workers": str(workers), "on": device}


@cache
def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # XGBoost is an extra
            found[name] = importlib.metadata.version(name)
    return found


@cache
def _kernels() -> str:
    from nbsr_core.kernels import availability

    return "compiled" if availability()[0] else "torch"


@cache
def _git_commit() -> str:
    """The commit of the library, and whether its files differ from it: figures of changed code are not the commit's."""
    folder = Path(nbsr_core.__file__).parent
    commit = git.commit(folder) or "unknown"
    return f"{commit} with changes" if git.has_changes(folder, ".") else commit
