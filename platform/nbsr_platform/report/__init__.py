"""The report: one self-contained page from which a person can decide, made from stored results only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.report.html_page import page, show_as, write_report
    from nbsr_platform.report.study_results import StudyResults

__all__ = ["StudyResults", "page", "show_as", "write_report"]

__getattr__ = on_first_use(
    __name__,
    {
        "StudyResults": "study_results",
        "page": "html_page",
        "show_as": "html_page",
        "write_report": "html_page",
    },
)
