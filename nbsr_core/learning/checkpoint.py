"""Files that hold a training run: written whole or not at all, read without trust."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from nbsr_core.errors import InputError


def save_atomically(state: Mapping[str, Any], path: Path | str) -> None:
    """Save beside the target and rename: a reader never sees half a file, and a crash leaves the old one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: Path | str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read what `save_atomically` wrote: tensors and plain values only, so that nothing in the file can run code."""
    try:
        with zipfile.ZipFile(path) as archive:  # what torch writes is a zip, but it does not look at the checksums
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"there is no checkpoint {path}") from error
    except OSError:
        raise
    except Exception as error:  # a file that is damaged or something else can fail in any way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} is damaged or no checkpoint of a training run: {reason}") from error
    if not isinstance(state, dict):
        raise InputError(f"{path} is no checkpoint of a training run: it holds a {type(state).__name__}, not a dict")
    return state
