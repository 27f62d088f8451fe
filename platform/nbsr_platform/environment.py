"""Where a result was made: what may change its last digits, and what a reader needs to repeat it.

Versions of libraries, compiled or plain kernels, threads and workers change the order of sums, not what is computed.
So they do not enter a trial's key by default; they stand with every result, and a report says where they differ.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import nbsr_core

if TYPE_CHECKING:
    from nbsr_platform.parts import Resources

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "xgboost")


def rounding(resources: Resources) -> dict[str, str]:
    """What may change the last digits of a trial's result, as far as it is known before the trial runs."""
    device = "gpu" if resources.gpus_per_worker else "cpu"
    return _rounding(resources.cpus_per_worker, resources.workers, device)


def environment(threads: int, workers: int, device: str) -> dict[str, str]:
    """What a reader needs to repeat a result; called where it was made."""
    import ray
    import torch

    on_gpu = device.startswith("cuda")
    return {
        "python": platform.python_version(),
        **_rounding(threads, workers, "gpu" if on_gpu else "cpu"),
        "ray": ray.__version__,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "commit": _git_commit(),
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
    return {name: importlib.metadata.version(name) for name in LIBRARIES}


@cache
def _kernels() -> str:
    from nbsr_core import native

    return "compiled" if native.availability()[0] else "torch"


@cache
def _git_commit() -> str:
    root = Path(nbsr_core.__file__).parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
