"""Trials: what one is, its key, its result, and the store in which results are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.trials.home import Home
    from nbsr_platform.trials.results import TrialResult
    from nbsr_platform.trials.store import ResultStore
    from nbsr_platform.trials.trial import Trial

__all__ = ["Home", "ResultStore", "Trial", "TrialResult"]

__getattr__ = on_first_use(
    __name__,
    {
        "Home": "home",
        "ResultStore": "store",
        "Trial": "trial",
        "TrialResult": "results",
    },
)
