"""The report: one self-contained page from which a person can decide, made from stored results only."""

from nbsr_platform.report.material import Material
from nbsr_platform.report.page import page, write_report

__all__ = ["Material", "page", "write_report"]
