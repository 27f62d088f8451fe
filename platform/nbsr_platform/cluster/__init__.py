"""Studies as jobs of a Ray cluster, and what travels there with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.cluster.jobs import Cluster, Job
    from nbsr_platform.cluster.packing import Selection, select

__all__ = ["Cluster", "Job", "Selection", "select"]

__getattr__ = on_first_use(
    __name__,
    {
        "Cluster": "jobs",
        "Job": "jobs",
        "Selection": "packing",
        "select": "packing",
    },
)
