"""MLflow: what is recorded, under which names, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.tracking.recorder import Recorder
    from nbsr_platform.tracking.store import TrackingError, TrackingStore
    from nbsr_platform.tracking.tracker import Tracker

__all__ = ["Recorder", "Tracker", "TrackingError", "TrackingStore"]

__getattr__ = on_first_use(
    __name__,
    {
        "Recorder": "recorder",
        "Tracker": "tracker",
        "TrackingError": "store",
        "TrackingStore": "store",
    },
)
