"""Folders that the environment names: where caches go that others keep in the home folder, and where data lies."""

from __future__ import annotations

import os
from pathlib import Path

from nbsr_platform.trials.home import Home

# Whose cache it is by the variable that moves it, and where it is kept otherwise.
CACHES = {"NBSR_CACHE": "~/.cache/nbsr", "MPLCONFIGDIR": "~/.config/matplotlib"}


def homeless() -> list[str]:
    """Variables of caches that are neither set nor can have their usual place."""
    return [variable for variable, usual in CACHES.items() if variable not in os.environ and not _possible(usual)]


def keep_in_store(home: Home) -> None:
    """Have this process, and those that it starts, keep in the store what cannot be kept in the home folder."""
    for variable in homeless():
        os.environ[variable] = str(home.cache / variable.lower())


def settle_folders() -> None:
    """Have relative folders of the environment mean the same to Ray's workers, which are started elsewhere."""
    for variable in ("NBSR_DATA", "NBSR_CACHE"):
        given = os.environ.get(variable)
        if given and not given.startswith("~"):
            os.environ[variable] = os.path.abspath(given)


def _possible(usual: str) -> bool:
    """Whether a folder is there, or could be made; what is there can at least be read."""
    try:
        folder = Path(usual).expanduser()
    except RuntimeError:  # nobody knows where this user is at home
        return False
    if folder.is_dir():
        return True
    above = next(place for place in folder.absolute().parents if place.exists())
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)
