"""What is there, what would be done, and for how long: doctor, plan, listing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.inspect.doctor import Finding, examine
    from nbsr_platform.inspect.listing import ListedStudy
    from nbsr_platform.inspect.plan import Plan

__all__ = ["Finding", "ListedStudy", "Plan", "examine"]

__getattr__ = on_first_use(
    __name__,
    {
        "Finding": "doctor",
        "ListedStudy": "listing",
        "Plan": "plan",
        "examine": "doctor",
    },
)
