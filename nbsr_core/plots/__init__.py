"""Pictures: drawn from what is known, never part of what is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core.plots.beliefs import confusion_chart, frontier_chart, reliability_chart, usage_chart
    from nbsr_core.plots.frontier import frontier_bands
    from nbsr_core.plots.svg import Picture

__all__ = ["Picture", "confusion_chart", "frontier_bands", "frontier_chart", "reliability_chart", "usage_chart"]

__getattr__ = on_first_use(
    __name__,
    {
        "Picture": "svg",
        "confusion_chart": "beliefs",
        "frontier_bands": "frontier",
        "frontier_chart": "beliefs",
        "reliability_chart": "beliefs",
        "usage_chart": "beliefs",
    },
)
